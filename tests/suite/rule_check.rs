//! `/api/v1/rules/{file}/check` and `/simulate`: what a change of a rules file would do, and that
//! asking changes nothing.

use std::fs;
use std::thread;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::http::{self, Connection, Reply};
use crate::support::redis::RedisProcess;
use crate::support::{Builder, Code, TestServer, eventually, look_until, write};

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: path, value: /login, rate_limit: {unit: year, requests_per_unit: 4}}
  - {key: path, value: /static/*, rate_limit: {unit: year, requests_per_unit: 9}}
";

fn service() -> Builder {
    TestServer::with_rules(RULES)
}

fn post(server: &TestServer, path: &str, text: &str) -> Reply {
    http::post(server.admin, &format!("/api/v1/rules/{path}"), text)
}

fn answer(reply: &Reply) -> Value {
    assert_eq!(reply.status, 200, "{reply:?}");
    serde_json::from_str(&reply.body).expect("it is JSON")
}

/// The result of a check of `rules.yaml`.
fn check(server: &TestServer, text: &str) -> Value {
    answer(&post(server, "rules.yaml/check", text))
}

async fn ask(server: &TestServer, key: &str, value: &str, requests: usize) {
    let mut client = server.client().await;
    for _ in 0..requests {
        client.ask("shop", &[(key, value)]).await;
    }
}

/// A result without findings, differences and keys.
fn assert_nothing_found(checked: &Value) {
    for list in ["errors", "warnings", "differences", "keys"] {
        assert_eq!(checked[list], json!([]), "{list}: {checked}");
    }
    assert_eq!(checked["valid"], true, "{checked}");
}

#[tokio::test]
async fn rules_in_force_have_no_differences() {
    let server = service().start();
    ask(&server, "user", "ann", 3).await;
    let checked = check(&server, RULES);
    assert_nothing_found(&checked);
    assert_eq!(checked["replica"].as_str().map(str::len), Some(16));
}

#[test]
fn errors_have_their_place_and_nothing_is_compared() {
    let server = service().start();
    let text = RULES.replace("year, requests_per_unit: 5", "yaer, requests_per_unit: 5");
    let checked = check(&server, &text);
    let error = &checked["errors"][0];
    assert_eq!(
        (&error["file"], &error["line"], &checked["valid"]),
        (&json!("rules.yaml"), &json!(4), &json!(false)),
        "{checked}"
    );
    assert!(error["column"].as_u64() > Some(1), "{error}");
    for (name, expected) in [
        ("message", "invalid rate limit unit 'yaer'"),
        ("place", "domain shop > descriptors[0].rate_limit"),
        ("hint", "year"),
    ] {
        let found = error[name].as_str().unwrap_or_default();
        assert!(found.contains(expected), "{name}: {error}");
    }
    let compared = [&checked["differences"], &checked["keys"]];
    assert_eq!(compared, [&json!([]), &json!([])]);
    let syntax = check(&server, "domain: shop\ndescriptors: [\n");
    assert_eq!(syntax["valid"], false);
    assert!(syntax["errors"][0]["line"].as_u64() >= Some(2), "{syntax}");
}

#[test]
fn bytes_that_are_not_utf8_are_an_error_of_their_line() {
    let server = service().start();
    let mut connection = Connection::open(server.admin);
    let body = b"domain: shop\ndescriptors:\n  - key: \xff\n";
    let head = format!(
        "POST /api/v1/rules/rules.yaml/check HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let request = [head.as_bytes(), body].concat();
    connection.write(&request).expect("it is sent");
    let checked = answer(&connection.read("POST").expect("a response"));
    assert_eq!(checked["errors"][0]["line"], 3, "{checked}");
}

#[test]
fn warnings_have_their_line() {
    let server = service().start();
    let text = format!("{RULES}  - {{key: plan, shadow_mode: true}}\n");
    let checked = check(&server, &text);
    assert_eq!(
        (&checked["valid"], &checked["errors"]),
        (&json!(true), &json!([]))
    );
    let warning = &checked["warnings"][0];
    assert_eq!(
        (&warning["file"], &warning["line"]),
        (&json!("rules.yaml"), &json!(7)),
        "{checked}"
    );
    let message = warning["message"].as_str().expect("a text");
    assert!(message.contains("`shadow_mode` has no effect"), "{message}");
}

#[test]
fn rules_are_added_removed_and_changed() {
    let server = service().start();
    let text = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: month, requests_per_unit: 5}}
  - {key: path, value: /static/*, rate_limit: {unit: year, requests_per_unit: 8}}
  - {key: plan, rate_limit: {unit: year, requests_per_unit: 1}}
";
    let checked = check(&server, text);
    let differences = checked["differences"].as_array().expect("a list");
    let shown: Vec<_> = differences
        .iter()
        .map(|one| {
            let [change, rule] = ["change", "rule"].map(|name| one[name].as_str().expect("text"));
            let amount = |side: &str| one[side]["requests_per_unit"].as_u64();
            let restarts = one["counter_restarts"].as_bool().expect("a boolean");
            (change, rule, amount("before"), amount("after"), restarts)
        })
        .collect();
    let expected = [
        ("removed", "shop.path_/login", Some(4), None, false),
        ("changed", "shop.path_/static/*", Some(9), Some(8), false),
        ("added", "shop.plan", None, Some(1), false),
        ("changed", "shop.user", Some(5), Some(5), true),
    ];
    assert_eq!(shown, expected, "{checked}");
    assert_eq!(differences[3]["after"]["unit"], "month");
    assert_eq!(differences[3]["after"]["source"]["line"], 4);
    assert_eq!(checked["differences_left_out"], 0);
}

#[test]
fn differences_are_bounded() {
    let server = service().start();
    let rules = (0..510).map(|number| {
        format!("  - {{key: k{number}, rate_limit: {{unit: day, requests_per_unit: 1}}}}\n")
    });
    let text = format!("{RULES}{}", rules.collect::<String>());
    let checked = check(&server, &text);
    let shown = checked["differences"].as_array().map(Vec::len);
    assert_eq!(
        (shown, &checked["differences_left_out"]),
        (Some(500), &json!(10))
    );
}

#[test]
fn other_files_and_the_overlay_are_compiled_as_well() {
    let home = TempDir::new().expect("a temporary directory");
    let overlay = home.path().join("overlay.yaml");
    let text = "overlays: [{domain: '*', tollgate: {defaults: {algorithm: token_bucket}}}]\n";
    write(&overlay, text);
    let server = TestServer::with_files([
        ("rules.yaml", RULES),
        ("other.yaml", "domain: other\ndescriptors: []\n"),
        ("below/third.yaml", "domain: third\ndescriptors: []\n"),
    ])
    .with_env("TOLLGATE_OVERLAY", &overlay.display().to_string())
    .start();
    assert_nothing_found(&check(&server, RULES));
    let checked = check(
        &server,
        &format!("{RULES}  - {{key: plan, rate_limit: {{unit: day, requests_per_unit: 1}}}}\n"),
    );
    assert_eq!(
        checked["differences"][0]["after"]["algorithm"],
        "token_bucket"
    );
    for (file, domain, at) in [
        ("new.yaml", "other", "other.yaml"),
        ("rules.yaml", "third", "rules.yaml"),
    ] {
        let text = format!("domain: {domain}\ndescriptors: []\n");
        let checked = answer(&post(&server, &format!("{file}/check"), &text));
        let error = &checked["errors"][0];
        assert_eq!(error["file"], at, "{checked}");
        let message = error["message"].as_str().expect("a text");
        assert!(
            message.contains(&format!("duplicate domain '{domain}'")),
            "{message}"
        );
    }
    // A file that is not there yet.
    let text =
        "domain: fourth\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]\n";
    let checked = answer(&post(&server, "new.yaml/check", text));
    assert_eq!(checked["differences"][0]["rule"], "fourth.a", "{checked}");
    // The overlay as it is now.
    write(&overlay, "overlays: 5\n");
    let checked = check(&server, RULES);
    let file = checked["errors"][0]["file"].as_str();
    assert_eq!(file, overlay.to_str(), "{checked}");
}

/// A key as `KEY=VALUE HITS: BEFORE -> AFTER`, with `restarts` for a counter that does.
fn keys(checked: &Value) -> Vec<String> {
    let side = |side: &Value| {
        let over = match side["over_limit"].as_bool() {
            Some(true) => ", over",
            Some(false) => "",
            None => ", unknown",
        };
        let limit = side["limit"].as_str().unwrap_or("none");
        let limit = limit.replace(", fixed_window, over-limit hits count", "");
        let mode = side["mode"].as_str().expect("a mode");
        let mode = if mode == "enforced" { "" } else { mode };
        format!("{limit} {mode}{over}")
            .replace(" ,", ",")
            .trim()
            .to_owned()
    };
    let keys = checked["keys"].as_array().expect("a list");
    keys.iter()
        .map(|key| {
            let entry = |at: usize| key["key"][0][at].as_str().expect("text");
            let restarts = key["counter_restarts"] == true;
            let restarts = if restarts { ", restarts" } else { "" };
            let (before, after) = (side(&key["before"]), side(&key["after"]));
            let (name, value, hits) = (entry(0), entry(1), &key["hits"]);
            format!("{name}={value} {hits}: {before} -> {after}{restarts}")
        })
        .collect()
}

const CHANGES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: user, value: ann, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: path, value: /static/*, shadow_mode: true, rate_limit: {unit: month, requests_per_unit: 9}}
";

#[tokio::test]
async fn keys_that_are_treated_differently_are_those_with_hits() {
    let server = service().start();
    for (key, value, requests) in [
        ("user", "ann", 7),
        ("user", "bob", 3),
        ("user", "eve", 1),
        ("path", "/login", 5),
        ("path", "/static/a", 2),
        ("unknown", "x", 4),
    ] {
        ask(&server, key, value, requests).await;
    }
    let checked = check(&server, CHANGES);
    let expected = [
        "user=ann 7: 5 per year, over -> 100 per year",
        "path=/login 5: 4 per year, over -> none not_limited",
        "user=bob 3: 5 per year -> 3 per year, over",
        "path=/static/a 2: 9 per year -> 9 per month shadow, restarts",
        "user=eve 1: 5 per year -> 3 per year",
    ];
    assert_eq!(keys(&checked), expected, "{checked}");
    assert_eq!(checked["keys"][0]["after"]["rule"], "shop.user_ann");
    assert_eq!(checked["keys"][0]["over_limit"], 2);
    assert_eq!(checked["keys_left_out"], 0);
    for (window, found) in [("1m", 5), ("60m", 5)] {
        let path = format!("rules.yaml/check?window={window}");
        let checked = answer(&post(&server, &path, CHANGES));
        assert_eq!(checked["keys"].as_array().map(Vec::len), Some(found));
    }
    let reply = post(&server, "rules.yaml/check?window=2m", CHANGES);
    assert_eq!(reply.status, 400, "{reply:?}");
    // The counters say so after the change is applied, too.
    server.write("rules.yaml", CHANGES);
    server.metric_becomes("tollgate_rules", 3.0).await;
    eventually("the change is in force", async || {
        server.admin("/rlconfig").contains("user_ann")
    })
    .await;
    let mut client = server.client().await;
    for (user, expected) in [
        ("bob", Code::OverLimit),
        ("ann", Code::Ok),
        ("eve", Code::Ok),
    ] {
        assert_eq!(
            client.ask("shop", &[("user", user)]).await,
            expected,
            "{user}"
        );
    }
}

#[tokio::test]
async fn keys_are_bounded() {
    let server = service().start();
    for number in 0..60 {
        ask(&server, "user", &format!("user-{number}"), 1).await;
    }
    ask(&server, "user", "often", 2).await;
    let text = RULES.replace("requests_per_unit: 5", "requests_per_unit: 6");
    let checked = check(&server, &text);
    let keys = checked["keys"].as_array().expect("a list");
    assert_eq!((keys.len(), &checked["keys_left_out"]), (50, &json!(11)));
    assert_eq!(keys[0]["key"], json!([["user", "often"]]));
}

#[tokio::test]
async fn holders_of_slots_are_one_key() {
    let rules = "
domain: shop
descriptors:
  - key: job
    rate_limit: {unit: second, requests_per_unit: 1}
    metadata: {tollgate: {algorithm: concurrency, lease_by: job, lease: 1h}}
";
    let server = TestServer::with_rules(rules).start();
    ask(&server, "job", "one", 1).await;
    ask(&server, "job", "two", 1).await;
    let text = rules.replace("requests_per_unit: 1", "requests_per_unit: 2");
    let checked = check(&server, &text);
    let key = &checked["keys"][0];
    let over = |side: &str| key[side]["over_limit"].as_bool();
    assert_eq!(key["hits"], 2, "{checked}");
    assert_eq!((over("before"), over("after")), (Some(true), Some(false)));
}

#[tokio::test]
async fn redacted_values_are_neither_shown_nor_found_by_a_pattern() {
    {
        let server = service().with_env("ADMIN_REDACT", "drop").start();
        ask(&server, "user", "ann", 7).await;
        ask(&server, "user", "bob", 1).await;
        let all = RULES.replace("requests_per_unit: 5", "requests_per_unit: 6");
        let checked = check(&server, &all);
        assert!(!checked.to_string().contains("ann"), "{checked}");
        let keys = checked["keys"].as_array().expect("a list");
        assert_eq!(keys.len(), 1, "{checked}");
        let key = &keys[0];
        assert_eq!(key["before"]["over_limit"], true, "its own counter: {key}");
        assert_eq!(key["after"]["over_limit"], true, "7 hits of 6: {key}");
        // A pattern would spell a value, letter by letter.
        for value in ["ann", "an*"] {
            let guess = format!(
                "  - {{key: user, value: '{value}', rate_limit: {{unit: day, requests_per_unit: 1}}}}\n"
            );
            let checked = check(&server, &format!("{RULES}{guess}"));
            assert_eq!(checked["keys"], json!([]), "{value}: {checked}");
        }
    }
}

#[tokio::test]
async fn check_changes_nothing() {
    let redis = RedisProcess::start();
    let server = service().with_env("REDIS_URL", &redis.url()).start();
    ask(&server, "user", "ann", 6).await;
    let state = || {
        let keys: Vec<String> = redis.command(&["KEYS", "shop_*"]);
        let key = keys.first().expect("a counter").clone();
        let metrics = server.admin("/metrics");
        let of_rules = metrics.lines().filter(|line| {
            let names = [
                "ratelimit_service_rate_limit",
                "tollgate_rules",
                "ratelimit_service_config",
            ];
            names.iter().any(|name| line.starts_with(name))
        });
        let mut of_rules: Vec<String> = of_rules.map(str::to_owned).collect();
        of_rules.sort();
        (
            keys,
            redis.text(&["GET", &key]),
            server.admin("/rlconfig"),
            fs::read_to_string(server.path("rules.yaml")).expect("it exists"),
            of_rules,
        )
    };
    let lifetime = || {
        let keys: Vec<String> = redis.command(&["KEYS", "shop_*"]);
        redis.command::<i64>(&["PTTL", &keys[0]])
    };
    let (before, first) = (state(), lifetime());
    let checked = check(&server, CHANGES);
    assert_eq!(
        keys(&checked)[0],
        "user=ann 6: 5 per year, over -> 100 per year",
        "{checked}"
    );
    let scenario = "rules.yaml/simulate?domain=shop&e=user%3Dann&traffic=double";
    answer(&post(&server, scenario, CHANGES));
    check(&server, "domain: [");
    assert_eq!(state(), before);
    assert!(lifetime() <= first, "it only gets shorter");
    let files = fs::read_dir(server.path("")).expect("a folder");
    assert_eq!(files.count(), 1);
}

#[test]
fn unreadable_rules_are_an_error_without_a_place() {
    let server = service().start();
    fs::remove_dir_all(server.path("")).expect("it exists");
    let checked = check(&server, RULES);
    assert_eq!(checked["valid"], false);
    let message = checked["errors"][0]["message"].as_str().expect("a text");
    assert!(message.contains("read rules from"), "{checked}");
}

#[test]
fn files_that_cannot_be_rules_are_rejected() {
    let server = service().start();
    for (file, status) in [
        ("..%2Fother.yaml", 400),
        (".hidden.yaml", 400),
        ("rules.test.yaml", 400),
        ("below/rules.yaml", 404),
    ] {
        for endpoint in ["check", "simulate?domain=d&e=a%3Db"] {
            let reply = post(&server, &format!("{file}/{endpoint}"), RULES);
            assert_eq!(reply.status, status, "{file}: {reply:?}");
        }
    }
    let xds = TestServer::with_xds("127.0.0.1:1").start();
    let reply = post(&xds, "rules.yaml/check", RULES);
    assert_eq!(reply.status, 404, "{reply:?}");
    assert!(reply.body.contains("control plane"), "{reply:?}");
}

#[test]
fn texts_beyond_the_bound_are_rejected() {
    let server = service().start();
    let large = format!("{RULES}#{}", "x".repeat(1 << 20));
    for endpoint in ["check", "simulate?domain=shop&e=user"] {
        let reply = post(&server, &format!("rules.yaml/{endpoint}"), &large);
        assert_eq!(reply.status, 413, "{reply:?}");
    }
    assert_nothing_found(&check(
        &server,
        &format!("{RULES}#{}", "x".repeat(1_000_000)),
    ));
}

#[test]
fn checks_beyond_the_bound_are_rejected_and_counted() {
    let server = service().start();
    let rules = (0..2_000).map(|number| {
        format!("  - {{key: k{number}, rate_limit: {{unit: year, requests_per_unit: 5}}}}\n")
    });
    let text: Vec<_> = std::iter::once(RULES.to_owned()).chain(rules).collect();
    let text = text.concat();
    look_until("there are more checks than places", || {
        let check = || post(&server, "rules.yaml/check", &text);
        let replies: Vec<_> = thread::scope(|scope| {
            let checks: Vec<_> = (0..12).map(|_| scope.spawn(check)).collect();
            let ended = checks.into_iter().map(thread::ScopedJoinHandle::join);
            ended.map(|reply| reply.expect("it ends")).collect()
        });
        let full = replies.iter().filter(|reply| reply.status == 429);
        for reply in full.clone() {
            assert!(reply.has_header("retry-after: 1"), "{reply:?}");
        }
        full.count() > 0
    });
    let full = server.metric("tollgate_rule_checks_full_total");
    assert!(full >= Some(1.0), "{full:?}");
    assert_nothing_found(&check(&server, RULES));
}

/// What passes of requests for `user=ann`, with this text and these parameters.
fn simulate(server: &TestServer, parameters: &str, text: &str) -> Value {
    let path = format!("rules.yaml/simulate?domain=shop&e=user%3Dann{parameters}");
    answer(&post(server, &path, text))
}

#[test]
fn simulation_shows_what_passes_before_and_after() {
    let rules = RULES.replace(
        "unit: year, requests_per_unit: 5",
        "unit: minute, requests_per_unit: 5",
    );
    let server = TestServer::with_rules(&rules).start();
    let text = rules.replace("requests_per_unit: 5", "requests_per_unit: 2");
    let played = simulate(&server, "&traffic=double", &text);
    assert_eq!(
        (
            &played["requests"],
            &played["period_ms"],
            &played["requests_by_period"]
        ),
        (&json!(60), &json!(60_000), &json!([10, 10, 10, 10, 10, 10])),
        "{played}"
    );
    let (before, after) = (&played["before"], &played["after"]);
    assert_eq!(before["admitted_by_period"], json!([5, 5, 5, 5, 5, 5]));
    assert_eq!(after["admitted_by_period"], json!([2, 2, 2, 2, 2, 2]));
    assert_eq!(
        (&after["admitted"], &after["over_limit"]),
        (&json!(12), &json!(48))
    );
    // Every 6 s: the third one.
    assert_eq!(after["first_over_limit_ms"], 12_000);
    assert_eq!(
        after["limit"],
        "2 per minute, fixed_window, over-limit hits count"
    );
    assert_eq!(after["rule"], "shop.user");
    let columns = played["after"]["admitted_by_column"]
        .as_array()
        .expect("a list");
    assert_eq!(
        (columns.len(), &columns[0], &columns[5]),
        (60, &json!(1), &json!(0))
    );

    let removed = rules.replace("key: user", "key: other");
    let played = simulate(&server, "&traffic=1&periods=2", &removed);
    assert_eq!(played["requests_by_period"], json!([60, 60]));
    assert_eq!(played["before"]["admitted_by_period"], json!([5, 5]));
    let after = &played["after"];
    assert_eq!(
        (&after["admitted"], &after["limit"]),
        (&json!(120), &json!(null))
    );
    assert_eq!(after["not_limited"], "it matches no rule with a limit");
    assert_eq!(after["first_over_limit_ms"], json!(null));
}

#[test]
fn simulation_covers_the_longer_period_and_is_bounded() {
    let rules = RULES.replace(
        "unit: year, requests_per_unit: 5",
        "unit: second, requests_per_unit: 100",
    );
    let server = TestServer::with_rules(&rules).start();
    let hour = rules.replace(
        "unit: second, requests_per_unit: 100",
        "unit: hour, requests_per_unit: 1000",
    );
    let played = simulate(&server, "&periods=1", &hour);
    // A hundred per second would be 360,000.
    assert_eq!(
        (&played["period_ms"], &played["requests"]),
        (&json!(3_600_000), &json!(100_000))
    );
    let note = played["note"].as_str().expect("a text");
    assert!(note.contains("simulated_requests_max"), "{note}");
    assert_eq!(played["before"]["over_limit"], 0);
    assert_eq!(played["after"]["admitted"], 1_000);
}

#[test]
fn simulation_of_slots_uses_the_time_that_they_are_held() {
    let rules = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: second, requests_per_unit: 2}
    metadata: {tollgate: {algorithm: concurrency, lease_by: user, lease: 1h}}
";
    let server = TestServer::with_rules(rules).start();
    let text = rules.replace("requests_per_unit: 2", "requests_per_unit: 1");
    let played = simulate(&server, "&hold=500ms&periods=4", &text);
    assert_eq!(played["period_ms"], 500, "{played}");
    assert_eq!(played["before"]["admitted_by_period"], json!([2, 2, 2, 2]));
    assert_eq!(played["after"]["admitted_by_period"], json!([1, 1, 1, 1]));
}

/// Parameters | status | a text of the reason.
const WRONG_SCENARIOS: &str = "
domain=shop | 400 | a domain and at least one entry are needed
e=user%3Dann | 400 | a domain and at least one entry are needed
domain=shop&e=%3Dann | 400 | has no key
domain=shop&e=user%3Dann&traffic=fast | 400 | traffic: write steady, double, bursty
domain=shop&e=user%3Dann&periods=61 | 400 | periods: write a number from 1 to 60
domain=shop&e=user%3Dann&hold=0s | 400 | hold: write a duration that is longer than 0
domain=shop&e=other%3D1 | 400 | write a number of requests per second
domain=none&e=user%3Dann&traffic=double | 400 | there is no such domain
domain=shop&e=user%3Dann&periods=60&traffic=steady | 200 | 60
";

#[test]
fn scenarios_that_cannot_be_played_are_rejected() {
    let server = service().start();
    for line in WRONG_SCENARIOS.trim().lines() {
        let cells: Vec<&str> = line.split(" | ").collect();
        let reply = post(&server, &format!("rules.yaml/simulate?{}", cells[0]), RULES);
        assert_eq!(reply.status.to_string(), cells[1], "{line}: {reply:?}");
        assert!(reply.body.contains(cells[2]), "{line}: {reply:?}");
    }
    let played = answer(&post(
        &server,
        "rules.yaml/simulate?domain=none&e=a%3Db&traffic=10",
        RULES,
    ));
    assert_eq!(
        played["requests_by_period"],
        json!([10, 10, 10, 10, 10, 10])
    );
    let reply = post(
        &server,
        "rules.yaml/simulate?domain=shop&e=user%3Dann",
        "domain: shop\ndescriptors: [{}]\n",
    );
    assert_eq!(reply.status, 422, "{reply:?}");
    assert!(reply.body.contains("rules.yaml:2: "), "{reply:?}");
}
