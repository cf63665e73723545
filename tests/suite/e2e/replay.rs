//! The access log that docs/testing.md shows, written by Envoy, is an input of `tollgate replay`.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::e2e::env::{Env, Outcome};

/// What the rules of the samples do to a file.
fn replay(file: &Path) -> Value {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/envoy/rules");
    let ran = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["replay", "--format", "json"])
        .args([file, &rules])
        .env_clear()
        .output()
        .expect("the binary runs");
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{stderr}");
    serde_json::from_slice(&ran.stdout).expect("it is JSON")
}

#[test]
fn access_log_is_replayed_with_the_same_answers() {
    let files = TempDir::new().expect("a temporary directory can be made");
    let log = files.path().join("log");
    let mut env = Env::with("costs.yaml")
        .with_access_log("docs/testing.md", &log)
        .with_env("RESPONSE_DYNAMIC_METADATA", "true")
        .with_env("DRAIN_PERIOD", "0")
        .start();
    env.get_as("ann", "/balance").passed_with(10);
    env.get_as("ann", "/order").passed_with(5);
    env.get_as("ann", "/order").passed_with(0);
    env.get_as("ann", "/order").was_over_limit();
    env.get_as("bob", "/order").passed_with(5);
    // A limit of one in the request.
    env.get_as("ann", "/trial").passed_with(0);
    env.get_as("ann", "/trial").was_over_limit();
    env.assert_verdicts(5, 2);
    // Without a key Envoy asks nothing.
    assert_eq!(env.get("/order").outcome(), Outcome::Passed);
    // It writes the rest of its file at the end.
    env.envoy.stop();

    let report = replay(&log);
    let text = fs::read_to_string(&log).expect("it was written");
    assert_eq!(report["requests"], 7, "{report:#}\n{text}");
    assert_eq!(report["broken"], 0, "{report:#}\n{text}");
    assert_eq!(report["without_request"], 1, "{text}");
    assert_eq!(report["over_limit"], 2, "{report:#}\n{text}");
    let rules = report["rules"].as_array().expect("there are rules");
    let credits = rules
        .iter()
        .find(|rule| rule["rule"] == "costs.meter_credits.api_key")
        .expect("its requests are counted");
    assert_eq!((&credits["requests"], &credits["over_limit"]), (&5.into(), &1.into()));
}
