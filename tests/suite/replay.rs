//! `tollgate replay`: what rules do to recorded traffic, and which lines of a log are invalid.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;

use crate::support::folder::Folder;
use crate::support::tollgate;

const RULES: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: second, requests_per_unit: 2}
  - key: path
    value: /api/*
    share_threshold: true
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: internal
    rate_limit: {unlimited: true}
";

/// Rules, and files beside them.
fn folder() -> Folder {
    Folder::with(&[("rules/shop.yaml", RULES)])
}

/// What it prints, as JSON.
fn replay(folder: &Folder, file: &str, arguments: &str) -> Value {
    let rules = folder.path("rules");
    let mut words = vec!["replay", file, &*rules, "--format", "json"];
    words.extend(arguments.split_whitespace());
    let ran = tollgate(&words);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran.json()
}

/// Requests of a user at these seconds.
fn requests(user: &str, seconds: &[f64]) -> String {
    let line = |second: &f64| {
        format!(
            r#"{{"time": {second}, "ratelimit": {{"domain": "shop", "descriptors": [{{"entries": ["user={user}"]}}]}}}}"#
        ) + "\n"
    };
    seconds.iter().map(line).collect()
}

fn rule<'r>(report: &'r Value, path: &str) -> &'r Value {
    let rules = report["rules"].as_array().expect("there are rules");
    let found = rules.iter().find(|rule| rule["rule"] == path);
    found.unwrap_or_else(|| panic!("{path} is in {report:#}"))
}

#[test]
fn requests_are_counted_at_their_recorded_times() {
    let folder = folder();
    // Two a second are admitted: of ann's one is over the limit at 0 s and three at 120 s.
    let log = requests("ann", &[0.0, 0.1, 0.2, 1.0, 120.0, 120.1, 120.2, 120.3, 120.4])
        + &requests("bob", &[120.5]);
    let report = replay(&folder, &folder.write("log", &log), "");
    assert_eq!(report["requests"], 10);
    assert_eq!(report["broken"], 0);
    assert_eq!(report["over_limit"], 4);
    assert_eq!(report["first"], "1970-01-01T00:00:00Z");
    assert_eq!(report["last"], "1970-01-01T00:02:00.500000Z");
    let user = rule(&report, "shop.user");
    let expected: Value = serde_json::from_str(
        r#"{"domain": "shop", "rule": "shop.user", "requests": 10, "over_limit": 4, "share": 0.4,
            "first_minute": {"time": "1970-01-01T00:00:00Z", "requests": 4, "over_limit": 1},
            "worst_minute": {"time": "1970-01-01T00:02:00Z", "requests": 6, "over_limit": 3},
            "keys": [{"key": "user=ann", "over_limit": 4}], "keys_missed_max": 0}"#,
    )
    .expect("it is JSON");
    assert_eq!(*user, expected);
}

#[test]
fn the_text_shows_rules_minutes_and_keys() {
    let folder = folder();
    let log = folder.write("log", &requests("ann", &[0.0, 0.1, 0.2, 0.3]));
    let ran = tollgate(&["replay", &log, &folder.path("rules")]);
    let expected = [
        "requests: 4, from 1970-01-01T00:00:00Z to 1970-01-01T00:00:00.300000Z",
        "over limit: 2 (50.00 %)",
        "rule shop.user at ",
        "2 of 4 at 1970-01-01T00:00:00Z",
        "         2  user=ann",
    ];
    ran.assert_printed(0, &expected);
}

#[test]
fn values_that_share_a_counter_are_one_key() {
    let folder = folder();
    let log: String = ["/api/a", "/api/b", "/api/c", "/other"]
        .map(|path| requests(path, &[0.0]).replace("user", "path"))
        .concat();
    let report = replay(&folder, &folder.write("log", &log), "");
    let shared = &rule(&report, "shop.path_/api/*")["keys"];
    assert_eq!(shared[0]["key"], "path=/api/*");
    assert_eq!(shared[0]["over_limit"], 2);
    assert_eq!(report["without_limit"], 1);
}

#[test]
fn stdin_may_be_compressed() {
    let folder = folder();
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(requests("ann", &[0.0; 2_000]).as_bytes()).expect("memory is writable");
    let gzip = gzip.finish().expect("memory is writable");
    fs::write(folder.path("log"), gzip).expect("the folder is writable");
    let stdin = fs::File::open(folder.path("log")).expect("it was written");
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["replay", "-", &folder.path("rules")])
        .stdin(Stdio::from(stdin))
        .output()
        .expect("the binary runs");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("over limit: 1998"), "{stdout}");
}

#[test]
fn invalid_lines_are_counted_and_reported_with_their_numbers() {
    let folder = folder();
    let log = format!("{}no json\n\n{{\"time\": 0}}\n", requests("ann", &[0.0]));
    let log = folder.write("log", &log);
    let report = replay(&folder, &log, "--max-errors 2");
    assert_eq!(report["requests"], 1);
    assert_eq!(report["broken"], 2);
    assert_eq!(report["without_request"], 1);
    assert_eq!(report["invalid_lines"][0]["line"], 2);
    assert_eq!(report["invalid_lines"][1]["line"], 4);
    let rules = folder.path("rules");
    let ran = tollgate(&["replay", &log, &rules]);
    ran.assert_printed(0, &["invalid lines: 2"]);
    ran.assert_failed(0, &["line 2: ", "line 4: "]);
    for (max, expected) in [
        ("1", "more than 1 line is invalid (--max-errors 1); line 4: "),
        ("0", "a line is invalid (--max-errors 0); line 2: "),
    ] {
        let ran = tollgate(&["replay", &log, &rules, "--max-errors", max]);
        ran.assert_failed(1, &[expected]);
    }
}

#[test]
fn files_without_requests_are_errors() {
    let folder = folder();
    let rules = folder.path("rules");
    for (log, expected) in [
        (folder.write("empty", ""), "has no request"),
        (folder.write("text", "GET /\n"), "has no request; line 1: "),
        (folder.path("missing"), "No such file"),
    ] {
        tollgate(&["replay", &log, &rules]).assert_failed(1, &[expected]);
    }
    let log = folder.write("log", &requests("ann", &[0.0]));
    folder.write("rules/shop.yaml", "domain: [");
    tollgate(&["replay", &log, &rules]).assert_failed(78, &[]);
}

#[test]
fn late_lines_count_at_the_latest_time_before() {
    let folder = folder();
    let log = folder.write("log", &requests("ann", &[5.0, 4.9, 5.1]));
    let report = replay(&folder, &log, "");
    assert_eq!(report["late"], 1);
    assert_eq!(report["late_max_us"], 100_000);
    assert_eq!(report["over_limit"], 1);
}

#[test]
fn other_rules_and_algorithms_are_shown_beside_the_rules() {
    let folder = folder();
    let rules = RULES.replace("requests_per_unit: 2", "requests_per_unit: 3");
    let other = folder.path("other");
    folder.write("other/shop.yaml", &rules);
    let log = folder.write("log", &requests("ann", &[0.9, 0.91, 0.92, 0.93, 1.0, 1.01]));
    let report = replay(&folder, &log, &format!("--compare {other} --algorithm all"));
    let compared = report["compared"].as_array().expect("there are others");
    let figures: Vec<(&str, u64)> = [&report]
        .into_iter()
        .chain(compared)
        .map(|rules| {
            let label = rules["label"].as_str().expect("a label");
            let over_limit = rule(rules, "shop.user")["over_limit"].as_u64();
            (label, over_limit.expect("a number"))
        })
        .collect();
    assert_eq!(
        figures,
        [
            ("rules", 2),
            (&*other, 1),
            ("fixed_window", 2),
            ("sliding_window", 4),
            ("sliding_window, 10 buckets", 4),
            ("sliding_log", 4),
            ("token_bucket", 4),
            ("leaky_bucket", 5),
        ]
    );
    let rules = folder.path("rules");
    let ran = tollgate(&["replay", &log, &rules, "--algorithm", "all"]);
    ran.assert_printed(0, &["leaky_bucket: over limit: 5", "sliding_log: over limit: 4"]);
    let ran = tollgate(&["replay", &log, &rules, "--algorithm", "concurrency"]);
    assert_eq!(ran.code, Some(64), "{ran:?}");
}
