//! Metrics of more than one store.

use crate::telemetry::metric::{Counter, Metrics};

/// Counts calls to full sliding logs. `user` is what the counters are for.
pub(crate) fn full_logs(user: &str, metrics: &Metrics) -> Counter {
    metrics.counter_with(
        "tollgate_log_entries_full_total",
        "Calls to a sliding_log with as many entries as it may have (log_entries_max), so that their hits went to the newest one.",
        &[("use", user)],
    )
}
