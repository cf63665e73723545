//! The response to a request, before `api` converts it to protobuf or JSON.

use smallvec::SmallVec;

use crate::limits::Limit;
use crate::rules::Metadata;

/// The response to a request.
#[derive(Debug)]
pub struct Response {
    /// OVER_LIMIT rather than OK.
    pub over_limit: bool,
    /// The first descriptor that makes the response OVER_LIMIT.
    pub rejected_by: Option<usize>,
    /// Over limit, but admitted by SHADOW_MODE.
    pub shadowed: bool,
    /// Over limit, but admitted by rules that degrade.
    pub degraded: bool,
    /// A status for each descriptor, in order.
    pub statuses: SmallVec<[Status; 2]>,
    /// Headers for the client, in order.
    pub response_headers: Vec<Header>,
    /// Headers for the upstream, in order.
    pub request_headers: Vec<Header>,
    /// The body for the client, if a rejecting rule has one.
    pub body: Option<Box<str>>,
    /// For Envoy's filters and access logs.
    pub dynamic_metadata: Option<Metadata>,
}

/// The status of one descriptor.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Status {
    /// Over its limit.
    pub over_limit: bool,
    /// The limit, if one was counted, and the name of its rule, which may be empty.
    pub limit: Option<(Limit, Box<str>)>,
    /// Hits that would be admitted now.
    pub remaining: u64,
    /// When over limit, seconds until the same hits would be admitted; else until nothing is used.
    /// At least 1.
    pub reset_secs: u64,
}

/// Name and value of a header for Envoy to add.
pub type Header = (Box<str>, String);
