//! The recording of requests: what is in the file, what `tollgate replay` makes of it, and when it
//! ends.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{TestServer, assert_settings_rejected, look_until, tollgate, write};

const RULES: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 2}
  - key: user
    value: bot
    rate_limit: {unit: year, requests_per_unit: 1}
  - key: path
    value: /api/*/orders
    rate_limit: {unit: year, requests_per_unit: 1}
    descriptors:
      - key: user
        rate_limit: {unit: year, requests_per_unit: 1}
";

/// A folder for rules and recordings.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(TempDir::new().expect("a temporary directory"));
        write(&folder.path("rules/shop.yaml"), RULES);
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A server that records to a file of this name.
    fn server(&self, name: &str, variables: &[(&str, &str)]) -> TestServer {
        TestServer::with_directory(&self.path("rules"))
            .with_env(
                "RECORD_FILE",
                self.path(name).to_str().expect("a plain name"),
            )
            .with_envs(variables)
            .start()
    }

    /// The lines of a recording.
    fn lines(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.path(name)).expect("it was recorded");
        text.lines().map(str::to_owned).collect()
    }

    fn replay(&self, name: &str) -> Value {
        let (file, rules) = (self.path(name), self.path("rules"));
        let plain = |path: &Path| path.to_str().expect("a plain name").to_owned();
        let arguments = ["replay", &plain(&file), &plain(&rules), "--format", "json"];
        let ran = tollgate(&arguments);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.json()
    }
}

/// The body of a request with one descriptor.
fn body(entries: &[(&str, &str)]) -> String {
    let entries: Vec<Value> = entries
        .iter()
        .map(|(key, value)| serde_json::json!({"key": key, "value": value}))
        .collect();
    serde_json::json!({"domain": "shop", "descriptors": [{"entries": entries}]}).to_string()
}

fn recorded(server: &TestServer, requests: f64) {
    look_until(&format!("{requests} requests are recorded"), || {
        server.metric("tollgate_recorded_requests_total") == Some(requests)
    });
}

fn dropped(reason: &str) -> String {
    format!(r#"tollgate_record_dropped_total{{reason="{reason}"}}"#)
}

#[tokio::test]
async fn every_request_is_recorded_and_replayed_with_the_same_answers() {
    let folder = Folder::new();
    let mut server = folder.server("requests", &[]);
    let requests = [
        body(&[("user", "ann")]),
        r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ann"}], "hitsAddend": 0}, {"entries": [{"key": "other"}]}]}"#.to_owned(),
        r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}], "hitsAddend": 2}"#.to_owned(),
        r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ann"}], "hitsAddend": 1, "isNegativeHits": true}]}"#.to_owned(),
        r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "a\"b\n"}], "limit": {"unit": "DAY", "requestsPerUnit": 0}}]}"#.to_owned(),
        body(&[("user", "ann")]),
    ];
    let statuses = requests.map(|request| server.json(&request).status);
    assert_eq!(statuses, [200, 200, 429, 200, 429, 429]);
    // Invalid requests are not recorded.
    assert_eq!(server.json(r#"{"domain": "shop"}"#).status, 400);
    server.signal("TERM");
    assert_eq!(server.exit_code().await, Some(0));
    let lines = folder.lines("requests");
    let ends = [
        r#","domain":"shop","descriptors":[{"entries":[{"key":"user","value":"ann"}]}]}"#,
        r#","domain":"shop","descriptors":[{"entries":[{"key":"user","value":"ann"}],"hits_addend":0},{"entries":[{"key":"other","value":""}]}]}"#,
        r#","domain":"shop","descriptors":[{"entries":[{"key":"user","value":"ann"}]}],"hits_addend":2}"#,
        r#","domain":"shop","descriptors":[{"entries":[{"key":"user","value":"ann"}],"hits_addend":1,"is_negative_hits":true}]}"#,
        r#","domain":"shop","descriptors":[{"entries":[{"key":"user","value":"a\"b\n"}],"limit":{"requests_per_unit":0,"unit":"DAY"}}]}"#,
        r#","domain":"shop","descriptors":[{"entries":[{"key":"user","value":"ann"}]}]}"#,
    ];
    assert_eq!(lines.len(), ends.len(), "{lines:#?}");
    for (line, end) in lines.iter().zip(ends) {
        assert!(
            line.starts_with(r#"{"time":"20"#) && line.ends_with(end),
            "{line}"
        );
    }
    let metadata = fs::metadata(folder.path("requests")).expect("it is there");
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    let report = folder.replay("requests");
    assert_eq!(
        (&report["requests"], &report["broken"]),
        (&6.into(), &0.into())
    );
    assert_eq!(report["over_limit"], 3);
}

#[tokio::test]
async fn a_sample_has_all_requests_with_the_same_entries_or_none() {
    let folder = Folder::new();
    let server = folder.server("requests", &[("RECORD_SAMPLE_RATE", "0.5")]);
    for _ in 0..2 {
        for user in 0..100 {
            server.json(&body(&[("user", &user.to_string())]));
        }
    }
    // The hash is the same in every process.
    recorded(&server, 108.0);
    let report = folder.replay("requests");
    let lines = folder.lines("requests");
    let users: BTreeSet<&str> = lines
        .iter()
        .filter_map(|line| Some(line.split_once("domain")?.1))
        .collect();
    assert_eq!((lines.len(), users.len()), (108, 54));
    assert_eq!(report["over_limit"], 0);
}

#[tokio::test]
async fn redacted_values_are_hashes_that_match_the_same_rules() {
    let folder = Folder::new();
    let requests = [
        body(&[("user", "ann")]),
        body(&[("user", "ann")]),
        body(&[("user", "ann")]),
        body(&[("user", "eve")]),
        body(&[("user", "bot")]),
        body(&[("user", "bot")]),
        body(&[("path", "/api/ann/orders")]),
        body(&[("path", "/api/ann/orders"), ("user", "ann")]),
        body(&[("session", "ann"), ("user", "bot")]),
        r#"{"domain": "unknown", "descriptors": [{"entries": [{"key": "user", "value": "bot"}, {"key": "empty"}]}]}"#.to_owned(),
    ];
    let record = |name: &str, variables: &[(&str, &str)]| {
        let server = folder.server(name, &[&[("RECORD_REDACT", "true")], variables].concat());
        for request in &requests {
            server.json(request);
        }
        recorded(&server, 10.0);
        let lines = folder.lines(name);
        let descriptors =
            |line: &String| line.split_once("domain").expect("it has one").1.to_owned();
        lines.iter().map(descriptors).collect::<Vec<_>>()
    };
    let (one, other) = (record("one", &[]), record("other", &[]));
    let key = [("RECORD_REDACT_KEY", "s3cret")];
    let (keyed, same_key) = (record("keyed", &key), record("same_key", &key));
    assert_ne!(one, other, "the key of a process is random");
    assert_eq!(keyed, same_key);
    assert_ne!(one, keyed);
    for name in ["one", "keyed"] {
        let report = folder.replay(name);
        let over_limit = |rule: &str| {
            let rules = report["rules"].as_array().expect("there are rules");
            let found = rules.iter().find(|found| found["rule"] == rule);
            found.map(|found| (found["requests"].clone(), found["over_limit"].clone()))
        };
        let counts = |requests: u64, over: u64| Some((requests.into(), over.into()));
        assert_eq!(over_limit("shop.user"), counts(4, 1), "{report:#}");
        assert_eq!(over_limit("shop.user_bot"), counts(2, 1), "{report:#}");
        assert_eq!(
            over_limit("shop.path_/api/*/orders"),
            counts(1, 0),
            "{report:#}"
        );
        assert_eq!(
            over_limit("shop.path_/api/*/orders.user"),
            counts(1, 0),
            "{report:#}"
        );
    }
    let text = one.join("\n");
    for value in ["ann", "eve", "s3cret"] {
        assert!(!text.contains(value), "{value}: {text}");
    }
    assert!(one[4].contains(r#""value":"bot""#), "{text}");
    assert!(
        !one[9].contains("bot") && one[9].contains(r#""value":"""#),
        "{text}"
    );
    assert_eq!((&one[0], &one[4]), (&one[1], &one[5]), "{text}");
    assert_ne!(one[0], one[3], "{text}");
}

#[tokio::test]
async fn recording_ends_at_the_size_of_the_file() {
    let folder = Folder::new();
    let request = body(&[("user", "ann")]);
    let line = request.len() as u64 + r#""time":"2026-01-01T00:00:00.000000Z","#.len() as u64 + 1;
    write(&folder.path("requests"), "{}\n");
    let bytes_max = (3 + 2 * line).to_string();
    let server = folder.server("requests", &[("RECORD_FILE_BYTES_MAX", &bytes_max)]);
    for _ in 0..5 {
        server.json(&request);
    }
    look_until("requests are dropped", || {
        server.metric(&dropped("file_bytes_max")) == Some(3.0)
    });
    server.assert_metric("tollgate_recorded_requests_total", 2.0);
    server.assert_logged_once("recording ended: the file has RECORD_FILE_BYTES_MAX");
    // A line at a time of a whole second is shorter.
    let size = fs::metadata(folder.path("requests"))
        .expect("it is there")
        .len();
    assert!(size <= 3 + 2 * line, "{size}");
    assert_eq!(folder.lines("requests").len(), 3);
}

#[tokio::test]
async fn a_file_that_cannot_be_written_ends_the_recording_and_no_answer() {
    let folder = Folder::new();
    let server = TestServer::with_directory(&folder.path("rules"))
        .with_env(
            "RECORD_FILE",
            folder.path("requests").to_str().expect("a plain name"),
        )
        // No file of the process grows beyond 32 KiB, as on a full disk.
        .run_by(&[
            "sh",
            "-c",
            r#"trap '' XFSZ && ulimit -f 64 && exec "$0" "$@""#,
        ])
        .start();
    // The seventh of these lines does not fit.
    let request = body(&[("user", &"v".repeat(5_000))]);
    for expected in [200, 200, 429, 429, 429, 429, 429, 429] {
        assert_eq!(server.json(&request).status, expected);
    }
    look_until("requests are dropped", || {
        server.metric(&dropped("write_error")) == Some(2.0)
    });
    server.assert_metric("tollgate_recorded_requests_total", 6.0);
    server.assert_logged_once("recording ended: the file cannot be written");
    let report = folder.replay("requests");
    assert_eq!(
        (&report["requests"], &report["broken"]),
        (&6.into(), &0.into())
    );
}

#[tokio::test]
async fn recording_goes_on_after_a_crash_in_the_middle_of_a_line() {
    let folder = Folder::new();
    let request = body(&[("user", "ann")]);
    let record = |requests: f64| {
        let server = folder.server("requests", &[]);
        server.json(&request);
        recorded(&server, requests);
    };
    record(1.0);
    let mut half = fs::read(folder.path("requests")).expect("it was recorded");
    half.extend_from_within(..half.len() / 2);
    write(&folder.path("requests"), &half);
    record(1.0);
    let report = folder.replay("requests");
    assert_eq!(
        (&report["requests"], &report["broken"]),
        (&2.into(), &0.into())
    );
}

#[test]
fn invalid_settings_of_the_recording_are_errors() {
    assert_settings_rejected(
        || TestServer::with_rules(RULES),
        "RECORD_SAMPLE_RATE=2 => write a number from 0 to 1
         RECORD_FILE_BYTES_MAX=1GiB => write a whole number of bytes
         RECORD_REDACT=maybe => write true or false",
    );
    let ran = TestServer::with_rules(RULES)
        .with_env("RECORD_FILE", "/nowhere/requests")
        .start_and_fail();
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let expected = "RECORD_FILE: open /nowhere/requests: No such file";
    assert!(ran.stderr.contains(expected), "{ran:?}");
    let ran = TestServer::with_rules(RULES)
        .with_env("RECORD_FILE", "/dev/full")
        .start_and_fail();
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let expected = "RECORD_FILE: open /dev/full: it is not a regular file";
    assert!(ran.stderr.contains(expected), "{ran:?}");
}

#[tokio::test]
async fn nothing_is_recorded_by_default() {
    let folder = Folder::new();
    let server = TestServer::with_directory(&folder.path("rules")).start();
    assert_eq!(server.json(&body(&[("user", "ann")])).status, 200);
    assert_eq!(server.metric("tollgate_recorded_requests_total"), None);
}
