//! How hits are counted. Pure: a counter's state and the time go in, the new state and a verdict come out.
//!
//! Giving the new state back, rather than changing it in place, is what makes all-or-nothing simple: decide over scratch states, and
//! keep them if nobody vetoes. Every algorithm computes in whole numbers below 2^53, because a twin of it in Lua, where numbers are
//! doubles, is to agree with it to the last digit.

use crate::check::{Hits, Verdict};
use crate::limit::Limit;
use crate::time::Time;

pub mod bucket;
pub mod counter;
pub mod fixed_window;
pub mod together;

pub use counter::Counter;
pub use together::decide_together;

/// A counter that can decide. `Default` is the state of a counter that nobody has touched.
pub trait Decide: Sized + Default {
    /// Decides one call. `limit` must be one of this algorithm.
    fn decide(self, limit: &Limit, now: Time, hits: Hits) -> (Self, Verdict);
}
