//! Any text as a rules file: it loads or is rejected with findings that can be printed, and never ends the process.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate::rules::config::{self, CompileOptions, Source};
use tollgate::rules::stats::StatsTable;
use tollgate::telemetry::metric::Metrics;

fuzz_target!(|text: &str| {
    let source = |name: &str| Source { name: name.into(), path: name.into(), text: text.into() };
    for merge_domains in [false, true] {
        let stats = StatsTable::new(100, &Metrics::new());
        let options = CompileOptions { merge_domains, ..CompileOptions::new(stats) };
        match config::load(&[source("a.yaml"), source("b.yaml")], &options) {
            Ok(loaded) => {
                assert_eq!(loaded.rules.dump().lines().count() >= loaded.rules.rule_count(), true);
                let _ = loaded.rules.example();
                for warning in loaded.warnings {
                    assert!(!warning.to_string().is_empty());
                }
            }
            Err(problems) => {
                assert!(!problems.is_empty());
                for problem in problems {
                    assert!(!problem.to_string().is_empty());
                }
            }
        }
    }
});
