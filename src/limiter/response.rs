//! An answer in our words: what the doors turn into theirs.

use smallvec::SmallVec;

use crate::limit::{Algorithm, Limit, Months, Unit};
use crate::rules::Metadata;

/// An answer, in our words.
#[derive(Debug)]
pub struct Response {
    /// Whether the request is refused.
    pub over_limit: bool,
    /// The first descriptor that refuses it, if it is refused.
    pub refused_by: Option<usize>,
    /// It would have been, but for SHADOW_MODE.
    pub shadowed: bool,
    /// Rules that are over it let it pass, and the upstream is told to give the cheap answer.
    pub degraded: bool,
    /// One for each descriptor, in order.
    pub statuses: SmallVec<[Status; 2]>,
    /// For the client, in order.
    pub response_headers: Vec<Header>,
    /// For the upstream, in order.
    pub request_headers: Vec<Header>,
    /// What the client reads of a refusal, if a rule says so.
    pub body: Option<Box<str>>,
    /// For Envoy's filters and logs.
    pub dynamic_metadata: Option<Metadata>,
}

/// What is said of one descriptor.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Status {
    /// Over its limit.
    pub over_limit: bool,
    /// The limit, if one was counted.
    pub limit: Option<StatusLimit>,
    /// How many more would pass now.
    pub remaining: u32,
    /// When over: whole seconds after which the same call would pass. Else: after which nothing is
    /// left of what was used. At least 1.
    pub reset_secs: u64,
}

/// A limit as it is told to Envoy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusLimit {
    /// How many in a period.
    pub requests: u32,
    /// The unit that is the period, if one is.
    pub unit: Option<Unit>,
    /// The period in whole seconds. `None` for what is held at once, and for calendar months,
    /// whose lengths differ.
    pub period_secs: Option<u64>,
    /// The rule's name; may be empty.
    pub name: Box<str>,
}

/// A header for Envoy to add.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Name.
    pub name: Box<str>,
    /// Value.
    pub value: String,
}

impl StatusLimit {
    /// A limit under the name of its rule.
    pub fn new(limit: &Limit, name: &str) -> Self {
        let has_one_length =
            limit.algorithm() != Algorithm::Concurrency && limit.months() == Months::ThirtyDays;
        let period_secs = has_one_length.then(|| limit.period().ceil_secs());
        Self {
            requests: limit.requests(),
            unit: limit.unit(),
            period_secs,
            name: name.into(),
        }
    }
}
