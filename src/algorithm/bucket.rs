//! Token bucket: in any interval t at most burst + N·t/period hits pass, and whoever is idle saves up to a burst.
//!
//! The state is what has been spent, in credits: a hit costs `period` (in ticks), and each tick that passes gives `requests` back. So
//! nothing is ever divided before it is compared, and there are no fractions to lose. The idea is the leaky bucket as a meter
//! (ITU-T I.371, the virtual scheduling form is known as GCRA).
//!
//! ```text
//!  spent
//!    2·full |                          deepest debt (refused_hits: count)
//!      full |- - - - - - - - - - -     no room for anything
//!           |    \      /\
//!           |     \    /  \            a hit raises it by `period`,
//!           |      \  /    \           a tick lowers it by `requests`
//!         0 |_______\/______\____ time
//! ```

use crate::algorithm::Decide;
use crate::check::{Hits, Verdict};
use crate::limit::{Limit, RefusedHits};
use crate::time::{Span, Time};

/// One bucket, as it stood at some tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bucket {
    spent: u64,
    at: u64,
}

impl Decide for Bucket {
    fn decide(self, limit: &Limit, now: Time, hits: Hits) -> (Self, Verdict) {
        let capacity = u64::from(limit.capacity());
        let price = limit.period_ticks();
        let full = capacity * price;
        let bucket = self.refilled(limit, now);
        // One more than fits is as good as any number more, and keeps the product exact.
        let cost = |hits: u64| hits.min(capacity + 1) * price;

        let (next, over) = match hits {
            Hits::Look => (bucket, bucket.spent > full),
            Hits::GiveBack(hits) => {
                let next = Self { spent: bucket.spent.saturating_sub(cost(hits)), ..bucket };
                (next, next.spent > full)
            }
            Hits::Add(hits) => {
                let charged = bucket.spent + cost(hits);
                let over = charged > full;
                let spent = match limit.refused_hits() {
                    RefusedHits::Drop if over => bucket.spent,
                    RefusedHits::Count if over => charged.min(2 * full),
                    RefusedHits::Drop | RefusedHits::Count => charged,
                };
                (Self { spent, ..bucket }, over)
            }
        };
        let wanted = if let Hits::Add(hits) = hits { cost(hits) } else { 0 };
        let verdict = Verdict {
            over,
            used: next.spent.div_ceil(price),
            remaining: u32::try_from(full.saturating_sub(next.spent) / price).unwrap_or(u32::MAX),
            retry_after: (over && wanted <= full).then(|| next.falls_to(full - wanted, limit, now)),
            // A bucket that nothing ever fits into has no time of its own: a period is as good as any.
            reset_after: if full == 0 { limit.period() } else { next.falls_to(0, limit, now) },
        };
        (next, verdict)
    }
}

impl Bucket {
    /// Whether it says no more than a bucket that was never there.
    pub fn is_untouched(&self) -> bool {
        self.spent == 0
    }

    /// This bucket as it stands at `now`.
    ///
    /// A state from the future means that the clock went back: it is taken as of now, so that nobody is let in sooner and nobody waits
    /// longer than it takes to fill.
    fn refilled(self, limit: &Limit, now: Time) -> Self {
        let at = limit.tick().since_epoch(now);
        let elapsed = at.saturating_sub(self.at);
        let requests = u64::from(limit.requests());
        // Rules that lowered the burst meanwhile may find it deeper in debt than they allow.
        let spent = self.spent.min(2 * u64::from(limit.capacity()) * limit.period_ticks());
        // Cut before it is multiplied: an idle year times a large rate is no exact number.
        let returned = if elapsed >= ticks_to_return(spent, requests) { spent } else { elapsed * requests };
        Self { spent: spent - returned, at }
    }

    /// How long after `now` this bucket, which is as of now, will have fallen to `level`.
    fn falls_to(self, level: u64, limit: &Limit, now: Time) -> Span {
        if self.spent <= level {
            return Span::ZERO;
        }
        let ticks = ticks_to_return(self.spent - level, u64::from(limit.requests()));
        limit.tick().begins(self.at.saturating_add(ticks)).since(now)
    }
}

/// How many ticks return that many credits. Without a rate nothing comes back, and nothing was ever spent.
fn ticks_to_return(credits: u64, requests: u64) -> u64 {
    if requests == 0 { 0 } else { credits.div_ceil(requests) }
}
