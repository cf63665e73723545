//! The result of a simulation, which each format prints; all of its figures as JSON.

use serde_json::{Value, json};

use crate::simulation::play::{Run, Work};
use crate::simulation::traffic::Traffic;
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

impl Report {
    /// All figures, for programs. Times are in µs, since the run began.
    pub(super) fn json(&self) -> String {
        let scenes: Vec<Value> = self.scenes.iter().map(scene).collect();
        let value = json!({"limits": self.title, "notes": self.notes, "scenes": scenes});
        format!("{value:#}\n")
    }
}

fn scene(scene: &Scene) -> Value {
    let runs: Vec<Value> = scene.runs.iter().map(run).collect();
    json!({
        "traffic": scene.traffic.pattern.to_string(),
        "calls": scene.work.calls,
        "hits": scene.work.hits,
        "period_us": scene.traffic.period.as_micros(),
        "note": scene.note,
        "lasted_us": scene.lasted.as_micros(),
        "chart": {"shown_us": scene.shown.as_micros(), "hits": scene.calls},
        "runs": runs,
    })
}

fn run(run: &Run) -> Value {
    json!({
        "label": run.label,
        "algorithm": run.limit.algorithm.name(),
        "limit": run.limit.to_string(),
        "admitted": run.admitted,
        "refused": run.refused,
        "most_in_a_period": run.most_in_a_period,
        "most_in_a_window": run.most_in_a_window,
        "most_at_once": run.most_at_once,
        "queued": run.queued,
        "wait_max_us": run.wait_max.as_micros(),
        "chart": {"admitted": run.admitted_hits, "refused": run.refused_hits, "level": run.level},
    })
}
