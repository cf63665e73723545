//! What a response contains besides the verdict, as settings say.

use crate::limiter::over_limit_log;
use crate::rules::plan::Modes;
use crate::time::Span;

/// The contents of responses, and what is logged.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    /// Global modes.
    pub modes: Modes,
    /// Hits above this part of a limit count as near it.
    pub near_limit_ratio: f32,
    /// Names of the response headers of envoyproxy/ratelimit; `None` disables them.
    pub reference_headers: Option<HeaderNames>,
    /// Names of the same headers on the request to the upstream; `None` disables them.
    pub reference_request_headers: Option<HeaderNames>,
    /// Adds the IETF draft's `RateLimit-Policy` and `RateLimit`.
    pub ietf_headers: bool,
    /// Adds `Retry-After` to responses of OVER_LIMIT.
    pub retry_after_header: bool,
    /// The most that `Retry-After` is lengthened by, in whole seconds.
    pub retry_after_jitter: Span,
    /// Adds the request and the metadata of its rules as dynamic metadata.
    pub dynamic_metadata: bool,
    /// Which responses of OVER_LIMIT are logged.
    pub over_limit_log: over_limit_log::Options,
}

/// Names of the three headers of envoyproxy/ratelimit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderNames {
    /// Header with the limit.
    pub limit: Box<str>,
    /// Header with the remaining hits.
    pub remaining: Box<str>,
    /// Header with the seconds until the reset.
    pub reset: Box<str>,
}
