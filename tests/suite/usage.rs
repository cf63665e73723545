//! `/api/v1/usage` and `tollgate usage`, and counters of one of several limits.

use serde_json::{Value, json};

use crate::support::counting::answered_by_redis;
use crate::support::http;
use crate::support::redis::RedisProcess;
use crate::support::{Builder, TestServer, assert_has, tollgate, tollgate_with_env};

const TOKEN: &str = "s3cret-of-admins";

/// The largest amounts, so that a change of the window loses nothing.
const RULES: &str = "
domain: llm
descriptors:
  - key: team
    rate_limit: {name: team, unit: year, requests_per_unit: 4000}
    metadata: {tollgate: {warn_at: [50%, 80%], limits: [{requests: 5000000000, unit: year, calendar: Europe/Berlin, name: budget}]}}
    descriptors:
      - key: user
        rate_limit: {name: user, unit: year, requests_per_unit: 5}
        metadata: {tollgate: {parents: true}}
      - key: settle
        rate_limit: {unlimited: true}
        metadata: {tollgate: {parents: true, over_limit_hits: count}}
  - key: team
    value: other
    rate_limit: {unit: year, requests_per_unit: 4000}
  - key: place
    descriptors:
      - key: holder
        rate_limit: {unit: second, requests_per_unit: 3}
        metadata: {tollgate: {algorithm: concurrency, lease_by: holder, lease: 1h}}
  - key: bucket
    rate_limit: {unit: day, requests_per_unit: 10}
    metadata: {tollgate: {algorithm: token_bucket}}
";

async fn send(server: &TestServer, entries: &[(&str, &str)], times: usize) {
    let mut client = server.client().await;
    for _ in 0..times {
        client.ask("llm", entries).await;
    }
}

fn usage(server: &TestServer, query: &str) -> Value {
    server.admin_json(&format!("/api/v1/usage?domain=llm&{query}"))
}

/// Fields of each limit.
fn fields(usage: &Value, names: &[&str]) -> Value {
    let limits = usage["limits"].as_array().expect("a list");
    let of_limit = |limit: &Value| names.iter().map(|name| limit[name].clone()).collect();
    json!(limits.iter().map(of_limit).collect::<Vec<Vec<Value>>>())
}

#[tokio::test]
async fn usage_has_every_limit_that_decides() {
    let server = TestServer::with_rules(RULES).start();
    send(&server, &[("team", "a"), ("user", "x")], 3).await;
    send(&server, &[("team", "a")], 1).await;
    let chain = usage(&server, "e=team%3Da&e=user%3Dx");
    let names = ["rule", "name", "level", "used", "remaining", "used_percent"];
    assert_eq!(
        fields(&chain, &names),
        json!([
            ["llm.team", "team", 0, 4, 3996, 0],
            ["llm.team", "budget", 0, 4, 4_999_999_996_u64, 0],
            ["llm.team.user", "user", 1, 3, 2, 60],
        ])
    );
    let [own, budget, _] = [0, 1, 2].map(|index| &chain["limits"][index]);
    assert_eq!(own["warn_at"], json!([50, 80]));
    assert_eq!(own["period"], json!({"seconds": 31_536_000}));
    assert_eq!(own["projected"], Value::Null);
    let period = &budget["period"];
    assert_eq!((&period["kind"], &period["time_zone"]), (&json!("year"), &json!("Europe/Berlin")));
    for edge in ["start", "end"] {
        let time = period[edge].as_str().expect("a time");
        assert!(time.ends_with("-01-01T00:00:00+01:00"), "{time}");
    }
    assert!(budget["projected"]["used_at_end"].as_u64() >= Some(4));
    assert_eq!(budget["counted_in"], "memory");
    let removed = http::get(server.admin, "/api/v1/usage?domain=llm&rule=llm.team");
    assert_eq!(removed.status, 400, "{removed:?}");
    assert_has(&removed.body, &["`tollgate usage DOMAIN -e KEY=VALUE` has the limits of one key"]);
    // Only the levels above limit a settlement.
    let settled = usage(&server, "e=team%3Da&e=settle%3D");
    assert_eq!(fields(&settled, &["name"]), json!([["team"], ["budget"]]));
}

