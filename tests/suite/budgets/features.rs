//! What other features make of a descriptor with several limits.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::support::folder::Folder;
use crate::support::{Code, Ran, TestServer, tollgate};

/// Three requests of an organization, of which a user has two.
const RULES: &str = "
domain: d
descriptors:
  - key: org
    rate_limit: {name: org, unit: year, requests_per_unit: 3}
    descriptors:
      - key: user
        rate_limit: {name: user, unit: year, requests_per_unit: 2}
        metadata: {tollgate: {parents: true}}
";

fn folder() -> Folder {
    Folder::with(&[("rules/d.yaml", RULES)])
}

fn succeeded(words: &[&str]) -> Ran {
    let ran = tollgate(words);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran
}

/// Requests and those over limit, by rule.
fn of_rules(report: &Value) -> BTreeMap<&str, [&Value; 2]> {
    let rules = report["rules"].as_array().expect("there are rules").iter();
    rules
        .map(|rule| {
            let path = rule["rule"].as_str().expect("a path");
            (path, [&rule["requests"], &rule["over_limit"]])
        })
        .collect()
}

#[test]
fn explain_shows_each_limit_and_its_key() {
    let folder = folder();
    let text = succeeded(&["explain", &folder.path("rules"), "d", "org=a", "user=u"]).stdout;
    for line in [
        "decided by all of these limits in one step: over limit in one, consumed in none",
        "=> limit 3 per year, fixed_window, over-limit hits drop",
        "key   d_org_a_ ",
        "=> limit 2 per year, fixed_window, over-limit hits drop",
        "key   d_org_a_user_u_ ",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn simulation_is_of_the_last_limit_and_says_so() {
    let folder = folder();
    let rules = folder.path("rules");
    let text = succeeded(&["simulate", &rules, "d", "org=a", "user=u", "--calls", "10"]).stdout;
    assert!(text.contains("d.org.user"), "{text}");
    assert!(text.contains("other limits are decided in one step with it"), "{text}");
}

#[test]
fn recorded_requests_are_replayed_on_every_level() {
    let folder = folder();
    let lines = ["u", "u", "u", "v", "v"].map(|user| {
        let descriptor = json!({"entries": ["org=a", format!("user={user}")]});
        let request = json!({"domain": "d", "descriptors": [descriptor]});
        json!({"time": 0, "ratelimit": request}).to_string() + "\n"
    });
    let file = folder.write("access.log", &lines.concat());
    let words = ["replay", &file, &folder.path("rules"), "--format", "json"];
    let report = succeeded(&words).json();
    assert_eq!(report["over_limit"], 2);
    let expected = [("d.org", [2, 1]), ("d.org.user", [3, 1])];
    let expected = expected.map(|(path, numbers)| (path, numbers.map(Value::from)));
    let found = of_rules(&report);
    for (path, numbers) in &expected {
        assert_eq!(found[path], numbers.each_ref(), "{path}: {report:#}");
    }
}

#[tokio::test]
async fn top_keys_are_of_the_level_that_is_over_limit() {
    let server = TestServer::with_rules(RULES).start();
    let mut client = server.client().await;
    // Two of three requests of `u` are admitted, and one of two of `v`: the organization has no more.
    let (ok, over) = (Code::Ok, Code::OverLimit);
    for (user, code) in [("u", ok), ("u", ok), ("u", over), ("v", ok), ("v", over)] {
        assert_eq!(client.ask("d", &[("org", "a"), ("user", user)]).await, code, "{user}");
    }
    let top = server.admin_json("/api/v1/top");
    let mut keys = BTreeMap::new();
    for rule in top["rules"].as_array().expect("there are rules") {
        for key in rule["keys"].as_array().expect("there are keys") {
            let last = key["key"].as_array().and_then(|entries| entries.last());
            let value = last.expect("an entry")[1].to_string();
            keys.insert(value, [key["hits"].clone(), key["over_limit"].clone()]);
        }
    }
    let expected = [("a", [5, 1]), ("u", [3, 1])];
    let expected =
        expected.map(|(value, numbers)| (json!(value).to_string(), numbers.map(Value::from)));
    assert_eq!(keys, BTreeMap::from(expected), "{top:#}");
}
