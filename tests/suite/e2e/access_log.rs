//! The access log that docs/envoy.md shows names the rule that decided each request, and limits that
//! are nearly used up.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::e2e::env::{Builder, Env, Store};

const LIMIT: &str = "4 per day, fixed_window, over-limit hits count";
const RULE: &str = "web.path_/search.remote_address";

fn logged_to(file: &Path, env: Builder) -> Env {
    env.with_access_log("docs/envoy.md", file)
        .with_env("RESPONSE_DYNAMIC_METADATA", "true")
        .with_env("DRAIN_PERIOD", "0")
        .start()
}

/// The lines of a stopped Envoy, without those of the requests that wait for its start.
fn lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).expect("Envoy wrote it");
    let lines = text.lines().map(|line| serde_json::from_str(line).expect("it is JSON"));
    lines.filter(|line: &Value| line["path"] == "/search").collect()
}

#[test]
fn access_log_names_the_rule_that_decided() {
    for env in Env::with_every_store("envoy.yaml") {
        let home = TempDir::new().expect("a temporary directory can be made");
        let file = home.path().join("log");
        let mut env = logged_to(&file, env.with_env("LOCAL_CACHE_SIZE_IN_BYTES", "65536"));
        for remaining in [3, 2, 1, 0] {
            env.get("/search").passed_with(remaining);
        }
        env.get("/search").was_over_limit();
        env.get("/search").was_over_limit();
        env.envoy.stop();
        let lines = lines(&file);
        assert_eq!(lines.len(), 6, "{lines:#?}");
        let by = if env.store() == Store::Memory {
            ["store"; 2]
        } else {
            // The first rejection is Redis's, the second one of the over-limit cache.
            ["store", "over_limit_cache"]
        };
        for (index, line) in lines.iter().enumerate() {
            let decision = &line["rate_limit"];
            let is_over = index >= 4;
            let by = by[usize::from(index == 5)];
            for (field, expected) in
                [("rule", RULE), ("limit", LIMIT), ("algorithm", "fixed_window"), ("source", by)]
            {
                assert_eq!(decision[field], expected, "{field}: {line:#}");
            }
            let over_limit = decision["over_limit"].as_array().expect("a list");
            assert_eq!(over_limit.len(), usize::from(is_over), "{line:#}");
            if is_over {
                assert_eq!(over_limit[0]["rule"], RULE, "{line:#}");
                let retry_after = over_limit[0]["retry_after_seconds"].as_f64();
                assert!(
                    retry_after.is_some_and(|secs| (1.0..=86_400.0).contains(&secs)),
                    "{line:#}"
                );
                assert_eq!(
                    (&line["code"], &line["details"]),
                    (&json!(429), &json!("request_rate_limited"))
                );
            }
        }
    }
}

#[test]
fn warnings_are_a_header_for_the_client_and_in_the_access_log() {
    const RULES: &str = "
domain: web
descriptors:
- key: path
  value: /search
  descriptors:
  - key: remote_address
    rate_limit: {name: search, unit: day, requests_per_unit: 4}
    metadata: {tollgate: {warn_at: [50%, 75%], limits: [{requests: 8, unit: month, calendar: Europe/Berlin, warn_at: 50%}]}}
";
    for env in Env::with_every_store("envoy.yaml") {
        let home = TempDir::new().expect("a temporary directory can be made");
        let file = home.path().join("log");
        let mut env = logged_to(&file, env.with_rules("web.yaml", RULES));
        let mut shares = Vec::new();
        for remaining in [3, 2, 1, 0] {
            let timed = env.get("/search").passed_with(remaining);
            let header = timed.reply.header("x-ratelimit-warning").unwrap_or("");
            let members = header.split(", ").map(|member| {
                let share = member.split_once(";t=");
                share.map_or(member, |(share, _)| share).to_owned()
            });
            shares.push(members.collect::<Vec<_>>());
        }
        let over_limit = env.get("/search").was_over_limit();
        assert_eq!(over_limit.reply.header("x-ratelimit-warning"), None);
        let expected = [
            &[""][..],
            &[r#""search";used=50"#],
            &[r#""search";used=75"#],
            &[r#""search";used=100"#, r#""search-month";used=50"#],
        ];
        assert_eq!(shares, expected);
        env.envoy.stop();
        let lines = lines(&file);
        assert_eq!(
            lines[3]["rate_limit"]["warnings"],
            json!([
                {"name": "search", "used_percent": 100, "threshold_percent": 75},
                {"name": "search-month", "used_percent": 50, "threshold_percent": 50},
            ])
        );
        let of_month = &lines[4]["rate_limit"]["limits"][1];
        assert_eq!((&of_month["used"], &of_month["over_limit"]), (&json!(4), &json!(false)));
        assert_eq!(lines[4]["rate_limit"]["warnings"], Value::Null);
    }
}
