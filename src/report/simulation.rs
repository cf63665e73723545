//! What limits admit of patterns of requests, as `tollgate simulate` shows it. Times are in µs.

use serde::Serialize;

use crate::base::time::Span;
use crate::limits::Limit;
use crate::report::serialize::{display, micros};

#[derive(Debug, Serialize)]
pub(crate) struct Simulation {
    /// The title, a line.
    #[serde(rename = "limits")]
    pub(crate) title: String,
    /// About the rule.
    pub(crate) notes: Vec<String>,
    pub(crate) scenes: Vec<Scene>,
}

/// A pattern of requests against every limit.
#[derive(Debug, Serialize)]
pub(crate) struct Scene {
    /// The pattern as it is written.
    #[serde(rename = "traffic")]
    pub(crate) pattern: String,
    /// The pattern with its intervals.
    #[serde(skip)]
    pub(crate) traffic: String,
    pub(crate) calls: u64,
    /// Hits of each call.
    pub(crate) hits: u64,
    #[serde(rename = "period_us", serialize_with = "micros")]
    pub(crate) period: Span,
    /// Which limits were over limit for no call.
    pub(crate) note: Option<String>,
    /// From the first call to the last.
    #[serde(rename = "lasted_us", serialize_with = "micros")]
    pub(crate) lasted: Span,
    pub(crate) chart: CallChart,
    pub(crate) runs: Vec<Run>,
}

#[derive(Debug, Serialize)]
pub(crate) struct CallChart {
    /// The time that is drawn.
    #[serde(rename = "shown_us", serialize_with = "micros")]
    pub(crate) shown: Span,
    /// Hits in each column.
    pub(crate) hits: Vec<u64>,
}

/// The result of one limit.
#[derive(Debug, Serialize)]
pub(crate) struct Run {
    /// What distinguishes the limit from the others.
    pub(crate) label: String,
    pub(crate) algorithm: &'static str,
    #[serde(serialize_with = "display")]
    pub(crate) limit: Limit,
    /// Calls that were let through, queued ones included.
    pub(crate) admitted: usize,
    /// Calls that were not.
    pub(crate) over_limit: usize,
    /// The most hits that started within any one period, wherever it starts.
    pub(crate) most_in_a_period: u64,
    /// The most hits that started in one window aligned to the epoch.
    pub(crate) most_in_a_window: u64,
    /// The most calls that went on at once, if they go on at all.
    pub(crate) most_at_once: Option<u64>,
    pub(crate) queued: usize,
    /// The longest time that a call was queued.
    #[serde(rename = "wait_max_us", serialize_with = "micros")]
    pub(crate) wait_max: Span,
    pub(crate) chart: RunChart,
}

#[derive(Debug, Serialize)]
pub(crate) struct RunChart {
    /// Hits that started in each column.
    pub(crate) admitted: Vec<u64>,
    /// Hits over limit in it.
    pub(crate) over_limit: Vec<u64>,
    /// The most in each column of what is limited: hits that started within the last period, or
    /// calls that go on.
    pub(crate) level: Vec<u64>,
}
