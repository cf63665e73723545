//! How long a replica may keep hits of a limit that it has taken ahead, and in which windows it can
//! use them.

use crate::base::named_enum::named_enum;
use crate::base::time::{Span, Time};
use crate::limits::named_algorithm::{Algorithm, OverLimitHits};
use crate::limits::terms::Terms;
use crate::limits::validated::Limit;
use crate::limits::windows::Windows;

/// The shortest default lifetime: shorter leases would save few calls.
const SHORTEST_DEFAULT: Span = Span::from_micros(100_000);
/// The longest default lifetime: how long other replicas may be over limit because of unused hits.
const LONGEST_DEFAULT: Span = Span::from_secs(2);
/// The shortest lifetime of a lease.
pub const LIFETIME_MIN: Span = Span::from_micros(20_000);
/// The longest lifetime of a lease.
pub const LIFETIME_MAX: Span = Span::from_secs(60);
/// The shortest sub-window with leases: hits are usable only in the sub-window they are charged to.
pub const SUB_WINDOW_MIN: Span = Span::from_secs(1);

named_enum! {
    /// Whether hits of a limit may be taken ahead: the values of `consistency`.
    pub enum Consistency {
        /// The store decides each call.
        Exact = "exact",
        /// Replicas take hits of hot counters ahead.
        Leased = "leased",
    }
}

/// The smallest limit with leases, for each replica: a fifteenth of it is two hits, the smallest
/// take.
pub const LEASED_LIMIT_MIN: u64 = 30;

/// The times of the leases of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTerms {
    /// Time until unused hits are given back.
    pub lifetime: Span,
    /// The time that the limit is about: the window, the sub-window, or the time in which an empty
    /// bucket refills.
    pub horizon: Span,
}

/// Why hits of a limit cannot be taken ahead, or not for the stated time. Each message says what to
/// write instead.
#[expect(missing_docs, reason = "the messages describe the variants")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    #[error("consistency: leased is not for {0}")]
    NotFor(&'static str),
    #[error("consistency: leased is not for a limit of 0, which has no hits; write exact")]
    NoHits,
    #[error(
        "a lease of {stated} is out of range; write one from {LIFETIME_MIN} to {max}, at most half of the window or of the time in which the bucket refills"
    )]
    OutOfRange { stated: Span, max: Span },
}

impl LeaseTerms {
    /// Terms with a stated or the default lifetime, which is at most half of the horizon. `None` if
    /// hits of the limit cannot be taken ahead.
    pub fn new(limit: &Limit, lifetime: Option<Span>) -> Option<Self> {
        let horizon = horizon(limit).ok()?;
        let tenth = Span::from_micros(horizon.as_micros() / 10);
        let lifetime = lifetime.unwrap_or(tenth.clamp(SHORTEST_DEFAULT, LONGEST_DEFAULT));
        let lifetime = lifetime.clamp(LIFETIME_MIN, lifetime_max(horizon));
        Some(Self { lifetime, horizon })
    }

    /// Whether a rule with this limit, which was made from `terms`, can have leases, with a stated
    /// lifetime if there is one.
    ///
    /// # Errors
    /// The first reason why not.
    pub fn check(terms: &Terms, limit: &Limit, lifetime: Option<Span>) -> Result<(), LeaseError> {
        if terms.over_limit_hits == Some(OverLimitHits::Count) {
            return Err(LeaseError::NotFor(
                "over_limit_hits: count, because over-limit hits would be counted only sometimes; remove that, or write consistency: exact",
            ));
        }
        let max = lifetime_max(horizon(limit)?);
        match lifetime {
            Some(stated) if !(LIFETIME_MIN..=max).contains(&stated) => {
                Err(LeaseError::OutOfRange { stated, max })
            }
            _ => Ok(()),
        }
    }

    /// The time whose demand one take covers.
    pub fn span(&self) -> Span {
        Span::from_micros(self.lifetime.as_micros() / 2)
    }
}

impl Algorithm {
    /// Why hits of no limit with this algorithm can be taken ahead.
    pub const fn lease_error(self) -> Option<LeaseError> {
        Some(LeaseError::NotFor(match self {
            Self::FixedWindow | Self::SlidingWindow | Self::TokenBucket => return None,
            Self::SlidingLog => {
                "sliding_log, where each hit needs its own time; write algorithm: sliding_window with buckets, or consistency: exact"
            }
            Self::LeakyBucket => {
                "leaky_bucket, an even flow, because a lease hands out several hits at once; write algorithm: token_bucket with a burst, or consistency: exact"
            }
            Self::Concurrency => {
                "concurrency, where a slot belongs to one holder by name; write consistency: exact"
            }
        }))
    }
}

