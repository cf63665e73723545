//! The algorithms, and whether hits over the limit count.

use std::fmt;

use crate::named_enum::named_enum;

named_enum! {
    /// The values of the `algorithm` key, which counter keys contain.
    pub enum Algorithm {
        /// At most N per window aligned to the epoch.
        FixedWindow = "fixed_window",
        /// The same, plus a fading part of the window before. With `buckets`: at most N in any period.
        SlidingWindow = "sliding_window",
        /// Exactly at most N in any period.
        SlidingLog = "sliding_log",
        /// At most `burst` + N·t/period in any interval t.
        TokenBucket = "token_bucket",
        /// The same with a default burst of 1: an even flow.
        LeakyBucket = "leaky_bucket",
        /// At most N holders at once, each known by name.
        Concurrency = "concurrency",
    }
}

named_enum! {
    /// Whether hits over the limit consume quota: the values of `over_limit_hits`.
    pub enum OverLimitHits {
        /// They do: for costs that are only known afterwards.
        Count = "count",
        /// They do not.
        Drop = "drop",
    }
}

impl Algorithm {
    /// Whether it is a bucket, which has a burst and can queue.
    pub const fn is_bucket(self) -> bool {
        matches!(self, Self::TokenBucket | Self::LeakyBucket)
    }

    /// For rules that do not set it.
    pub const fn default_over_limit_hits(self) -> OverLimitHits {
        match self {
            Self::FixedWindow => OverLimitHits::Count,
            Self::SlidingWindow
            | Self::SlidingLog
            | Self::TokenBucket
            | Self::LeakyBucket
            | Self::Concurrency => OverLimitHits::Drop,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
