//! Why terms make no valid limit. Each message says what to write instead.

use crate::limit::algorithm::Algorithm;
use crate::limit::terms::{BUCKETS_MAX, HOLDERS_MAX};
use crate::limit::unit::Unit;
use crate::time::Span;

/// Terms that make no valid limit.
#[expect(missing_docs, reason = "the messages describe the variants")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    #[error("unit_multiplier must be at least 1")]
    PeriodZero,
    #[error(
        "a period of {unit_multiplier} × {unit} is longer than 100 years; write a smaller unit_multiplier"
    )]
    PeriodTooLong { unit_multiplier: u32, unit: Unit },
    #[error("burst is only for buckets, not for {0}; remove it, or write algorithm: token_bucket")]
    BurstWithoutBucket(Algorithm),
    #[error(
        "a burst of 0 would reject every request; write at least 1, or requests_per_unit: 0 if that is intended"
    )]
    BurstZero,
    #[error(
        "a burst of {burst} over {period} cannot be counted exactly; the largest that can is {burst_max}"
    )]
    BurstTooLarge {
        burst: u32,
        period: Span,
        burst_max: u64,
    },
    #[error(
        "a sliding_window of {requests} over {period} cannot be counted exactly; the largest that can is {requests_max}"
    )]
    RequestsTooLarge {
        requests: u32,
        period: Span,
        requests_max: u64,
    },
    #[error(
        "buckets is only for sliding_window, not for {0}; remove it, or write algorithm: sliding_window"
    )]
    BucketsWithoutSlidingWindow(Algorithm),
    #[error(
        "a sliding_window has from 1 to {BUCKETS_MAX} buckets, not {0}; write algorithm: sliding_log to count every call"
    )]
    BucketsOutOfRange(u32),
    #[error(
        "max_wait is only for buckets, not for {0}; write algorithm: leaky_bucket, or on_limit: reject"
    )]
    MaxWaitWithoutBucket(Algorithm),
    #[error("max_wait must be from 1ms to 1h, not {0}; Envoy needs a longer timeout than that")]
    MaxWaitOutOfRange(Span),
    #[error(
        "lease is only for concurrency, not for {0}; remove it, or write algorithm: concurrency"
    )]
    LeaseWithoutConcurrency(Algorithm),
    #[error(
        "concurrency needs a lease, after which a slot that was not released expires; write one that is longer than any request, such as lease: 30s"
    )]
    NoLease,
    #[error(
        "a lease of {0} is out of range; write one that is longer than any request, such as lease: 30s"
    )]
    LeaseOutOfRange(Span),
    #[error(
        "over_limit_hits: count is not for concurrency, where a request over the limit holds no slot; remove it"
    )]
    CountedHolders,
    #[error("a concurrency of {0} is more than {HOLDERS_MAX} holders (holders_max)")]
    TooManyHolders(u32),
}
