//! Token bucket: at most burst + N·t/period hits in any interval t, and idle time saves up to a
//! burst. A leaky bucket is the same with a default burst of one: an even flow.
//!
//! The state is what was spent, in credits: a hit costs `period` (in ticks), and each tick returns
//! `requests`. So nothing is divided before it is compared, and no fractions are lost. The idea is
//! the leaky bucket as a meter (ITU-T I.371, the virtual scheduling form is known as GCRA).
//!
//! ```text
//!  spent
//!    2·full |                          deepest debt (hits over limit that count)
//!      full |- - - - - - - - - - -     full, except for slots booked ahead
//!           |    \      /\
//!           |     \    /  \            a hit raises it by `period`,
//!           |      \  /    \           a tick lowers it by `requests`
//!         0 |_______\/______\____ time
//! ```
//!
//! A call that does not fit may book a slot up to `book_ahead` from now: it is charged at once, as
//! if the bucket were that much larger, and waits until `spent` has fallen to `full`.

use crate::base::time::{Span, Time};
use crate::limits::Limit;
use crate::limits::algorithm::charge::Charge;
use crate::limits::algorithm::decide::Decide;
use crate::limits::check::{Call, Hits, Source, Verdict};

/// A bucket, as it stood at some tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bucket {
    spent: u64,
    at: u64,
}

impl Decide for Bucket {
    const LUA: &'static str = include_str!("bucket.lua");

    fn charge(limit: &Limit, call: Call<'_>) -> Charge {
        let capacity = limit.capacity;
        let price = limit.period_ticks();
        // What reaches the deepest debt, or does not fit, is as good as any number more, and exact.
        let most = limit.deepest().max((capacity + 1) * price);
        let cost = call.hits.count().saturating_mul(price).min(most);
        let ahead = match call.hits {
            // It never fits in, however long it waits.
            Hits::Add(hits) if hits > capacity => 0,
            _ => limit.returned_in(call.book_ahead.min(limit.max_wait)),
        };
        Charge::new(
            call.hits,
            cost,
            limit.over_limit_hits,
            capacity * price + ahead,
            limit.deepest(),
        )
    }

    /// A state from the future means that the clock went back. It is taken as of now, so that calls
    /// are neither admitted sooner nor wait longer than the bucket takes to refill.
    fn advance(&mut self, limit: &Limit, now: Time) {
        let at = limit.tick.since_epoch(now);
        let returned = at.saturating_sub(self.at).saturating_mul(limit.requests);
        // Rules that lowered the burst meanwhile may find it deeper in debt than they allow.
        self.spent = self.spent.min(limit.deepest()).saturating_sub(returned);
        self.at = at;
    }

    fn spent(&self, _: &Limit, _: Time) -> u64 {
        self.spent
    }

    fn apply(&mut self, _: &Limit, _: Time, _: Call<'_>, charge: Charge) {
        self.spent = charge.charged(self.spent);
    }

    fn is_new(&self) -> bool {
        self.spent == 0
    }

    fn verdict(&self, limit: &Limit, now: Time, call: Call<'_>, over: bool) -> Verdict {
        let price = limit.period_ticks();
        let full = limit.capacity * price;
        let charge = Self::charge(limit, call);
        let wanted = charge.wanted();
        let is_booked = !over && wanted > 0;
        Verdict {
            over,
            used: self.spent.div_ceil(price),
            remaining: full.saturating_sub(self.spent) / price,
            start_after: if is_booked { self.falls_to(full, limit, now) } else { Span::ZERO },
            retry_after: (over && wanted <= full)
                .then(|| self.falls_to(charge.full - wanted, limit, now)),
            // A bucket that nothing ever fits into has no time of its own: a period is as good as
            // any.
            reset_after: if full == 0 { limit.period } else { self.falls_to(0, limit, now) },
            source: Source::Store,
        }
    }
}

impl Bucket {
    /// The time from `now` until this bucket, advanced to `now`, has fallen to `level`.
    fn falls_to(&self, level: u64, limit: &Limit, now: Time) -> Span {
        if self.spent <= level {
            return Span::ZERO;
        }
        let requests = limit.requests;
        // Without a rate nothing comes back, and nothing was ever spent.
        let ticks = if requests == 0 { 0 } else { (self.spent - level).div_ceil(requests) };
        limit.tick.begins(self.at.saturating_add(ticks)).since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{Algorithm, OverLimitHits, Terms, Unit};

    fn limit(over_limit_hits: OverLimitHits) -> Limit {
        Limit::new(&Terms {
            over_limit_hits: Some(over_limit_hits),
            ..Terms::new(100, Unit::Day, Algorithm::TokenBucket)
        })
        .expect("a limit")
    }

    #[test]
    fn a_call_above_the_burst_is_charged_what_it_asks_up_to_a_burst_of_debt() {
        for (hits, used) in [(99, 99), (101, 101), (150, 150), (200, 200), (900, 200)] {
            let mut bucket = Bucket::default();
            let call = Hits::Add(hits).into();
            let now = Time::from_micros(0);
            assert_eq!(bucket.decide(&limit(OverLimitHits::Count), now, call).used, used);
            let refund = Hits::Refund(hits).into();
            assert_eq!(bucket.decide(&limit(OverLimitHits::Count), now, refund).used, 0);
        }
    }

    #[test]
    fn a_call_that_drops_does_not_cancel_the_debt_of_others() {
        let mut bucket = Bucket::default();
        let now = Time::from_micros(0);
        bucket.decide(&limit(OverLimitHits::Count), now, Hits::Add(150).into());
        let dropped = bucket.decide(&limit(OverLimitHits::Drop), now, Hits::Add(1).into());
        assert_eq!((dropped.over, dropped.used), (true, 150));
    }
}
