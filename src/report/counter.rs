//! Counters of descriptors, and changes of them by operators.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::base::named_enum::named_enum;
use crate::limits::Algorithm;

/// Keys and values of a descriptor's entries, the outermost first.
pub(crate) type Entries = Vec<[String; 2]>;

/// The counter of a descriptor. Where no rule counts the descriptor, its fields are null.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct CounterView {
    pub(crate) domain: String,
    /// The path of the rule
    pub(crate) rule: Option<String>,
    /// The name of the counter in the store; on Redis the start of a fixed window follows
    pub(crate) key: Option<String>,
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) limit: Option<CounterLimit>,
    /// Hits, or holders for `concurrency`. May exceed the limit where over-limit hits count
    pub(crate) used: Option<u64>,
    /// Hits in `used` that this replica took ahead and has not handed out, so that they are still
    /// admitted
    pub(crate) leased: Option<u64>,
    /// Hits that would be admitted now
    pub(crate) remaining: Option<u64>,
    /// Time until the counter is unused again, rounded up
    pub(crate) resets_in_seconds: Option<u64>,
    /// Whether one more hit would be over limit
    pub(crate) over_limit: bool,
    /// `fallback`: Redis gave no answer, and this is what the replica counts locally, of its share
    /// of the limit
    pub(crate) counted_in: Option<CountedIn>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CounterLimit {
    pub(crate) requests: u64,
    /// null for `concurrency`
    pub(crate) period_seconds: Option<u64>,
    /// null unless the algorithm is a bucket
    pub(crate) burst: Option<u64>,
}

named_enum! {
    /// Where a counter was read.
    pub enum CountedIn {
        /// In this process, which has no other store.
        Memory = "memory",
        /// In Redis.
        Redis = "redis",
        /// In this process, because Redis gave no verdict.
        Fallback = "fallback",
    }
}

/// The counters of a request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CounterList {
    /// One for each descriptor, in order
    pub(crate) counters: Vec<CounterView>,
}

/// A counter before and after a change.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CounterChange {
    pub(crate) before: CounterView,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) after: Option<CounterView>,
    /// Why there is no `after`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
}

/// A request to delete a counter.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reset {
    pub(crate) domain: String,
    /// Keys and values of its entries, the outermost first
    pub(crate) descriptor: Entries,
    /// The name of one of the limits of the rule; without it the rule's own, else its first
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<String>,
}

/// A request to give hits back.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Grant {
    pub(crate) domain: String,
    /// Keys and values of its entries, the outermost first
    pub(crate) descriptor: Entries,
    /// The name of one of the limits of the rule; without it the rule's own, else its first
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<String>,
    /// At most the limit, or the burst of a bucket
    pub(crate) hits: NonZeroU64,
}

impl CounterLimit {
    /// The limit, or the burst of a bucket.
    pub(crate) fn capacity(&self) -> u64 {
        self.burst.unwrap_or(self.requests)
    }
}