/// The horizon, or why hits of the limit cannot be taken ahead.
fn horizon(limit: &Limit) -> Result<Span, LeaseError> {
    if let Some(error) = limit.algorithm.lease_error() {
        return Err(error);
    }
    if limit.max_wait > Span::ZERO {
        return Err(LeaseError::NotFor(
            "on_limit: queue, where slots are booked in one order for all replicas; write consistency: exact, or on_limit: reject",
        ));
    }
    if limit.requests == 0 {
        return Err(LeaseError::NoHits);
    }
    if limit.algorithm.is_bucket() {
        let micros = u128::from(limit.period.as_micros()) * u128::from(limit.capacity)
            / u128::from(limit.requests);
        return Ok(Span::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)));
    }
    let width = limit.sub_window();
    if limit.buckets > 0 && width < SUB_WINDOW_MIN {
        return Err(LeaseError::NotFor(
            "sub-windows below 1 s, because a lease ends with its sub-window; write fewer buckets, or consistency: exact",
        ));
    }
    Ok(width)
}

/// The longest lifetime that can be stated.
fn lifetime_max(horizon: Span) -> Span {
    let half = Span::from_micros(horizon.as_micros() / 2);
    half.clamp(LIFETIME_MIN, LIFETIME_MAX)
}

impl Limit {
    /// The most hits that all replicas together hold unused.
    pub const fn held_max(&self) -> u64 {
        self.capacity / 10
    }

    /// The length of a sub-window, rounded up so that all of them are never shorter than the
    /// period; without sub-windows the period.
    pub fn sub_window(&self) -> Span {
        let buckets = u64::from(self.buckets.max(1));
        Span::from_micros(self.period.as_micros().div_ceil(buckets))
    }

    /// The time from which and until which hits that are charged at `now` can be used: their window
    /// or sub-window. Hits of a bucket can be used at any time.
    pub fn usable(&self, now: Time) -> (Time, Time) {
        let window = match self.algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                return (Time::from_micros(0), Time::from_micros(u64::MAX));
            }
            Algorithm::SlidingWindow => Windows::Aligned.at(self.sub_window(), now),
            _ => self.window(now),
        };
        (window.start, window.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::unit::Unit;

    fn terms(requests: u64, unit: Unit, algorithm: Algorithm) -> Terms {
        Terms::new(requests, unit, algorithm)
    }

    #[test]
    fn default_lifetime_is_a_tenth_of_the_horizon_from_100_ms_to_2_s() {
        let bucket = |burst| Terms {
            burst: Some(burst),
            ..terms(100, Unit::Second, Algorithm::TokenBucket)
        };
        let sliding =
            |buckets| Terms { buckets, ..terms(100, Unit::Minute, Algorithm::SlidingWindow) };
        for (terms, lifetime_ms, horizon_ms) in [
            (terms(100, Unit::Second, Algorithm::FixedWindow), 100, 1_000),
            (terms(100, Unit::Hour, Algorithm::FixedWindow), 2_000, 3_600_000),
            (sliding(None), 2_000, 60_000),
            (sliding(Some(6)), 1_000, 10_000),
            (bucket(1_500), 1_500, 15_000),
            (bucket(50), 100, 500),
            // Never more than half of the horizon, unless that is below 20 ms.
            (bucket(10), 50, 100),
            (bucket(1), 20, 10),
        ] {
            let limit = Limit::new(&terms).expect("a limit");
            let lease = LeaseTerms::new(&limit, None).expect("it can be leased");
            let millis = [lease.lifetime, lease.horizon].map(|span| span.as_micros() / 1_000);
            assert_eq!(millis, [lifetime_ms, horizon_ms], "{limit}");
            assert_eq!(LeaseTerms::check(&terms, &limit, Some(lease.lifetime)), Ok(()));
        }
    }

    #[test]
    fn a_stated_lifetime_is_for_the_limits_that_it_fits() {
        let minute = terms(100, Unit::Minute, Algorithm::FixedWindow);
        let limit = Limit::new(&minute).expect("a limit");
        for (millis, is_valid) in
            [(0, false), (19, false), (20, true), (30_000, true), (30_001, false)]
        {
            let lifetime = Some(Span::from_micros(millis * 1_000));
            let checked = LeaseTerms::check(&minute, &limit, lifetime);
            assert_eq!(checked.is_ok(), is_valid, "{millis} ms: {checked:?}");
            // A limit in a request may have another period than its rule.
            let lease = LeaseTerms::new(&limit, lifetime).expect("it can be leased");
            assert_eq!(Some(lease.lifetime) == lifetime, is_valid);
        }
        let hour = Limit::new(&terms(100, Unit::Hour, Algorithm::FixedWindow)).expect("a limit");
        let longest = LeaseTerms::new(&hour, Some(Span::from_secs(90)));
        assert_eq!(longest.map(|lease| lease.lifetime), Some(LIFETIME_MAX));
    }
}
