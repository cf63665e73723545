//! Settings, paths, parameters and commands that are no more, and what replaces each: whoever uses
//! one reads it.

const FLEET: &str = "replicas share their counters in Redis, Prometheus adds up their rates, and the top keys of one are a sample of the same traffic";

/// Names as they are written, and what replaces them.
const REMOVED: [(&str, &str); 5] = [
    ("--fleet", FLEET),
    ("/api/v1/replica", FLEET),
    (
        "/api/v1/status",
        "/metrics and /ready have rates, latencies and state",
    ),
    ("scope=fleet", FLEET),
    (
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
        "the prometheus receiver of an OpenTelemetry collector reads /metrics",
    ),
];

/// The names of settings.
pub(crate) fn settings() -> impl Iterator<Item = &'static str> {
    let is_setting = |name: &&str| name.starts_with(|first: char| first.is_ascii_uppercase());
    REMOVED.into_iter().map(|(name, _)| name).filter(is_setting)
}

/// What replaces something that was removed; `None` of other names.
pub(crate) fn replacement(name: &str) -> Option<&'static str> {
    let removed = REMOVED.into_iter().find(|(removed, _)| *removed == name);
    removed.map(|(_, replacement)| replacement)
}
