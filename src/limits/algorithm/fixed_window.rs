//! Fixed window: at most N hits in each window aligned to the epoch, or to a calendar.
//!
//! The limit holds per window, so up to 2N can pass around an edge. The state is a window and a
//! count. It counts like envoyproxy/ratelimit's INCRBY: with `over_limit_hits: count` a call that
//! does not fit consumes quota.

use crate::base::time::Time;
use crate::limits::algorithm::charge::Charge;
use crate::limits::algorithm::decide::Decide;
use crate::limits::check::{Call, Verdict};
use crate::limits::{EXACT_MAX, Limit};

/// A window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FixedWindow {
    /// See [`Window::id`](crate::limits::Window::id).
    id: Time,
    used: u64,
}

impl Decide for FixedWindow {
    const LUA: &'static str = include_str!("fixed_window.lua");

    fn charge(limit: &Limit, call: Call<'_>) -> Charge {
        Charge::of_hits(limit, call.hits, EXACT_MAX - 1)
    }

    /// A window in the future means that the clock went back. Its count is kept until the end of
    /// the present window, so calls are neither admitted sooner nor wait longer than one period.
    fn advance(&mut self, limit: &Limit, now: Time) {
        let id = limit.window(now).id;
        if self.id < id || (id < self.id && !limit.windows.has(self.id)) {
            self.used = 0;
        }
        self.id = id;
    }

    fn spent(&self, _: &Limit, _: Time) -> u64 {
        self.used
    }

    fn apply(&mut self, _: &Limit, _: Time, _: Call<'_>, charge: Charge) {
        self.used = charge.charged(self.used);
    }

    fn is_new(&self) -> bool {
        self.used == 0
    }

    fn verdict(&self, limit: &Limit, now: Time, call: Call<'_>, over: bool) -> Verdict {
        let ends_after = limit.window_end(self.id, now).since(now);
        let wanted = Self::charge(limit, call).wanted();
        let retry_after = (over && wanted <= limit.requests).then_some(ends_after);
        Verdict::of_hits(limit, self.used, over, retry_after, ends_after)
    }
}
