use super::Options;
use crate::report::change::diff;
use crate::rules::explain::explain;
use crate::rules::plan::Modes;
use crate::rules::tree::tests::rules_of;
use crate::rules::{OnStoreError, Query, RuleSet};

/// A block with each option, which has another value than without it.
const BLOCKS: &[(&str, &str)] = &[
    ("algorithm", "algorithm: sliding_log"),
    ("unit_multiplier", "unit_multiplier: 5"),
    ("burst", "algorithm: token_bucket, burst: 7"),
    ("buckets", "algorithm: sliding_window, buckets: 7"),
    ("over_limit_hits", "over_limit_hits: drop"),
    ("on_limit", "algorithm: leaky_bucket, on_limit: queue, max_wait: 1s"),
    ("max_wait", "algorithm: leaky_bucket, on_limit: queue, max_wait: 1s"),
    ("request_headers", "on_limit: degrade, request_headers: {x-degraded: yes}"),
    ("response_body", "response_body: less"),
    ("on_store_error", "on_store_error: deny"),
    ("enforce_percent", "enforce_percent: 50"),
    ("lease_by", "algorithm: concurrency, lease_by: key, lease: 9s"),
    ("consistency", "consistency: leased"),
    ("lease", "algorithm: concurrency, lease_by: key, lease: 9s"),
    ("calendar", "calendar: UTC"),
    ("limits", "limits: [{requests: 9, unit: week}]"),
    ("parents", "parents: true"),
    ("warn_at", "warn_at: 80%"),
];

fn rules(block: &str) -> RuleSet {
    rules_of(&format!(
        "domain: d\ndescriptors:\n  - key: above\n    rate_limit: {{unit: month, requests_per_unit: 9}}\n    descriptors:\n      - key: key\n        rate_limit: {{unit: day, requests_per_unit: 3}}\n        metadata: {{tollgate: {{{block}}}}}\n"
    ))
}

#[test]
fn every_option_is_shown_and_documented_where_rules_are() {
    let docs = include_str!("../../../../../docs/rules.md");
    let keys: Vec<_> = BLOCKS.iter().map(|(key, _)| *key).collect();
    assert_eq!(keys, Options::KEYS, "options of the test");
    let plain = rules("");
    for (key, block) in BLOCKS {
        let changed = rules(block);
        let shown = |text: &str, form: &str| assert!(text.contains(form), "{form}: {text}");
        let line = changed.dump();
        assert!(
            [": ", "="].iter().any(|sign| line.contains(&format!("{key}{sign}"))),
            "{key}: {line}"
        );
        shown(&changed.dump_json(OnStoreError::Local), &format!("\"{key}\":"));
        let found = diff(&plain, &changed, OnStoreError::Local);
        // A level that `parents` reaches drops its over-limit hits, too.
        let mut found = found.iter();
        assert!(found.any(|change| change.changed_options().contains(key)));
        let query = Query::of_entries("d", ["above=any", "key=value"]).expect("an entry");
        let explanation = explain(&changed, &query, Modes::default());
        shown(&explanation.text, &format!("{key}: "));
        shown(docs, &format!("`{key}`"));
    }
}
