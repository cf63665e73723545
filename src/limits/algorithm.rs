//! The algorithms that count hits. Pure: a counter's state and the time go in, the new state and a
//! verdict come out.
//!
//! Returning the new state, instead of changing it in place, makes all-or-nothing simple: decide
//! over scratch states, and keep them unless an enforcing check is over limit.
//!
//! Each algorithm has two implementations: `x.rs` counts in this process, and its twin `x.lua` in
//! Redis, where numbers are doubles. Both compute in whole numbers below 2^53 and agree exactly;
//! tests compare them. The twin does only what must be atomic: it loads, charges, keeps and replies
//! what is spent. The verdict is computed in Rust for both.

pub use all_or_nothing::decide_all_or_nothing;
pub use counter::Counter;
pub use decide::Decide;

pub mod all_or_nothing;
pub mod bucket;
pub mod charge;
pub mod concurrency;
pub mod counter;
mod decide;
pub mod fixed_window;
pub mod lease;
pub mod sliding_log;
pub mod sliding_window;
pub mod sub_windows;
