//! `/api/v1/top`, `/api/v1/over-limit` and `tollgate top`: who is limited.

use std::fs;
use std::io::{BufRead as _, Read as _};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::http::{self, Connection};
use crate::support::process::Process;
use crate::support::{Builder, Code, TestServer, look_until, request, terminal, tollgate};

/// Three requests a year for each user, of which those of a plan have none.
const RULES: &str = "
domain: d
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 3}}
  - key: plan
    value: free
    descriptors:
      - {key: user, rate_limit: {unit: year, requests_per_unit: 0}}
";

fn service() -> Builder {
    TestServer::with_rules(RULES)
}

/// The keys of `d.user`, as value, hits and hits over limit.
fn users(answer: &Value) -> Vec<(String, u64, u64)> {
    let rules = answer["rules"].as_array().expect("there are rules");
    let rule = rules.iter().find(|rule| rule["rule"] == "d.user");
    let keys = rule.map_or(&[][..], |rule| rule["keys"].as_array().expect("keys"));
    let number = |value: &Value| value.as_u64().expect("a number");
    keys.iter()
        .map(|key| {
            assert_eq!((&key["key"][0][0], &key["key"][1]), (&json!("user"), &Value::Null));
            let user = key["key"][0][1].as_str().expect("a text").to_owned();
            (user, number(&key["hits"]), number(&key["over_limit"]))
        })
        .collect()
}

fn counted(expected: &[(&str, u64, u64)]) -> Vec<(String, u64, u64)> {
    expected.iter().map(|&(user, hits, over)| (user.to_owned(), hits, over)).collect()
}

async fn send(server: &TestServer, user: &str, requests: usize) {
    let mut client = server.client().await;
    for _ in 0..requests {
        client.ask("d", &[("user", user)]).await;
    }
}

#[tokio::test]
async fn keys_are_ordered_by_hits_or_by_hits_over_limit() {
    let server = service().start();
    for (user, requests) in [("ann", 5), ("bob", 9), ("eve", 2)] {
        send(&server, user, requests).await;
    }
    let mut client = server.client().await;
    let free = [("plan", "free"), ("user", "ann")];
    assert_eq!(client.ask("d", &free).await, Code::OverLimit);
    // Neither a peek nor a refund is a hit.
    for hits in ["0", "2,\"is_negative_hits\":true"] {
        let body = format!(
            r#"{{"domain":"d","descriptors":[{{"entries":[{{"key":"user","value":"ann"}}],"hits_addend":{hits}}}]}}"#
        );
        server.json(&body);
    }

    let by_hits = counted(&[("bob", 9, 6), ("ann", 5, 2), ("eve", 2, 0)]);
    for window in ["1m", "5m", "60m"] {
        let answer = server.admin_json(&format!("/api/v1/top?window={window}&by=hits"));
        assert_eq!(users(&answer), by_hits, "{window}");
    }
    let answer = server.admin_json("/api/v1/top?by=over_limit");
    assert_eq!(users(&answer), by_hits[..2]);
    let key = json!([["plan", "free"], ["user", "ann"]]);
    let of_plan = json!({
        "domain": "d", "rule": "d.plan_free.user",
        "keys": [{"key": key, "hits": 1, "over_limit": 1}],
    });
    assert_eq!(answer["rules"][0], of_plan);
    assert_eq!(answer["replica"].as_str().map(str::len), Some(16));
    for (filter, rules) in [
        ("domain=d&rule=d.plan_free.user", json!([of_plan])),
        ("rule=d.other", json!([])),
        ("domain=other", json!([])),
    ] {
        assert_eq!(server.admin_json(&format!("/api/v1/top?{filter}"))["rules"], rules);
    }
    for invalid in ["window=2m", "by=user"] {
        let reply = http::get(server.admin, &format!("/api/v1/top?{invalid}"));
        let name = invalid.split_once('=').expect("a pair").0;
        assert_eq!(reply.status, 400);
        assert!(reply.body.contains(&format!("{name} is")), "{reply:?}");
    }
    let of_all = http::get(server.admin, "/api/v1/top?scope=fleet");
    assert_eq!(of_all.status, 400);
    assert!(of_all.body.contains("Prometheus adds up"), "{of_all:?}");
}

