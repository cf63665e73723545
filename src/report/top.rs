//! Keys with the most hits, and responses of OVER_LIMIT.

use serde::{Deserialize, Serialize};

use crate::base::named_enum::named_enum;
use crate::limits::check::Source;
use crate::report::counter::Entries;
use crate::rules::stats::counts::HitCounts;

/// Keys of each rule in a sketch of a worker, in an answer, and by hits and by hits over limit in a
/// slot.
pub(crate) const TOP_KEYS_MAX: usize = 100;

/// The keys with the most hits of each rule.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct TopKeys {
    /// The name of the process that answered, as in heartbeats
    pub(crate) replica: String,
    /// What shows values of clients, where they are left out
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
    pub(crate) rules: Vec<RuleHits>,
}

/// A rule and its keys with hits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RuleHits {
    pub(crate) domain: String,
    /// The path of the rule
    pub(crate) rule: String,
    pub(crate) keys: Vec<KeyHits>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeyHits {
    /// Key and value of each entry
    pub(crate) key: Entries,
    pub(crate) hits: u64,
    pub(crate) over_limit: u64,
}

named_enum! {
    /// What an event is about.
    pub enum EventType {
        /// A response of OVER_LIMIT.
        OverLimit = "over_limit",
        /// A limit that is used from now on up to a threshold of `warn_at`.
        Warning = "warning",
    }
}

/// A response of OVER_LIMIT, or a request that crossed a threshold of `warn_at`.
#[derive(Debug, Serialize)]
pub(crate) struct OverLimitEvent<'e> {
    /// `over_limit`: a response of OVER_LIMIT. `warning`: a request whose hits crossed a threshold
    /// of `warn_at`, or used the limit up
    pub(crate) r#type: EventType,
    /// The name of the process that answered, as in heartbeats
    pub(crate) replica: &'e str,
    pub(crate) time: String,
    pub(crate) domain: String,
    /// The path of the rule
    pub(crate) rule: &'e str,
    /// Key and value of each entry
    pub(crate) descriptor: Entries,
    /// The name of the limit, if it has one
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) limit_name: &'e str,
    /// Such as `100 per minute, sliding_window`
    pub(crate) limit: String,
    /// What is used of the limit of a `warning`, in percent, rounded down
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) used_percent: Option<u64>,
    /// The threshold of a `warning`, in percent; 100 is used up
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) threshold_percent: Option<u8>,
    /// Seconds until the same hits would be admitted; without it they never are: they exceed the
    /// limit
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry_after_seconds: Option<u64>,
    /// What decided it. `lease`: hits that the replica took ahead were used up, and Redis had none
    /// left
    pub(crate) source: Source,
}

impl KeyHits {
    pub(crate) fn counts(&self) -> HitCounts {
        HitCounts { hits: self.hits, over_limit: self.over_limit }
    }
}
