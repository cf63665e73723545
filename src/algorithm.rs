//! How hits are counted. Pure: a counter's state and the time go in, the new state and a verdict come out.
//!
//! Giving the new state back, rather than changing it in place, is what makes all-or-nothing simple: decide over scratch states, and
//! keep them if nobody vetoes.
//!
//! Each algorithm is there twice: `x.rs` counts in this process, and `x.lua` beside it in Redis, where numbers are doubles. Both
//! compute in whole numbers below 2^53 and agree to the last digit, which tests hold them to. The twin in Redis does only what has to
//! be atomic: it loads, charges and keeps, and tells what is spent. What that means for the caller is said here, once, for both.

use crate::algorithm::charge::Charge;
use crate::check::{Hits, Verdict};
use crate::limit::Limit;
use crate::time::Time;

pub mod bucket;
pub mod charge;
pub mod counter;
pub mod fixed_window;
pub mod together;

pub use counter::Counter;
pub use together::decide_together;

/// A counter that can decide. `Default` is the state of a counter that nobody has touched; `limit` must be one of its algorithm.
pub trait Decide: Sized + Copy + Default {
    /// The twin: a table with `load` and `keep`.
    const LUA: &'static str;

    /// What a call does, in the counter's own units.
    fn charge(limit: &Limit, hits: Hits) -> Charge;

    /// This counter as it stands at `now`.
    #[must_use]
    fn at(self, limit: &Limit, now: Time) -> Self;

    /// What is spent of it, in its own units.
    fn spent(self) -> u64;

    /// The same with another number spent.
    #[must_use]
    fn with_spent(self, spent: u64) -> Self;

    /// What to tell a caller who has left the counter, which is as of now, like this.
    fn verdict(self, limit: &Limit, now: Time, hits: Hits, over: bool) -> Verdict;

    /// Decides one call.
    fn decide(self, limit: &Limit, now: Time, hits: Hits) -> (Self, Verdict) {
        let counter = self.at(limit, now);
        let (spent, over) = Self::charge(limit, hits).apply(counter.spent());
        let next = counter.with_spent(spent);
        (next, next.verdict(limit, now, hits, over))
    }
}
