//! Fixed window: at most N hits in each window aligned to the epoch, or to the calendar month.
//!
//! The promise is per window, so up to 2N can pass around an edge. Its state is a start and a
//! count, and it counts in the same way as the reference's INCRBY: with `over_limit_hits: count` a
//! call that does not fit uses up quota all the same.

use crate::algorithm::Decide;
use crate::algorithm::charge::Charge;
use crate::check::{Call, Hits, Verdict};
use crate::limit::{EXACT_MAX, Limit};
use crate::time::Time;

/// One window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FixedWindow {
    start: Time,
    used: u64,
}

impl Decide for FixedWindow {
    const LUA: &'static str = include_str!("fixed_window.lua");

    fn charge(limit: &Limit, call: Call<'_>) -> Charge {
        Charge::of_hits(limit, call.hits, EXACT_MAX - 1)
    }

    /// A window that has not begun yet means that the clock went back. Its count is kept, so nobody
    /// is let in sooner, and it ends with the present window, so nobody waits longer than one
    /// period.
    fn at(self, limit: &Limit, now: Time) -> Self {
        let start = limit.window(now).start;
        Self {
            start,
            used: if self.start < start { 0 } else { self.used },
        }
    }

    fn spent(&self, _: &Limit, _: Time) -> u64 {
        self.used
    }

    fn charged(self, _: &Limit, _: Time, _: Call<'_>, charge: Charge) -> Self {
        Self {
            used: charge.charged(self.used),
            ..self
        }
    }

    fn is_untouched(&self) -> bool {
        self.used == 0
    }

    fn verdict(&self, limit: &Limit, now: Time, call: Call<'_>, over: bool) -> Verdict {
        let requests = u64::from(limit.requests());
        let ends_after = limit.window(self.start).end.since(now);
        let fits_a_fresh_window = match call.hits {
            Hits::Add(hits) => hits <= requests,
            Hits::Peek | Hits::Refund(_) => true,
        };
        Verdict::of_hits(
            limit,
            self.used,
            over,
            (over && fits_a_fresh_window).then_some(ends_after),
            ends_after,
        )
    }
}
