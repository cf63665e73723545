use serde_json::json;

use super::*;
use crate::rules::tree::tests::rules_of;

const EVERYTHING: &str = r#"
domain: d
descriptors:
  - {key: plain, rate_limit: {unit: Minute, requests_per_unit: 3, name: n, replaces: [{name: m}]}, metadata: {owner: shop}}
  - {key: free, rate_limit: {unlimited: true, requests_per_unit: 4}}
  - {key: minutes, rate_limit: {unit: minute, requests_per_unit: 5}, metadata: {tollgate: {unit_multiplier: 5}}}
  - {key: days, rate_limit: {unit: day, requests_per_unit: 5}, metadata: {tollgate: {unit_multiplier: 60}}}
  - {key: a_minute, rate_limit: {unit: second, requests_per_unit: 6}, metadata: {tollgate: {unit_multiplier: 60}}}
  - {key: dropping, rate_limit: {unit: day, requests_per_unit: 1}, metadata: {tollgate: {over_limit_hits: drop}}}
  - {key: denied, rate_limit: {unit: day, requests_per_unit: 1}, metadata: {tollgate: {on_store_error: deny}}}
  - {key: partly, rate_limit: {unit: day, requests_per_unit: 1}, metadata: {tollgate: {enforce_percent: 25}}}
  - {key: wholly, rate_limit: {unit: day, requests_per_unit: 1}, metadata: {tollgate: {enforce_percent: 100}}}
  - {key: body, rate_limit: {unit: day, requests_per_unit: 1}, metadata: {tollgate: {response_body: "no\nmore"}}}
  - {key: bucket, rate_limit: {unit: second, requests_per_unit: 10}, metadata: {tollgate: {algorithm: token_bucket, burst: 20}}}
  - key: queue
    rate_limit: {unit: second, requests_per_unit: 10}
    metadata: {tollgate: {algorithm: leaky_bucket, on_limit: queue, max_wait: 1500us}}
  - key: cut
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 7}
    metadata: {tollgate: {algorithm: sliding_window, buckets: 4, on_limit: degrade, request_headers: {X-Degraded: yes please}}}
  - key: budget
    rate_limit: {name: b, unlimited: true}
    metadata: {tollgate: {limits: [{requests: 5_000_000_000, unit: month, unit_multiplier: 3, calendar: {time_zone: Europe/Berlin, first_day: 2, at: "06:00"}, warn_at: [80%, 50%]}, {name: burst, requests: 10, unit: second, algorithm: token_bucket, burst: 20}]}}
    descriptors:
      - {key: settle, rate_limit: {unlimited: true}, metadata: {tollgate: {parents: true, over_limit_hits: count}}}
  - {key: local, rate_limit: {unit: day, requests_per_unit: 1}, metadata: {tollgate: {calendar: Asia/Kolkata, warn_at: 80%}}}
  - key: path
    value: /a/*
    share_threshold: true
    descriptors:
      - {key: id, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 8}, metadata: {tollgate: {algorithm: concurrency, lease_by: id, lease: 90s}}}
"#;

/// The line of each rule of [`EVERYTHING`], sorted by path as they are printed.
const LINES: &str = r#"
d.a_minute: unit=MINUTE requests_per_unit=6, shadow_mode: false, quota_mode: false
d.body: unit=DAY requests_per_unit=1, shadow_mode: false, quota_mode: false, algorithm: fixed_window, over_limit_hits: count, on_limit: reject, response_body: "no\nmore"
d.bucket: unit=SECOND requests_per_unit=10, shadow_mode: false, quota_mode: false, algorithm: token_bucket, burst: 20, over_limit_hits: drop, on_limit: reject
d.budget: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false, on_limit: reject, limits: [{"algorithm":"fixed_window","calendar":{"at":"06:00","first_day":2,"first_weekday":"monday","time_zone":"Europe/Berlin"},"name":"b-month","requests":5000000000,"unit":"month","unit_multiplier":3,"warn_at":["50%","80%"]},{"algorithm":"token_bucket","burst":20,"name":"burst","requests":10,"unit":"second","unit_multiplier":1}]
d.budget.settle: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false, over_limit_hits: count, on_limit: reject, parents: true
d.cut: unit=HOUR requests_per_unit=7, shadow_mode: true, quota_mode: false, algorithm: sliding_window, buckets: 4, over_limit_hits: drop, on_limit: degrade, request_headers: {"x-degraded":"yes please"}
d.days: unit=DAY unit_multiplier=60 requests_per_unit=5, shadow_mode: false, quota_mode: false, algorithm: fixed_window, over_limit_hits: count, on_limit: reject
d.denied: unit=DAY requests_per_unit=1, shadow_mode: false, quota_mode: false, algorithm: fixed_window, over_limit_hits: count, on_limit: reject, on_store_error: deny
d.dropping: unit=DAY requests_per_unit=1, shadow_mode: false, quota_mode: false, algorithm: fixed_window, over_limit_hits: drop, on_limit: reject
d.free: unit=UNKNOWN requests_per_unit=4, shadow_mode: false, quota_mode: false
d.local: unit=DAY requests_per_unit=1, shadow_mode: false, quota_mode: false, algorithm: fixed_window, over_limit_hits: drop, calendar: "Asia/Kolkata", on_limit: reject, warn_at: "80%"
d.minutes: unit=MINUTE unit_multiplier=5 requests_per_unit=5, shadow_mode: false, quota_mode: false, algorithm: fixed_window, over_limit_hits: count, on_limit: reject
d.partly: unit=DAY requests_per_unit=1, shadow_mode: false, quota_mode: false, algorithm: fixed_window, over_limit_hits: count, on_limit: reject, enforce_percent: 25
d.path_/a/*.id: requests_per_unit=8, shadow_mode: false, quota_mode: true, algorithm: concurrency, lease_by: id, lease: 90s, on_limit: reject
d.plain: unit=MINUTE requests_per_unit=3, shadow_mode: false, quota_mode: false
d.queue: unit=SECOND requests_per_unit=10, shadow_mode: false, quota_mode: false, algorithm: leaky_bucket, burst: 1, over_limit_hits: drop, on_limit: queue, max_wait: 1500us
d.wholly: unit=DAY requests_per_unit=1, shadow_mode: false, quota_mode: false
"#;

#[test]
fn rules_of_the_reference_have_its_line_and_all_others_a_complete_one() {
    assert_eq!(rules_of(EVERYTHING).dump(), LINES.trim_start());
}

#[test]
fn a_line_names_the_domains_all_or_nothing() {
    let lines = rules_of(
            "domain: d\nmetadata: {tollgate: {all_or_nothing: true}}\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]",
        )
        .dump();
    let expected =
        "algorithm: fixed_window, over_limit_hits: count, on_limit: reject, all_or_nothing: true\n";
    assert_eq!(
        lines,
        format!(
            "d.k: unit=DAY requests_per_unit=1, shadow_mode: false, quota_mode: false, {expected}"
        )
    );
}

#[test]
fn json_has_every_descriptor_in_file_order_and_the_complete_limit() {
    let json: Value = serde_json::from_str(&rules_of(EVERYTHING).dump_json(OnStoreError::Allow))
        .expect("it is JSON");
    let domain = &json["domains"][0];
    assert_eq!((&domain["domain"], &domain["all_or_nothing"]), (&json!("d"), &json!(false)));
    let descriptors = domain["descriptors"].as_array().expect("a list");
    let paths: Vec<&str> =
        descriptors.iter().filter_map(|descriptor| descriptor["path"].as_str()).collect();
    let expected = [
        "plain",
        "free",
        "minutes",
        "days",
        "a_minute",
        "dropping",
        "denied",
        "partly",
        "wholly",
        "body",
        "bucket",
        "queue",
        "cut",
        "budget",
        "budget.settle",
        "local",
        "path_/a/*",
        "path_/a/*.id",
    ];
    assert_eq!(paths, expected.map(|path| format!("d.{path}")));

    let limit = |path: &str| {
        &descriptors[paths.iter().position(|known| *known == path).expect("it is listed")]["limit"]
    };
    let common = |line: u32| {
        json!({"source": {"file": "rules.yaml", "line": line, "column": 5}, "name": "", "replaces": [], "unlimited": false,
                "shadow_mode": false, "quota_mode": false, "detailed_metric": false, "on_store_error": "allow", "on_limit": "reject"})
    };
    let with = |line: u32, more: Value| {
        let mut limit = common(line);
        for (key, value) in more.as_object().expect("a map") {
            limit[key] = value.clone();
        }
        limit
    };
    let window = json!({"name": "n", "replaces": ["m"], "metadata": {"owner": "shop"}, "algorithm": "fixed_window", "requests_per_unit": 3,
            "unit": "minute", "unit_multiplier": 1, "period_seconds": 60, "over_limit_hits": "count"});
    assert_eq!(limit("d.plain"), &with(4, window));
    let minutes = json!({"algorithm": "fixed_window", "requests_per_unit": 5, "unit": "minute", "unit_multiplier": 5,
            "period_seconds": 300, "over_limit_hits": "count"});
    assert_eq!(limit("d.minutes"), &with(6, minutes));
    let bucket = json!({"algorithm": "token_bucket", "requests_per_unit": 10, "unit": "second", "unit_multiplier": 1, "period_seconds": 1,
            "burst": 20, "over_limit_hits": "drop"});
    assert_eq!(limit("d.bucket"), &with(14, bucket));
    let partly = json!({"algorithm": "fixed_window", "requests_per_unit": 1, "unit": "day", "unit_multiplier": 1, "period_seconds": 86_400,
            "over_limit_hits": "count", "enforce_percent": 25});
    assert_eq!(limit("d.partly"), &with(11, partly));
    let queue = json!({"algorithm": "leaky_bucket", "requests_per_unit": 10, "unit": "second", "unit_multiplier": 1, "period_seconds": 1,
            "burst": 1, "over_limit_hits": "drop", "on_limit": "queue", "max_wait": "1500us"});
    assert_eq!(limit("d.queue"), &with(15, queue));
    let held = json!({"source": {"file": "rules.yaml", "line": 32, "column": 9}, "quota_mode": true, "algorithm": "concurrency",
            "requests_per_unit": 8, "lease_by": "id", "lease": "90s"});
    assert_eq!(limit("d.path_/a/*.id"), &with(0, held));

    let free = limit("d.free");
    assert_eq!(
        (&free["unlimited"], &free["requests_per_unit"], &free["algorithm"]),
        (&json!(true), &Value::Null, &Value::Null)
    );
    let (around, within) =
        (&descriptors[descriptors.len() - 2], &descriptors[descriptors.len() - 1]);
    assert_eq!((&around["limit"], &around["share_threshold"]), (&Value::Null, &json!(true)));
    assert_eq!(within["entries"], json!([{"key": "path", "value": "/a/*"}, {"key": "id"}]));
}
