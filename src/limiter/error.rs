//! Why a request gets an error instead of a response.

use crate::limits::check::StoreError;
use crate::rules::plan::InvalidRequest;
use crate::rules::query::Query;

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
/// No domain, or no descriptors.
pub fn validate(query: &Query<'_>) -> Result<(), LimiterError> {
    if query.domain.is_empty() {
        return Err(LimiterError::NoDomain);
    }
    if query.descriptors.is_empty() {
        return Err(LimiterError::NoDescriptors);
    }
    Ok(())
}
