//! What limits admit of a pattern of requests.
//!
//! It counts with the memory store that serves, and passes it the time of each request: hours of
//! traffic take milliseconds, and the same requests get the same answers everywhere.

pub(crate) mod limits;
pub(crate) mod play;
pub(crate) mod traffic;
