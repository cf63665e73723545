//! The algorithms, and whether hits over the limit count.

use std::fmt;

/// The values of the `algorithm` key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// At most N per window aligned to the epoch.
    FixedWindow,
    /// The same, plus a fading part of the window before. With `buckets`: at most N in any period.
    SlidingWindow,
    /// Exactly at most N in any period.
    SlidingLog,
    /// At most `burst` + N·t/period in any interval t.
    TokenBucket,
    /// The same with a default burst of 1: an even flow.
    LeakyBucket,
    /// At most N holders at once, each known by name.
    Concurrency,
}

/// Whether hits over the limit consume quota: the values of `over_limit_hits`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OverLimitHits {
    /// They do: for costs that are only known afterwards.
    Count,
    /// They do not.
    Drop,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::FixedWindow,
        Self::SlidingWindow,
        Self::SlidingLog,
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::Concurrency,
    ];

    /// As rules and counter keys write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed_window",
            Self::SlidingWindow => "sliding_window",
            Self::SlidingLog => "sliding_log",
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket => "leaky_bucket",
            Self::Concurrency => "concurrency",
        }
    }

    /// Whether it is a bucket, which has a burst and can queue.
    pub const fn is_bucket(self) -> bool {
        matches!(self, Self::TokenBucket | Self::LeakyBucket)
    }

    /// The algorithm of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|algorithm| algorithm.name() == name)
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

impl OverLimitHits {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Count, Self::Drop];

    /// As rules write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Drop => "drop",
        }
    }

    /// The value of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|value| value.name() == name)
    }
}
