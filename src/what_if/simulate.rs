//! What limits admit of patterns of requests.
//!
//! It counts with the memory store that serves, and passes it the time of each request: hours of
//! traffic take milliseconds, and the same requests get the same answers everywhere.

pub(crate) mod compared;
pub(crate) mod limits;
pub(crate) mod play;
pub(crate) mod scene;
pub(crate) mod traffic;
