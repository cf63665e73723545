//! The result of a simulation, which each format prints.

use crate::cli::simulate::play::{Chart, Figures, Work};
use crate::cli::simulate::traffic::Traffic;
use crate::limit::Limit;
use crate::time::Span;

/// What is printed.
pub(super) struct Report {
    /// One line.
    pub(super) title: String,
    /// About the rule.
    pub(super) notes: Vec<String>,
    pub(super) scenes: Vec<Scene>,
}

/// One pattern of requests against every limit.
pub(super) struct Scene {
    pub(super) traffic: Traffic,
    /// The number of requests, and their hits.
    pub(super) work: Work,
    /// Which limits were never exceeded.
    pub(super) note: Option<String>,
    /// From the first request to the last.
    pub(super) lasted: Span,
    /// The time that is drawn.
    pub(super) shown: Span,
    /// Requests per column of the chart.
    pub(super) calls: Vec<u64>,
    pub(super) runs: Vec<Run>,
}

/// The result of one limit.
pub(super) struct Run {
    pub(super) label: String,
    pub(super) limit: Limit,
    pub(super) figures: Figures,
    pub(super) chart: Chart,
}