fn on(redis: &RedisProcess) -> Builder {
    answered_by_redis(TestServer::with_rules(RULES), &[("REDIS_URL", redis.url())])
}

#[tokio::test]
async fn command_prints_usage() {
    let redis = RedisProcess::start();
    let server = on(&redis).start();
    send(&server, &[("team", "a"), ("user", "x")], 5).await;
    let url = format!("http://{}", server.admin);
    let run = |words: &[&str]| tollgate(&[&["usage", "--url", &url], words].concat());
    let chain = run(&["llm", "-e", "team=a", "-e", "user=x"]);
    assert_eq!(chain.code, Some(0), "{chain:?}");
    let has_line = |words: &str| {
        let mut lines = chain.stdout.lines();
        lines.any(|line| line.split_whitespace().eq(words.split(' ')))
    };
    assert!(has_line("llm.team.user user 31536000 s now 5 5 0 100"), "{chain:?}");
    assert!(has_line("llm.team team 31536000 s - 5 4000 3995 0"), "{chain:?}");
    assert_eq!(run(&["llm", "team=a", "user=x"]).stdout, chain.stdout);
    let json = run(&["llm", "-e", "team=a", "-e", "user=x", "--format", "json"]).json();
    assert_eq!(fields(&json, &["used"]), json!([[5], [5], [5]]));
    let list = run(&["llm", "llm.team"]);
    list.assert_failed(64, &["has the limits of one key"]);
    for (words, code) in [
        (&["llm"][..], 64),
        (&["llm", "llm.team", "-e", "team=a"], 64),
        (&["llm", "-e", "=a"], 64),
        (&["none", "-e", "team=a"], 3),
        (&["llm", "-e", "none=a"], 4),
    ] {
        assert_eq!(run(words).code, Some(code), "{words:?}");
    }
}

#[tokio::test]
async fn counters_of_one_of_several_limits_are_read_reset_and_granted() {
    let redis = RedisProcess::start();
    let server = on(&redis).with_env("ADMIN_TOKEN", TOKEN).start();
    send(&server, &[("team", "a"), ("user", "x")], 4).await;
    let url = format!("http://{}", server.admin);
    let counter = |words: &[&str], entries: &[&str]| {
        let variables = [("ADMIN_TOKEN", TOKEN), ("TOLLGATE_URL", &*url)];
        let words = [&["counter"], words, &["--format", "json", "llm"], entries].concat();
        tollgate_with_env(&words, &variables)
    };
    let used = || {
        let chain = usage(&server, "e=team%3Da&e=user%3Dx");
        fields(&chain, &["name", "used"])
    };
    let team = ["team=a"];
    let budget = counter(&["get", "--limit", "budget"], &team).json();
    assert_eq!(
        (&budget["used"], &budget["limit"]["requests"]),
        (&json!(4), &json!(5_000_000_000_u64))
    );
    let own = counter(&["get"], &team).json();
    assert_eq!(own["limit"]["requests"], 4_000);
    let granted = counter(&["grant", "--hits", "3", "--limit", "budget"], &team).json();
    assert_eq!(granted["after"]["used"], 1);
    assert_eq!(used(), json!([["team", 4], ["budget", 1], ["user", 4]]));
    // The levels above keep their counts.
    counter(&["reset"], &["team=a", "user=x"]).json();
    assert_eq!(used(), json!([["team", 4], ["budget", 1], ["user", 0]]));
    counter(&["reset", "--limit", "team"], &team).json();
    assert_eq!(used(), json!([["team", 0], ["budget", 1], ["user", 0]]));
    for (words, entries, text) in [
        (&["get", "--limit", "none"][..], &team[..], "`none`; its limits: `team`, `budget`"),
        (&["reset", "--limit", "team"], &["team=a", "user=x"], "its limits: `user`"),
        (&["reset"], &["team=a", "settle="], "no limit of its own"),
    ] {
        let ran = counter(words, entries);
        ran.assert_failed(1, &[text]);
    }
}
