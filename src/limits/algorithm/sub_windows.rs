//! Strict sliding window: the period is cut into k sub-windows, and the one that is leaving counts
//! whole until it has left.
//!
//! So at most N hits pass in any period, and under steady pressure at least N·k/(k+1) a period. Its
//! state is the number of the newest sub-window and k + 1 counts.
//!
//! ```text
//!  hits  | leaving |    |    |    | newest  |        k = 4: five counts, all of them whole
//!        |   ##    |#   |    |### |#        |
//!        +----^----+----+----+----+----^----+ time
//!             |------- a period -------|
//! ```

use crate::base::time::{Span, Time};
use crate::limits::algorithm::charge::Charge;
use crate::limits::algorithm::decide::Decide;
use crate::limits::check::{Call, Verdict};
use crate::limits::{EXACT_MAX, Limit};

/// The newest sub-window and those before it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SubWindows {
    /// The index of the newest sub-window.
    newest: u64,
    /// Hits of each, oldest first. None at all before it was first touched.
    counts: Box<[u64]>,
}

impl Decide for SubWindows {
    const LUA: &'static str = include_str!("sub_windows.lua");

    fn charge(limit: &Limit, call: Call<'_>) -> Charge {
        Charge::of_hits(limit, call.hits, EXACT_MAX - 1)
    }

    /// A sub-window in the future means that the clock went back. Its hits are kept as those of the
    /// present one, so calls are neither admitted sooner nor wait longer than all of them take.
    fn advance(&mut self, limit: &Limit, now: Time) {
        let newest = now.as_micros() / limit.sub_window().as_micros();
        let kept = limit.buckets as usize + 1;
        if self.counts.len() != kept {
            self.counts = vec![0; kept].into();
        }
        let passed = usize::try_from(newest.saturating_sub(self.newest))
            .map_or(kept, |passed| passed.min(kept));
        self.counts.rotate_left(passed);
        self.counts[kept - passed..].fill(0);
        self.newest = newest;
    }

    fn spent(&self, _: &Limit, _: Time) -> u64 {
        // A reply of Redis may have any numbers.
        self.counts.iter().fold(0, |sum: u64, &count| sum.saturating_add(count))
    }

    /// A refund is taken from the newest sub-windows.
    fn apply(&mut self, limit: &Limit, now: Time, _: Call<'_>, charge: Charge) {
        let (added, mut given_back) = charge.change(self.spent(limit, now));
        for count in self.counts.iter_mut().rev() {
            let taken = given_back.min(*count);
            *count -= taken;
            given_back -= taken;
        }
        if let Some(newest) = self.counts.last_mut() {
            *newest += added;
        }
    }

    fn fill_from_reply(&mut self, limit: &Limit, now: Time, _: u64, extra: &[u64]) {
        self.advance(limit, now);
        if extra.len() == self.counts.len() {
            self.counts.copy_from_slice(extra);
        }
    }

    fn is_new(&self) -> bool {
        self.counts.iter().all(|&count| count == 0)
    }

    fn heap_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.counts)
    }

    fn verdict(&self, limit: &Limit, now: Time, call: Call<'_>, over: bool) -> Verdict {
        let requests = limit.requests;
        let spent = self.spent(limit, now);
        let wanted = Self::charge(limit, call).wanted();
        let retry_after = (over && wanted <= requests)
            .then(|| self.falls_by((spent + wanted).saturating_sub(requests), limit, now));
        // For a limit of 0 any time will do: a period.
        let reset_after = if requests == 0 && spent == 0 {
            limit.period
        } else {
            self.falls_by(spent, limit, now)
        };
        Verdict::of_hits(limit, spent, over, retry_after, reset_after)
    }
}

impl SubWindows {
    /// The index of the newest sub-window, and the hits of each, oldest first.
    pub const fn parts(&self) -> (u64, &[u64]) {
        (self.newest, &self.counts)
    }

    /// The time from `now` until this many hits have expired.
    fn falls_by(&self, hits: u64, limit: &Limit, now: Time) -> Span {
        let mut left: u64 = 0;
        let enough = self.counts.iter().position(|count| {
            left = count.saturating_add(left);
            left >= hits
        });
        let Some(place) = enough.filter(|_| hits > 0) else {
            return Span::ZERO;
        };
        // The oldest, at place 0, leaves when the next sub-window begins.
        let begins =
            (self.newest + 1 + place as u64).saturating_mul(limit.sub_window().as_micros());
        Time::from_micros(begins).since(now)
    }
}
