//! Settings, paths, parameters and commands that were removed. The error or warning about one that
//! is still used names its replacement.

const CANDIDATE: &str = "`tollgate replay --compare` shows what other rules would change of recorded requests, and shadow_mode or enforce_percent try a limit on live traffic";
const HASHES: &str =
    "without a token no values are shown, and with ADMIN_TOKEN or ADMIN_READ_TOKEN all of them";
const LIST: &str = "`tollgate usage DOMAIN -e KEY=VALUE` has the limits of one key; warn_at reports the keys that are near a limit in the log and as events, and `tollgate top` has those with the most hits";
const RECORD: &str = "Envoy's access log has the requests if RESPONSE_DYNAMIC_METADATA is true, and `tollgate replay` reads it";
const FLEET: &str = "replicas share their counters in Redis, Prometheus adds up their rates, and the top keys of one are a sample of the same traffic";
const VERSIONS: &str = "a service keeps no versions of rules files: keep them in git";

/// Names as they are written, and what replaces them.
const REMOVED: &[(&str, &str)] = &[
    ("--fleet", FLEET),
    (
        "--traffic",
        "`tollgate replay FILE OLD --compare NEW` decides recorded requests by both sets of rules",
    ),
    ("/api/v1/replica", FLEET),
    ("/api/v1/status", FLEET),
    ("/candidate", CANDIDATE),
    ("/check", "run `tollgate check` and `tollgate diff` on the files"),
    ("/console/candidate", CANDIDATE),
    ("/history", VERSIONS),
    ("/openapi.json", "docs/console.md lists the paths of the API"),
    ("/rollback", VERSIONS),
    ("/simulate", "run `tollgate simulate` on the files"),
    ("ADMIN_REDACT=hash", HASHES),
    ("ADMIN_REDACT_KEY", HASHES),
    ("CANDIDATE_SUBDIRECTORY", CANDIDATE),
    (
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
        "the prometheus receiver of an OpenTelemetry collector reads /metrics",
    ),
    ("RECORD_FILE", RECORD),
    ("RECORD_FILE_BYTES_MAX", RECORD),
    ("RECORD_REDACT", RECORD),
    ("RECORD_REDACT_KEY", RECORD),
    ("RECORD_SAMPLE_RATE", RECORD),
    ("hashed=1", HASHES),
    ("rollback", VERSIONS),
    ("rule=", LIST),
    ("scope=fleet", FLEET),
    ("tollgate candidate", CANDIDATE),
    ("tollgate usage", LIST),
];

/// The names of settings.
pub(crate) fn settings() -> impl Iterator<Item = &'static str> {
    let is_setting = |name: &&str| {
        let mut letters = name.chars();
        letters.all(|letter| letter.is_ascii_uppercase() || letter == '_')
    };
    REMOVED.iter().map(|(name, _)| *name).filter(is_setting)
}

/// What replaces something that was removed; `None` of other names.
pub(crate) fn replacement(name: &str) -> Option<&'static str> {
    let removed = REMOVED.iter().find(|(removed, _)| *removed == name);
    removed.map(|(_, replacement)| *replacement)
}
