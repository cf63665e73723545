//! All figures, for programs.

use serde_json::{Value, json};

use crate::cli::simulate::report::{Report, Run, Scene};

/// Writes everything. Times are in µs, since the run began.
pub fn write(report: &Report) -> String {
    let scenes: Vec<Value> = report.scenes.iter().map(scene).collect();
    let value = json!({"limits": report.title, "notes": report.notes, "scenes": scenes});
    format!("{value:#}\n")
}

fn scene(scene: &Scene) -> Value {
    let runs: Vec<Value> = scene.runs.iter().map(run).collect();
    json!({
        "traffic": scene.traffic.pattern().to_string(),
        "calls": scene.work.calls,
        "hits": scene.work.hits,
        "period_us": scene.traffic.period().as_micros(),
        "note": scene.note,
        "lasted_us": scene.lasted.as_micros(),
        "chart": {"shown_us": scene.shown.as_micros(), "hits": scene.calls},
        "runs": runs,
    })
}

fn run(run: &Run) -> Value {
    let Run {
        label,
        limit,
        figures,
        chart,
    } = run;
    json!({
        "label": label,
        "algorithm": limit.algorithm().name(),
        "limit": limit.to_string(),
        "admitted": figures.admitted,
        "refused": figures.refused,
        "most_in_a_period": figures.most_in_a_period,
        "most_in_a_window": figures.most_in_a_window,
        "most_at_once": figures.most_at_once,
        "queued": figures.queued,
        "wait_max_us": figures.wait_max.as_micros(),
        "chart": {"admitted": chart.admitted, "refused": chart.refused, "level": chart.level},
    })
}
