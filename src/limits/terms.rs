//! The terms of a limit as a rule states them, and why they may be invalid.

use crate::base::time::Span;
use crate::limits::named_algorithm::{Algorithm, LimitOption, OverLimitHits};
use crate::limits::unit::Unit;
use crate::limits::windows::Windows;

/// Period of a limit; longer ones are typing errors.
pub(super) const PERIOD_MAX: Span = Span::from_secs(100 * 365 * 86_400);

/// Sub-windows of a sliding window. More would be a log.
pub const BUCKETS_MAX: u32 = 100;

/// Holders of a key. Each is stored by name, and all of them must fit into one shard of a memory
/// store of ordinary size.
pub const HOLDERS_MAX: u64 = 30_000;

/// The limit that a rule states, not validated.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Per period. Zero rejects every hit.
    pub requests: u64,
    /// The unit of the period.
    pub unit: Unit,
    /// Units in the period.
    pub unit_multiplier: u32,
    /// Where the windows of a fixed window begin, if they have such periods.
    pub windows: Windows,
    /// See [`Algorithm`].
    pub algorithm: Algorithm,
    /// Only for buckets; by default `requests` for a token bucket and 1 for a leaky one.
    pub burst: Option<u32>,
    /// Only for sliding windows: the number of sub-windows.
    pub buckets: Option<u32>,
    /// Whether it is decided in one step with other limits: see [`Limit::chained`].
    ///
    /// [`Limit::chained`]: crate::limits::Limit::chained
    pub chained: bool,
    /// By default that of the algorithm.
    pub over_limit_hits: Option<OverLimitHits>,
    /// Only for buckets: the longest that a request waits in the queue.
    pub max_wait: Option<Span>,
    /// Only for concurrency, which needs it: when a slot that was not released expires.
    pub lease: Option<Span>,
}

/// Why terms make no valid limit. Each message says what to write instead.
#[expect(missing_docs, reason = "the messages describe the variants")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    #[error("unit_multiplier must be at least 1")]
    PeriodZero,
    #[error(
        "a period of {unit_multiplier} × {unit} is longer than 100 years; write a smaller unit_multiplier"
    )]
    PeriodTooLong { unit_multiplier: u32, unit: Unit },
    #[error("{}", option.misplaced(*algorithm))]
    Misplaced { option: LimitOption, algorithm: Algorithm },
    #[error(
        "a burst of 0 would reject every request; write at least 1, or requests_per_unit: 0 if that is intended"
    )]
    BurstZero,
    #[error(
        "a burst of {burst} over {period} cannot be counted exactly; the largest that can is {burst_max}"
    )]
    BurstTooLarge { burst: u64, period: Span, burst_max: u64 },
    #[error("an amount of {requests} is too large for {algorithm}; the largest is {requests_max}")]
    AmountTooLarge { requests: u64, algorithm: Algorithm, requests_max: u64 },
    #[error(
        "a sliding_window of {requests} over {period} cannot be counted exactly; the largest that can is {requests_max}"
    )]
    RequestsTooLarge { requests: u64, period: Span, requests_max: u64 },
    #[error(
        "a sliding_window has from 1 to {BUCKETS_MAX} buckets, not {0}; write algorithm: sliding_log to count every call"
    )]
    BucketsOutOfRange(u32),
    #[error("max_wait must be from 1ms to 1h, not {0}; Envoy needs a longer timeout than that")]
    MaxWaitOutOfRange(Span),
    #[error(
        "concurrency needs a lease, after which a slot that was not released expires; write one that is longer than any request, such as lease: 30s"
    )]
    NoLease,
    #[error(
        "a lease of {0} is out of range; write one that is longer than any request, such as lease: 30s"
    )]
    LeaseOutOfRange(Span),
    #[error("a concurrency of {0} is more than {HOLDERS_MAX} holders (holders_max)")]
    TooManyHolders(u64),
}

impl Terms {
    /// Terms with defaults for everything else.
    pub const fn new(requests: u64, unit: Unit, algorithm: Algorithm) -> Self {
        Self {
            requests,
            unit,
            unit_multiplier: 1,
            windows: Windows::Aligned,
            chained: false,
            algorithm,
            burst: None,
            buckets: None,
            over_limit_hits: None,
            max_wait: None,
            lease: None,
        }
    }

    pub(super) fn period(&self) -> Result<Span, LimitError> {
        let unit = self.unit;
        let unit_multiplier = self.unit_multiplier;
        let unit_micros = unit.span().as_micros();
        let period = Span::from_micros(unit_micros.saturating_mul(unit_multiplier.into()));
        match unit_multiplier {
            0 => Err(LimitError::PeriodZero),
            _ if period > PERIOD_MAX => Err(LimitError::PeriodTooLong { unit_multiplier, unit }),
            _ => Ok(period),
        }
    }

    /// Rejects options of other algorithms.
    pub(super) fn check_options(&self) -> Result<(), LimitError> {
        let algorithm = self.algorithm;
        let counts_over_limit = self.over_limit_hits == Some(OverLimitHits::Count);
        let stated = [
            (LimitOption::Burst, self.burst.is_some()),
            (LimitOption::MaxWait, self.max_wait.is_some()),
            (LimitOption::Buckets, self.buckets.is_some()),
            (LimitOption::Lease, self.lease.is_some()),
            (LimitOption::OverLimitHits, counts_over_limit),
        ];
        let mut stated = stated.into_iter();
        match stated.find(|(option, is_stated)| *is_stated && !algorithm.takes(*option)) {
            Some((option, _)) => Err(LimitError::Misplaced { option, algorithm }),
            None => Ok(()),
        }
    }
}
