//! Fixed window: at most N hits in each window aligned to the epoch.
//!
//! The promise is per window, so up to 2N can pass around an edge. Its state is a start and a count, and it counts in the same way as
//! the reference's INCRBY: with `refused_hits: count` a call that does not fit uses up quota all the same.

use crate::algorithm::Decide;
use crate::check::{HITS_MAX, Hits, Verdict};
use crate::limit::{EXACT_MAX, Limit, RefusedHits};
use crate::time::Time;

/// One window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FixedWindow {
    start: Time,
    used: u64,
}

impl Decide for FixedWindow {
    fn decide(self, limit: &Limit, now: Time, hits: Hits) -> (Self, Verdict) {
        let window = self.at(limit, now);
        let requests = u64::from(limit.requests());
        let (next, over) = match hits {
            Hits::Look => (window, window.used > requests),
            Hits::GiveBack(hits) => {
                let next = Self { used: window.used.saturating_sub(hits.min(HITS_MAX)), ..window };
                (next, next.used > requests)
            }
            Hits::Add(hits) => {
                let counted = Self { used: (window.used + hits.min(HITS_MAX)).min(EXACT_MAX - 1), ..window };
                let over = counted.used > requests;
                (if over && limit.refused_hits() == RefusedHits::Drop { window } else { counted }, over)
            }
        };
        let ends_after = window.start.plus(limit.period()).since(now);
        let fits_a_fresh_window = match hits {
            Hits::Add(hits) => hits <= requests,
            Hits::Look | Hits::GiveBack(_) => true,
        };
        let verdict = Verdict {
            over,
            used: next.used,
            remaining: u32::try_from(requests.saturating_sub(next.used)).unwrap_or(u32::MAX),
            retry_after: (over && fits_a_fresh_window).then_some(ends_after),
            reset_after: ends_after,
        };
        (next, verdict)
    }
}

impl FixedWindow {
    /// Whether it says no more than a window that was never there.
    pub fn is_untouched(&self) -> bool {
        self.used == 0
    }

    /// The window that `now` lies in: this one, or a fresh one.
    ///
    /// A window that has not begun yet means that the clock went back. Its count is kept, so nobody is let in sooner, and it ends with
    /// the present window, so nobody waits longer than one period.
    fn at(self, limit: &Limit, now: Time) -> Self {
        let period = limit.period().as_micros();
        let start = Time::from_micros(now.as_micros() / period * period);
        Self { start, used: if self.start < start { 0 } else { self.used } }
    }
}
