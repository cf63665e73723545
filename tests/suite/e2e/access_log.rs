//! The access log that docs/envoy.md shows names the rule that decided each request.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::e2e::env::{Env, Store};

const LIMIT: &str = "4 per day, fixed_window, over-limit hits count";
const RULE: &str = "web.path_/search.remote_address";

#[test]
fn access_log_names_the_rule_that_decided() {
    for env in Env::with_every_store("envoy.yaml") {
        let home = TempDir::new().expect("a temporary directory can be made");
        let file = home.path().join("log");
        let mut env = env
            .with_access_log("docs/envoy.md", &file)
            .with_env("RESPONSE_DYNAMIC_METADATA", "true")
            .with_env("DRAIN_PERIOD", "0")
            .with_env("LOCAL_CACHE_SIZE_IN_BYTES", "65536")
            .start();
        for remaining in [3, 2, 1, 0] {
            env.get("/search").passed_with(remaining);
        }
        env.get("/search").was_over_limit();
        env.get("/search").was_over_limit();
        env.envoy.stop();
        let text = fs::read_to_string(file).expect("Envoy wrote it");
        let lines = text.lines().map(|line| serde_json::from_str(line).expect("it is JSON"));
        // Without those of the requests that wait for its start.
        let lines: Vec<Value> = lines.filter(|line: &Value| line["path"] == "/search").collect();
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
