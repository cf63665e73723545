//! What a replica counted lately, and its state.

use serde::{Deserialize, Serialize};

use crate::report::top::list_of;
use crate::rules::stats::counts::HitCounts;

/// Bars of a chart: minutes of an hour, or seconds of a minute.
// bound status_bars_max: the replica is missing in the answer; -
pub(crate) const BARS: usize = 60;
/// Rules of a status: as many as have a history.
// bound status_rules_max: those with the fewest hits over limit are left out; -
pub(crate) const STATUS_RULES_MAX: usize = 5_000;

/// What a replica counted lately, and its state.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct ReplicaStatus {
    /// The name of the process that answered, as in heartbeats
    pub(crate) replica: String,
    /// The name of its pod: POD_NAME, else HOSTNAME, else the name in heartbeats
    pub(crate) pod: String,
    /// The store, as in `/ready`
    pub(crate) store: String,
    /// Faults of the store that have not ended
    pub(crate) store_faults: u64,
    /// Rules in force
    pub(crate) rules: u64,
    /// Their hash, as in `tollgate_rules_hash`
    pub(crate) rules_hash: u64,
    /// The rate of the last ten seconds
    pub(crate) hits_per_second: f64,
    pub(crate) last_minute: HitCounts,
    /// Of the gRPC calls of the last minute, if there were any
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) latency: Option<Latency>,
    /// Hits of each of the last 60 seconds
    #[serde(deserialize_with = "list_of::<_, _, 0, BARS>")]
    pub(crate) seconds: Vec<HitCounts>,
    /// Hits of each of the last 60 minutes; the last one has not ended
    #[serde(deserialize_with = "list_of::<_, _, 0, BARS>")]
    pub(crate) minutes: Vec<HitCounts>,
    /// The rules with hits in the last hour, those with the most hits over limit first
    #[serde(deserialize_with = "list_of::<_, _, 0, STATUS_RULES_MAX>")]
    pub(crate) last_hour: Vec<RuleCounts>,
}

/// Times that calls took, in seconds
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Latency {
    /// Half of the calls took no longer
    pub(crate) p50: f64,
    /// 99 % of the calls took no longer
    pub(crate) p99: f64,
}

/// A rule and its hits
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RuleCounts {
    pub(crate) domain: String,
    /// The path of the rule
    pub(crate) rule: String,
    #[serde(flatten)]
    pub(crate) counts: HitCounts,
}
