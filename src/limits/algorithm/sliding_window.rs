//! Sliding window of two counters: hits of the present window count whole, and those of the window
//! before fade out linearly.
//!
//! Even traffic is admitted at about N in any period, and never more than N pass in one aligned
//! window; in the worst case, a burst at the end of one window and what has faded of it by the end
//! of the next, just under 2N pass within a period. The idea is that of the approximated sliding
//! window which Cloudflare described in 2017. Its state is the number of the window and two counts.
//!
//! ```text
//!  hits  |  before  |   used   |
//!        |##########|          |       weighs as before · (period - elapsed) / period + used,
//!        |##########|####      |       what is before rounded up
//!        +----------+----^-----+ time
//!                    elapsed
//! ```

use crate::base::time::{Span, Time};
use crate::limits::algorithm::charge::Charge;
use crate::limits::algorithm::decide::Decide;
use crate::limits::check::{Call, Verdict};
use crate::limits::{EXACT_MAX, Limit};

/// Two windows. Packed, so that the tag of [`Counter`](crate::limits::algorithm::Counter) takes no
/// more memory: a store keeps millions of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(Rust, packed(4))]
pub struct SlidingWindow {
    /// The index of the present window.
    window: u64,
    /// Hits of the present one.
    used: u64,
    /// Hits of the one before. No limit is greater than this number can be.
    before: u32,
}

impl Decide for SlidingWindow {
    const LUA: &'static str = include_str!("sliding_window.lua");

    fn charge(limit: &Limit, call: Call<'_>) -> Charge {
        Charge::of_hits(limit, call.hits, EXACT_MAX - 1)
    }

    /// A window in the future means that the clock went back. All hits are kept as those of the
    /// present window, so calls are neither admitted sooner nor wait longer than two periods.
    fn advance(&mut self, limit: &Limit, now: Time) {
        let window = limit.tick.since_epoch(now) / limit.period_ticks();
        let (used, before) = match window.checked_sub(self.window) {
            None => (self.used + u64::from(self.before), 0),
            Some(0) => (self.used, self.before),
            Some(1) => (0, u32::try_from(self.used).unwrap_or(u32::MAX)),
            Some(_) => (0, 0),
        };
        *self = Self { window, used, before };
    }

    fn spent(&self, limit: &Limit, now: Time) -> u64 {
        let left = limit.period_ticks() - limit.tick.since_epoch(now) % limit.period_ticks();
        self.used.saturating_add((self.fading(limit) * left).div_ceil(limit.period_ticks()))
    }

    /// Hits of the window before are refunded by their weight.
    fn granted(&self, limit: &Limit, now: Time, grant: Charge) -> Charge {
        let spent = self.spent(limit, now);
        let left_over = spent.min(grant.full).saturating_sub(grant.cost.unsigned_abs());
        let mut refund = spent - left_over;
        if refund > self.used {
            let period = limit.period_ticks();
            let left = period - limit.tick.since_epoch(now) % period;
            refund = self.used + u64::from(self.before) - left_over * period / left;
        }
        Charge { cost: -i64::try_from(refund).unwrap_or(i64::MAX), drops: false, ..grant }
    }

    /// A refund is taken from the present window first, then from the one before.
    fn apply(&mut self, _: &Limit, _: Time, _: Call<'_>, charge: Charge) {
        let given_back = charge.cost.min(0).unsigned_abs();
        let older = u32::try_from(given_back.saturating_sub(self.used)).unwrap_or(u32::MAX);
        self.used = charge.charged(self.used);
        self.before = self.before.saturating_sub(older);
    }

    fn fill_from_reply(&mut self, limit: &Limit, now: Time, spent: u64, extra: &[u64]) {
        self.advance(limit, now);
        let before = extra.first().copied().unwrap_or(0);
        self.before = u32::try_from(before).unwrap_or(u32::MAX);
        self.used = spent.saturating_sub(self.spent(limit, now));
    }

    fn is_new(&self) -> bool {
        self.used == 0 && self.before == 0
    }

    fn verdict(&self, limit: &Limit, now: Time, call: Call<'_>, over: bool) -> Verdict {
        let requests = limit.requests;
        let spent = self.spent(limit, now);
        let wanted = Self::charge(limit, call).wanted();
        let windows_left = if self.used > 0 { 2 } else { u64::from(self.before > 0) };
        let retry_after =
            (over && wanted <= requests).then(|| self.fades_to(requests - wanted, limit, now));
        // For a limit of 0 any time will do: a period.
        let reset_after = if requests == 0 && windows_left == 0 {
            limit.period
        } else {
            self.until(windows_left, 0, limit, now)
        };
        Verdict::of_hits(limit, spent, over, retry_after, reset_after)
    }
}

impl SlidingWindow {
    /// The index of the present window, its hits, and those of the window before.
    pub const fn parts(self) -> (u64, u64, u32) {
        (self.window, self.used, self.before)
    }

    /// Hits of the window before, at most the limit, so that their product with a weight is exact.
    fn fading(&self, limit: &Limit) -> u64 {
        u64::from(self.before).min(limit.requests)
    }

    /// The time from `now` until no more than `level` is spent.
    fn fades_to(&self, level: u64, limit: &Limit, now: Time) -> Span {
        // In this window if that is enough, and else in the next, in which it is this one's hits
        // that fade.
        let (windows, fading, left) = match level.checked_sub(self.used) {
            Some(left) => (0, self.fading(limit), left),
            None => (1, self.used.min(limit.requests), level),
        };
        let period = limit.period_ticks();
        let elapsed =
            (left * period).checked_div(fading).map_or(0, |left| period - left.min(period));
        self.until(windows, elapsed, limit, now)
    }

    /// The time until this many ticks of the window that is `windows` after this one have passed.
    fn until(&self, windows: u64, ticks: u64, limit: &Limit, now: Time) -> Span {
        limit.tick.begins((self.window + windows) * limit.period_ticks() + ticks).since(now)
    }
}
