//! A descriptor as decided.

use std::sync::Arc;

use crate::base::time::Span;
use crate::limits::Limit;
use crate::limits::check::Source;

/// A descriptor of a request as one rule set decided it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome {
    /// The path of its rule; `None` if no rule applies.
    pub(crate) rule: Option<Arc<str>>,
    /// Whether its status is OVER_LIMIT. False for a refund, in shadow mode and for rules that
    /// degrade.
    pub(crate) over_limit: bool,
    /// `None` if nothing is counted.
    pub(crate) limit: Option<Limit>,
    /// Hits that would be admitted now.
    pub(crate) remaining: u64,
    /// When over limit, time until the same hits would be admitted; else until nothing is used.
    /// Whole seconds, as in the response; `None` if nothing is counted.
    pub(crate) reset: Option<Span>,
    /// What decided it; `None` if nothing is counted.
    pub(crate) source: Option<Source>,
}
