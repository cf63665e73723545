//! Why a request gets an error instead of a response, and the limits on its size.

use crate::check::StoreError;
use crate::rules::plan::InvalidRequest;
use crate::rules::query::Query;

/// Descriptors of one request, counted before decoding. Envoys send a handful; a thousand take a
/// millisecond.
// bound descriptors_max: INVALID_ARGUMENT; 400; tollgate_invalid_requests_total
pub const DESCRIPTORS_MAX: usize = 1_000;
/// Entries of all descriptors of one request: ten for each of a thousand descriptors.
// bound entries_max: INVALID_ARGUMENT; 400; tollgate_invalid_requests_total
pub const ENTRIES_MAX: usize = 10_000;

/// Why a request has no response. The first three have the texts and the code (UNKNOWN) of
/// envoyproxy/ratelimit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimiterError {
    /// The domain is empty.
    #[error("rate limit domain must not be empty")]
    NoDomain,
    /// The request has no descriptors.
    #[error("rate limit descriptor list must not be empty")]
    NoDescriptors,
    /// No rules were loaded yet.
    #[error("no rate limit configuration loaded")]
    NoRules,
    /// INVALID_ARGUMENT.
    #[error(
        "more than the {DESCRIPTORS_MAX} descriptors that one request may have (descriptors_max)"
    )]
    TooManyDescriptors,
    /// INVALID_ARGUMENT.
    #[error("more than the {ENTRIES_MAX} entries that one request may have (entries_max)")]
    TooManyEntries,
    /// INVALID_ARGUMENT. envoyproxy/ratelimit crashes on an unknown unit.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// UNAVAILABLE: the store gave no verdict on a check whose `on_store_error` is `error`.
    #[error("{0}, and on_store_error is error")]
    Store(#[from] StoreError),
}

/// Checks what a request needs whatever the rules are.
///
/// # Errors
/// No domain, no descriptors, or too many descriptors.
pub fn validate(query: &Query<'_>) -> Result<(), LimiterError> {
    match query.descriptors.len() {
        _ if query.domain.is_empty() => Err(LimiterError::NoDomain),
        0 => Err(LimiterError::NoDescriptors),
        1..=DESCRIPTORS_MAX => Ok(()),
        _ => Err(LimiterError::TooManyDescriptors),
    }
}
