//! The kinds of faults of a Redis server.

use bb8_redis::redis::{ErrorKind, RedisError};

use crate::base::named_enum::named_enum;

named_enum! {
    /// The names are the label of the metric.
    pub enum FaultKind {
        /// Connections break or cannot be made, or replies do not come.
        Unreachable = "unreachable",
        /// Redis replies with errors: out of memory, read-only, loading, no permission.
        ErrorReplies = "refusing",
        /// A key holds a value that no algorithm wrote.
        ForeignValue = "foreign_value",
        /// Replies come after the deadlines of their callers.
        Slow = "slow",
        /// Replies or heartbeats exceed their bound.
        Oversized = "oversized",
    }
}

impl FaultKind {
    /// The log messages of its start and its end.
    pub(super) fn messages(self) -> [&'static str; 2] {
        match self {
            Self::Unreachable => ["Redis unreachable", "Redis reachable again"],
            Self::ErrorReplies => ["Redis replies with errors", "Redis serves commands again"],
            Self::ForeignValue => [
                "a Redis key holds a value that is not a counter",
                "no foreign values in Redis keys any more",
            ],
            Self::Slow => ["Redis replies too late", "Redis replies in time again"],
            Self::Oversized => [
                "Redis sends too long replies or heartbeats, and is disconnected",
                "no too long replies of Redis any more",
            ],
        }
    }

    /// The kind of a failed connection, call or probe.
    pub(super) fn of_failure(error: &RedisError) -> Self {
        if error.code().is_some() || error.kind() == ErrorKind::AuthenticationFailed {
            Self::ErrorReplies
        } else {
            Self::Unreachable
        }
    }

    /// The kind of an error reply.
    pub(super) fn of_reply(text: &str) -> Self {
        // The first is Redis' own, the second the script's.
        if text.contains("WRONGTYPE") || text.contains("value is not ") {
            Self::ForeignValue
        } else {
            Self::ErrorReplies
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_no_algorithm_wrote_are_foreign() {
        for (text, expected) in [
            (
                "WRONGTYPE Operation against a key holding the wrong kind of value",
                FaultKind::ForeignValue,
            ),
            ("ERR value is not an integer or out of range", FaultKind::ForeignValue),
            ("ERR value is not a bucket", FaultKind::ForeignValue),
            ("ERR value is not a sliding window of as many buckets", FaultKind::ForeignValue),
            ("OOM command not allowed when used memory > 'maxmemory'.", FaultKind::ErrorReplies),
            ("READONLY You can't write against a read only replica.", FaultKind::ErrorReplies),
        ] {
            assert_eq!(FaultKind::of_reply(text), expected, "{text}");
        }
    }
}
