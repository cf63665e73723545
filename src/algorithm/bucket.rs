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
use crate::algorithm::charge::Charge;
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
    const LUA: &'static str = include_str!("bucket.lua");

    fn charge(limit: &Limit, hits: Hits) -> Charge {
        let capacity = u64::from(limit.capacity());
        let price = limit.period_ticks();
        // One more than fits is as good as any number more, and keeps the product exact.
        let cost = hits.count().min(capacity + 1) * price;
        Charge::new(hits, cost, limit.refused_hits(), capacity * price, deepest(limit))
    }

    /// A state from the future means that the clock went back: it is taken as of now, so that nobody is let in sooner and nobody waits
    /// longer than it takes to fill.
    fn at(self, limit: &Limit, now: Time) -> Self {
        let at = limit.tick().since_epoch(now);
        // Rules that lowered the burst meanwhile may find it deeper in debt than they allow.
        let spent = self.spent.min(deepest(limit));
        let returned = at.saturating_sub(self.at).saturating_mul(limit.requests().into());
        Self { spent: spent.saturating_sub(returned), at }
    }

    fn spent(self) -> u64 {
        self.spent
    }

    fn with_spent(self, spent: u64) -> Self {
        Self { spent, ..self }
    }

    fn verdict(self, limit: &Limit, now: Time, hits: Hits, over: bool) -> Verdict {
        let price = limit.period_ticks();
        let full = u64::from(limit.capacity()) * price;
        let wanted = u64::try_from(Self::charge(limit, hits).cost).unwrap_or(0);
        Verdict {
            over,
            used: self.spent.div_ceil(price),
            remaining: u32::try_from(full.saturating_sub(self.spent) / price).unwrap_or(u32::MAX),
            retry_after: (over && wanted <= full).then(|| self.falls_to(full - wanted, limit, now)),
            // A bucket that nothing ever fits into has no time of its own: a period is as good as any.
            reset_after: if full == 0 { limit.period() } else { self.falls_to(0, limit, now) },
            from_cache: false,
        }
    }
}

impl Bucket {
    /// How long after `now` this bucket, which is as of now, will have fallen to `level`.
    fn falls_to(self, level: u64, limit: &Limit, now: Time) -> Span {
        if self.spent <= level {
            return Span::ZERO;
        }
        let requests = u64::from(limit.requests());
        // Without a rate nothing comes back, and nothing was ever spent.
        let ticks = if requests == 0 { 0 } else { (self.spent - level).div_ceil(requests) };
        limit.tick().begins(self.at.saturating_add(ticks)).since(now)
    }
}

/// As much as can be spent: all that there is, and as much again where refused hits count.
fn deepest(limit: &Limit) -> u64 {
    let full = u64::from(limit.capacity()) * limit.period_ticks();
    match limit.refused_hits() {
        RefusedHits::Drop => full,
        RefusedHits::Count => 2 * full,
    }
}
