//! Simulates patterns of requests against limits.
//!
//! A simulation counts with the memory store that serves, at the time of each request: hours of
//! traffic take milliseconds, and the same requests get the same answers everywhere.

pub(crate) mod compared;
pub(crate) mod limits;
pub(crate) mod play;
pub(crate) mod scene;
pub(crate) mod traffic;
