//! The log messages about faults of Redis.

/// Connections break, or no reply comes.
pub(crate) const UNREACHABLE: &str = "Redis unreachable";
pub(crate) const ERROR_REPLIES: &str = "Redis replies with errors";
/// A value of another program.
pub(crate) const FOREIGN: &str = "a Redis key holds a value that is not a counter";
/// Replies come after the deadlines of their callers.
pub(crate) const SLOW: &str = "Redis replies too late";
pub(crate) const DISCOVERY_FAILED: &str = "Redis topology discovery failed";

/// All faults of one server.
pub(crate) const FAULTS: [&str; 4] = [UNREACHABLE, ERROR_REPLIES, FOREIGN, SLOW];

/// Whether a line about a fault reports its end.
pub(crate) fn is_end(line: &str) -> bool {
    line.contains("recovered: ") || line.contains("fault cleared: ")
}
