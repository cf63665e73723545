//! Any bytes as a text of `PUT /api/v1/rules/{file}`. Memory is bounded by `-rss_limit_mb`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate::rules::config::{self, CompileOptions, Source};
use tollgate::rules::stats::StatsTable;
use tollgate::telemetry::metric::Metrics;

/// Longer texts are slow to fuzz.
const TEXT_BYTES_MAX: usize = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    if bytes.len() > TEXT_BYTES_MAX {
        return;
    }
    // The endpoint marks bytes that are not UTF-8 by a character that YAML forbids, too.
    let text = String::from_utf8_lossy(bytes).replace('\u{fffd}', "\u{ffff}");
    let source = Source { name: "a.yaml".into(), path: "a.yaml".into(), text: text.into() };
    let options = CompileOptions::new(StatsTable::new(100, &Metrics::new()));
    match config::load(&[source], &options) {
        Ok(loaded) => assert!(loaded.warnings.len() <= 100),
        Err(problems) => assert!((1..=100).contains(&problems.len())),
    }
});