#[tokio::test]
async fn values_are_redacted_by_the_setting_and_the_address() {
    let everywhere = || service().with_env("DEBUG_HOST", "0.0.0.0");
    for (builder, expected) in [
        (everywhere().with_env("ADMIN_REDACT", "none"), &[("bob", 5, 2), ("ann", 4, 1)][..]),
        (service().with_env("ADMIN_REDACT", "drop"), &[("", 9, 3)]),
        (everywhere(), &[("", 9, 3)]),
    ] {
        let server = builder.start();
        send(&server, "ann", 4).await;
        send(&server, "bob", 5).await;
        let shown = users(&server.admin_json("/api/v1/top?by=hits"));
        assert_eq!(shown, counted(expected));
    }
}

/// Opens the feed by a request with more headers, and reads the head of its response.
pub(crate) fn feed(server: &TestServer, headers: &str) -> Connection {
    let mut feed = Connection::open(server.admin);
    let request = format!("GET /api/v1/over-limit HTTP/1.1\r\nhost: test\r\n{headers}\r\n");
    feed.write(request.as_bytes()).expect("it is open");
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        feed.0.read_line(&mut head).expect("there is a response");
    }
    assert!(head.contains("content-type: text/event-stream"), "{head}");
    feed
}

/// The next event of a feed.
pub(crate) fn event(feed: &mut Connection) -> Value {
    loop {
        let mut line = String::new();
        let read = feed.0.read_line(&mut line).expect("the feed goes on");
        assert!(read > 0, "the feed has ended");
        if let Some(data) = line.strip_prefix("data: ") {
            return serde_json::from_str(data).expect("it is JSON");
        }
    }
}

#[tokio::test]
async fn feed_has_responses_of_over_limit() {
    let mut server = service().with_env("ADMIN_REDACT", "drop").start();
    let mut feed = feed(&server, "");
    let mut client = server.client().await;
    let both = request("d", &[&[("user", "ann")], &[("plan", "free"), ("user", "ann")]]);
    assert_eq!(client.answer(both).await.overall_code(), Code::OverLimit);
    let event = event(&mut feed);
    let domain = &event["domain"];
    let rule = &event["rule"];
    assert_eq!((domain, rule), (&json!("d"), &json!("d.plan_free.user")));
    assert_eq!(event["descriptor"][0], json!(["plan", "free"]));
    let top = server.admin_json("/api/v1/top?by=hits&rule=d.plan_free.user");
    assert_eq!(event["descriptor"], top["rules"][0]["keys"][0]["key"]);
    assert_eq!(event["replica"], top["replica"]);
    // A reader does not delay the end.
    server.signal("INT");
    assert_eq!(server.exit_code().await, Some(0));
    let mut rest = Vec::new();
    feed.0.read_to_end(&mut rest).expect("the feed ends");
}

#[tokio::test]
async fn command_shows_keys() {
    let server = service().start();
    send(&server, "ann", 5).await;
    let url = format!("http://{}", server.admin);
    let ran = tollgate(&["top", "--url", &url, "--window", "60m"]);
    let expected = [
        "keys by hits over limit in the last 60 minutes, replica ",
        "domain  rule    key       hits  over limit\nd       d.user  user=ann     5           2\n",
    ];
    ran.assert_printed(0, &expected);
    let ran =
        tollgate(&["top", "--url", &url, "--format", "json", "--by", "hits", "--rule", "d.user"]);
    let answer = ran.json();
    assert_eq!(users(&answer), counted(&[("ann", 5, 2)]));
    let ran = tollgate(&["top", "--url", &url, "--domain", "other"]);
    assert!(ran.stdout.ends_with("\n\nno hits over limit\n"), "{ran:?}");
    let ran = tollgate(&["top", "--url", &url, "--fleet"]);
    ran.assert_failed(64, &["Prometheus adds up"]);
}

#[tokio::test]
async fn command_prints_again_on_a_terminal() {
    let server = service().start();
    send(&server, "ann", 5).await;
    let home = TempDir::new().expect("a temporary directory can be made");
    let [screen, log] = ["stdout", "stderr"].map(|name| home.path().join(name));
    let log_file = fs::File::create(&log).expect("a file can be made");
    let child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["top", "--url", &format!("http://{}", server.admin)])
        .stdout(terminal::copied_to(&screen).0)
        .stderr(log_file)
        .spawn();
    let _command = Process::of("tollgate top", child.expect("cargo has built it"), log);
    let shows = |text: &str| {
        look_until(text, || fs::read_to_string(&screen).is_ok_and(|shown| shown.contains(text)));
    };
    shows("user=ann     5           2\n");
    send(&server, "ann", 1).await;
    shows("user=ann     6           3\n");
}
