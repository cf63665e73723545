//! The algorithms, and whether hits over the limit count.

use std::fmt;

use crate::base::named_enum::named_enum;

named_enum! {
    /// The values of the `algorithm` key, which counter keys contain.
    pub enum Algorithm {
        /// At most N per window aligned to the epoch.
        FixedWindow = "fixed_window",
        /// At most N per window, plus a fading part of the window before. With `buckets`: at most N
        /// in any period.
        SlidingWindow = "sliding_window",
        /// Exactly at most N in any period.
        SlidingLog = "sliding_log",
        /// At most `burst` + N·t/period in any interval t.
        TokenBucket = "token_bucket",
        /// A token bucket with a default burst of 1: an even flow.
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

named_enum! {
    /// Options of a limit besides its rate, by their keys in rules files, in the order in which
    /// they are shown.
    pub enum LimitOption {
        /// Units in the period; 1 if not set.
        UnitMultiplier = "unit_multiplier",
        /// The most hits at once.
        Burst = "burst",
        /// Sub-windows; none if not set.
        Buckets = "buckets",
        /// The key whose value names a holder; required.
        LeaseBy = "lease_by",
        /// When a slot that was not released expires; required.
        Lease = "lease",
        /// See [`OverLimitHits`].
        OverLimitHits = "over_limit_hits",
        /// Windows that begin at a local time; aligned to the epoch without.
        Calendar = "calendar",
        /// The longest time in the queue; without one nothing is queued.
        MaxWait = "max_wait",
    }
}

impl Algorithm {
    /// Whether a rule with this algorithm may have the option.
    pub fn takes(self, option: LimitOption) -> bool {
        match option {
            LimitOption::UnitMultiplier | LimitOption::OverLimitHits => !self.counts_holders(),
            LimitOption::Burst | LimitOption::MaxWait => self.is_bucket(),
            LimitOption::Buckets => self == Self::SlidingWindow,
            LimitOption::LeaseBy | LimitOption::Lease => self.counts_holders(),
            LimitOption::Calendar => self.has_windows(),
        }
    }

    /// The burst of a bucket that states none: a number, or that of the requests.
    pub const fn default_burst(self) -> Option<u32> {
        match self {
            Self::LeakyBucket => Some(1),
            _ => None,
        }
    }

    /// The value for rules that do not set it.
    pub const fn default_over_limit_hits(self) -> OverLimitHits {
        match self {
            Self::FixedWindow => OverLimitHits::Count,
            _ => OverLimitHits::Drop,
        }
    }

    /// Whether each window, aligned to the epoch, has a counter.
    pub const fn has_windows(self) -> bool {
        matches!(self, Self::FixedWindow)
    }

    /// Whether the algorithm is a bucket, which has a burst and can queue.
    pub const fn is_bucket(self) -> bool {
        matches!(self, Self::TokenBucket | Self::LeakyBucket)
    }

    /// Whether holders are counted, each known by name. Such a limit has a lease and no period.
    pub const fn counts_holders(self) -> bool {
        matches!(self, Self::Concurrency)
    }
}

impl LimitOption {
    /// Why a rule with this algorithm cannot have it, and what to write instead.
    pub fn misplaced(self, algorithm: Algorithm) -> String {
        let (users, other) = match self {
            Self::Burst => ("buckets", Algorithm::TokenBucket),
            Self::Buckets => ("sliding_window", Algorithm::SlidingWindow),
            Self::Calendar => ("fixed_window", Algorithm::FixedWindow),
            Self::LeaseBy => ("concurrency", Algorithm::Concurrency),
            Self::MaxWait => {
                return format!(
                    "max_wait is only for buckets, not for {algorithm}; write algorithm: leaky_bucket, or on_limit: reject"
                );
            }
            Self::Lease => {
                return "lease is the time until what is held returns, only for algorithm: concurrency and consistency: leased; remove it, or write one of these beside it".to_owned();
            }
            Self::UnitMultiplier => {
                return format!(
                    "unit_multiplier is not for {algorithm}, which has no period but its lease; remove it"
                );
            }
            Self::OverLimitHits => {
                return format!(
                    "over_limit_hits: count is not for {algorithm}, where a request over the limit holds no slot; remove it"
                );
            }
        };
        let option = self.name();
        format!(
            "{option} is only for {users}, not for {algorithm}; remove it, or write algorithm: {other}"
        )
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
