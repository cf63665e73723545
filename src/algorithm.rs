//! How hits are counted. Pure: a counter's state and the time go in, the new state and a verdict
//! come out.
//!
//! Giving the new state back, rather than changing it in place, is what makes all-or-nothing
//! simple: decide over scratch states, and keep them if nobody vetoes.
//!
//! Each algorithm is there twice: `x.rs` counts in this process, and `x.lua` beside it in Redis,
//! where numbers are doubles. Both compute in whole numbers below 2^53 and agree to the last digit,
//! which tests hold them to. The twin in Redis does only what has to be atomic: it loads, charges
//! and keeps, and tells what is spent. What that means for the caller is said here, once, for both.

use crate::algorithm::charge::Charge;
use crate::check::{Call, Verdict};
use crate::limit::Limit;
use crate::time::Time;

pub mod all_or_nothing;
pub mod bucket;
pub mod charge;
pub mod concurrency;
pub mod counter;
pub mod fixed_window;
pub mod sliding_log;
pub mod sliding_window;
pub mod sub_windows;

pub use all_or_nothing::decide_all_or_nothing;
pub use counter::Counter;

/// A counter that can decide. `Default` is the state of a counter that nobody has touched; `limit`
/// must be one of its algorithm.
pub trait Decide: Sized + Clone + Default {
    /// The twin: a table with `load` and `keep`, and where the driver's own way will not do,
    /// `price`, `charged` and `told`.
    const LUA: &'static str;

    /// What a call does, in the counter's own units, to whatever counter it meets.
    fn charge(limit: &Limit, call: Call<'_>) -> Charge;

    /// The same to this counter, which is as of now.
    fn charge_here(&self, limit: &Limit, call: Call<'_>) -> Charge {
        Self::charge(limit, call)
    }

    /// This counter as it stands at `now`.
    #[must_use]
    fn at(self, limit: &Limit, now: Time) -> Self;

    /// What is spent of it, which is as of now, in its own units.
    fn spent(&self, limit: &Limit, now: Time) -> u64;

    /// What is spent of it as it stands at `now`.
    fn spent_at(&self, limit: &Limit, now: Time) -> u64 {
        self.clone().at(limit, now).spent(limit, now)
    }

    /// This counter, which is as of now, after a call that takes or gives back so much.
    #[must_use]
    fn charged(self, limit: &Limit, now: Time, call: Call<'_>, charge: Charge) -> Self;

    /// A counter of which so much is spent since `now`.
    fn of(limit: &Limit, now: Time, spent: u64) -> Self {
        Self::default()
            .at(limit, now)
            .charged(limit, now, Call::PEEK, Charge::taking(spent))
    }

    /// A counter of which the twin tells so much, and besides what its algorithm needs for a
    /// verdict.
    fn told(limit: &Limit, now: Time, spent: u64, _besides: &[u64]) -> Self {
        Self::of(limit, now, spent)
    }

    /// Whether it says no more than a counter that was never there, and need not be kept.
    fn is_untouched(&self) -> bool;

    /// What it takes beyond its own size.
    fn heap_bytes(&self) -> usize {
        0
    }

    /// What to tell a caller who has left the counter, which is as of now, like this.
    fn verdict(&self, limit: &Limit, now: Time, call: Call<'_>, over: bool) -> Verdict;

    /// Decides one call.
    fn decide(self, limit: &Limit, now: Time, call: Call<'_>) -> (Self, Verdict) {
        let counter = self.at(limit, now);
        let charge = counter.charge_here(limit, call);
        let over = charge.is_over(counter.spent(limit, now));
        let next = if over && charge.drops {
            counter
        } else {
            counter.charged(limit, now, call, charge)
        };
        let verdict = next.verdict(limit, now, call, over);
        (next, verdict)
    }
}

/// On the heap, so that counters with a long state do not make all others large.
impl<D: Decide> Decide for Box<D> {
    const LUA: &'static str = D::LUA;

    fn charge(limit: &Limit, call: Call<'_>) -> Charge {
        D::charge(limit, call)
    }

    fn charge_here(&self, limit: &Limit, call: Call<'_>) -> Charge {
        D::charge_here(self, limit, call)
    }

    fn at(mut self, limit: &Limit, now: Time) -> Self {
        *self = std::mem::take(&mut *self).at(limit, now);
        self
    }

    fn spent(&self, limit: &Limit, now: Time) -> u64 {
        D::spent(self, limit, now)
    }

    fn charged(mut self, limit: &Limit, now: Time, call: Call<'_>, charge: Charge) -> Self {
        *self = std::mem::take(&mut *self).charged(limit, now, call, charge);
        self
    }

    fn of(limit: &Limit, now: Time, spent: u64) -> Self {
        Self::new(D::of(limit, now, spent))
    }

    fn told(limit: &Limit, now: Time, spent: u64, besides: &[u64]) -> Self {
        Self::new(D::told(limit, now, spent, besides))
    }

    fn is_untouched(&self) -> bool {
        D::is_untouched(self)
    }

    fn heap_bytes(&self) -> usize {
        size_of::<D>() + D::heap_bytes(self)
    }

    fn verdict(&self, limit: &Limit, now: Time, call: Call<'_>, over: bool) -> Verdict {
        D::verdict(self, limit, now, call, over)
    }
}
