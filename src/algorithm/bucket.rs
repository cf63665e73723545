//! Token bucket: in any interval t at most burst + N·t/period hits pass, and whoever is idle saves
//! up to a burst. A leaky bucket is the same with a burst of one, if nothing else is said: an even
//! flow.
//!
//! The state is what has been spent, in credits: a hit costs `period` (in ticks), and each tick
//! that passes gives `requests` back. So nothing is ever divided before it is compared, and there
//! are no fractions to lose. The idea is the leaky bucket as a meter (ITU-T I.371, the virtual
//! scheduling form is known as GCRA).
//!
//! ```text
//!  spent
//!    2·full |                          deepest debt (over_limit_hits: count)
//!      full |- - - - - - - - - - -     no room for anything, but for what is booked ahead
//!           |    \      /\
//!           |     \    /  \            a hit raises it by `period`,
//!           |      \  /    \           a tick lowers it by `requests`
//!         0 |_______\/______\____ time
//! ```
//!
//! A call that there is no room for yet may book the slot at which there will be, up to
//! `book_ahead` from now: it is charged at once, as if that much more fitted in, and waits until
//! what is spent has fallen to `full`.

use crate::algorithm::Decide;
use crate::algorithm::charge::Charge;
use crate::check::{Call, Hits, Verdict};
use crate::limit::{Limit, OverLimitHits};
use crate::time::{Span, Time};

/// One bucket, as it stood at some tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bucket {
    spent: u64,
    at: u64,
}

impl Decide for Bucket {
    const LUA: &'static str = include_str!("bucket.lua");

    fn charge(limit: &Limit, call: Call<'_>) -> Charge {
        let capacity = u64::from(limit.capacity());
        let price = limit.period_ticks();
        // One more than fits is as good as any number more, and keeps the product exact.
        let cost = call.hits.count().min(capacity + 1) * price;
        let ahead = match call.hits {
            // It never fits in, however long it waits.
            Hits::Add(hits) if hits > capacity => 0,
            _ => returned_in(limit, call.book_ahead.min(limit.max_wait())),
        };
        Charge::new(
            call.hits,
            cost,
            limit.over_limit_hits(),
            capacity * price + ahead,
            deepest(limit),
        )
    }

    /// A state from the future means that the clock went back: it is taken as of now, so that
    /// nobody is let in sooner and nobody waits longer than it takes to fill.
    fn at(self, limit: &Limit, now: Time) -> Self {
        let at = limit.tick().since_epoch(now);
        // Rules that lowered the burst meanwhile may find it deeper in debt than they allow.
        let spent = self.spent.min(deepest(limit));
        let returned = at
            .saturating_sub(self.at)
            .saturating_mul(limit.requests().into());
        Self {
            spent: spent.saturating_sub(returned),
            at,
        }
    }

    fn spent(&self, _: &Limit, _: Time) -> u64 {
        self.spent
    }

    fn charged(self, _: &Limit, _: Time, _: Call<'_>, charge: Charge) -> Self {
        Self {
            spent: charge.charged(self.spent),
            ..self
        }
    }

    fn is_untouched(&self) -> bool {
        self.spent == 0
    }

    fn verdict(&self, limit: &Limit, now: Time, call: Call<'_>, over: bool) -> Verdict {
        let price = limit.period_ticks();
        let full = u64::from(limit.capacity()) * price;
        let charge = Self::charge(limit, call);
        let wanted = charge.wanted();
        let is_booked = !over && wanted > 0;
        Verdict {
            over,
            used: self.spent.div_ceil(price),
            remaining: u32::try_from(full.saturating_sub(self.spent) / price).unwrap_or(u32::MAX),
            start_after: if is_booked {
                self.falls_to(full, limit, now)
            } else {
                Span::ZERO
            },
            retry_after: (over && wanted <= full)
                .then(|| self.falls_to(charge.full - wanted, limit, now)),
            // A bucket that nothing ever fits into has no time of its own: a period is as good as
            // any.
            reset_after: if full == 0 {
                limit.period()
            } else {
                self.falls_to(0, limit, now)
            },
            from_cache: false,
        }
    }
}

impl Bucket {
    /// How long after `now` this bucket, which is as of now, will have fallen to `level`.
    fn falls_to(&self, level: u64, limit: &Limit, now: Time) -> Span {
        if self.spent <= level {
            return Span::ZERO;
        }
        let requests = u64::from(limit.requests());
        // Without a rate nothing comes back, and nothing was ever spent.
        let ticks = if requests == 0 {
            0
        } else {
            (self.spent - level).div_ceil(requests)
        };
        limit
            .tick()
            .begins(self.at.saturating_add(ticks))
            .since(now)
    }
}

/// What comes back in that time.
fn returned_in(limit: &Limit, time: Span) -> u64 {
    time.as_micros() / limit.tick().span().as_micros() * u64::from(limit.requests())
}

/// As much as can be spent: all that there is and all that can be booked ahead, and as much as
/// there is once more where refused hits count.
fn deepest(limit: &Limit) -> u64 {
    let full = u64::from(limit.capacity()) * limit.period_ticks();
    let debt = match limit.over_limit_hits() {
        OverLimitHits::Drop => 0,
        OverLimitHits::Count => full,
    };
    full + debt + returned_in(limit, limit.max_wait())
}
