//! How long a replica may keep hits of a limit that it has taken ahead, and in which windows it can
//! use them.

use crate::base::time::{Span, Time};
use crate::limit::algorithm::Algorithm;
use crate::limit::validated::Limit;

/// The shortest default lifetime: shorter leases would save few calls.
const DEFAULT_LIFETIME_MIN: Span = Span::from_micros(100_000);
/// The longest default lifetime: how long other replicas may be over limit because of unused hits.
const DEFAULT_LIFETIME_MAX: Span = Span::from_secs(2);
/// The shortest lifetime of a lease.
pub const LIFETIME_MIN: Span = Span::from_micros(20_000);
/// The longest lifetime of a lease.
// bound lease_max: the rule is rejected when loaded; ratelimit_service_config_load_error
pub const LIFETIME_MAX: Span = Span::from_secs(60);
/// The shortest sub-window with leases: hits are usable only in the sub-window they are charged to.
pub const SUB_WINDOW_MIN: Span = Span::from_secs(1);

/// The times of the leases of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTerms {
    /// Time until unused hits are given back.
    pub lifetime: Span,
    /// The time that the limit is about: the window, the sub-window, or the time in which an empty
    /// bucket refills.
    pub horizon: Span,
}

impl LeaseTerms {
    /// Terms with a stated or the default lifetime, which is at most half of the horizon. `None` if
    /// hits of the limit cannot be taken ahead.
    pub fn new(limit: &Limit, lifetime: Option<Span>) -> Option<Self> {
        let horizon = horizon(limit)?;
        let tenth = Span::from_micros(horizon.as_micros() / 10);
        let lifetime = lifetime.unwrap_or(tenth.clamp(DEFAULT_LIFETIME_MIN, DEFAULT_LIFETIME_MAX));
        let half = Span::from_micros(horizon.as_micros() / 2);
        let lifetime = lifetime.clamp(LIFETIME_MIN, LIFETIME_MAX.min(half).max(LIFETIME_MIN));
        Some(Self { lifetime, horizon })
    }

    /// The time whose demand one take covers.
    pub fn span(&self) -> Span {
        Span::from_micros(self.lifetime.as_micros() / 2)
    }
}

/// `None` if hits of the limit cannot be taken ahead.
fn horizon(limit: &Limit) -> Option<Span> {
    match limit.algorithm {
        _ if limit.requests == 0 || limit.max_wait > Span::ZERO => None,
        Algorithm::FixedWindow => Some(limit.period),
        Algorithm::SlidingWindow => {
            let width = limit.sub_window();
            (limit.buckets == 0 || width >= SUB_WINDOW_MIN).then_some(width)
        }
        Algorithm::TokenBucket => {
            let micros = u128::from(limit.period.as_micros()) * u128::from(limit.capacity)
                / u128::from(limit.requests);
            Some(Span::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)))
        }
        Algorithm::SlidingLog | Algorithm::LeakyBucket | Algorithm::Concurrency => None,
    }
}

impl Limit {
    /// The length of a sub-window, rounded up so that all of them are never shorter than the
    /// period; without sub-windows the period.
    pub fn sub_window(&self) -> Span {
        let buckets = u64::from(self.buckets.max(1));
        Span::from_micros(self.period.as_micros().div_ceil(buckets))
    }

    /// The time from which and until which hits that are charged at `now` can be used: their window
    /// or sub-window. Hits of a bucket can be used at any time.
    pub fn usable(&self, now: Time) -> (Time, Time) {
        match self.algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                (Time::from_micros(0), Time::from_micros(u64::MAX))
            }
            Algorithm::SlidingWindow => {
                let width = self.sub_window();
                let index = now.as_micros() / width.as_micros();
                let start = Time::from_micros(index * width.as_micros());
                (start, start.plus(width))
            }
            _ => {
                let window = self.window(now);
                (window.start, window.end)
            }
        }
    }
}
