//! `/api/v1/counters/reset` and `/grant`: what they change with every algorithm and store, and who may.

use std::fs;
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;

use crate::support::cluster::ClusterProcess;
use crate::support::counting::{ALGORITHMS, Counting, answered_by_redis, rules};
use crate::support::fault::Servers as _;
use crate::support::http::{self, Reply, bearer};
use crate::support::redis::RedisProcess;
use crate::support::{Builder, TestServer, eventually};

const LIMIT: u32 = 5;
const TOKEN: &str = "s3cret-of-admins";

fn service() -> Builder {
    TestServer::with_rules(&rules(LIMIT, "")).with_env("ADMIN_TOKEN", TOKEN)
}

fn body(key: &str, value: &str, hits: Option<u32>) -> String {
    let caller = if key == "places" { "anyone" } else { "" };
    let mut body = json!({"domain": "d", "descriptor": [[key, value], ["caller", caller]]});
    if let Some(hits) = hits {
        body["hits"] = hits.into();
    }
    body.to_string()
}

fn act_with(server: &TestServer, headers: &[String], action: &str, body: &str) -> Reply {
    http::post_with(headers, server.admin, &format!("/api/v1/counters/{action}"), body)
}

fn act(server: &TestServer, action: &str, body: &str) -> Reply {
    act_with(server, &[bearer(TOKEN)], action, body)
}

fn actions(server: &TestServer, action: &str, outcome: &str) -> Option<f64> {
    let labels = format!(r#"{{action="{action}",outcome="{outcome}"}}"#);
    server.metric(&format!("tollgate_admin_actions_total{labels}"))
}

/// Every algorithm: an exhausted counter admits what is granted and no more; a reset one the limit.
async fn actions_are_exact(server: &TestServer) {
    let mut counting = Counting::at(server).await;
    counting.wait_for_verdicts(&[("token", "another")]).await;
    for (key, algorithm) in ALGORITHMS {
        // Where over-limit hits count, more than the limit is used.
        assert_eq!(counting.admitted(key, "v", LIMIT + 3).await, LIMIT, "{algorithm}");
        let granted = act(server, "grant", &body(key, "v", Some(2)));
        if key == "places" {
            assert_eq!(granted.status, 422, "{granted:?}");
        } else {
            let changed = granted.json();
            assert_eq!(granted.status, 200, "{algorithm}: {granted:?}");
            assert_eq!(changed["before"]["over_limit"], true, "{algorithm}: {changed}");
            assert_eq!(changed["after"]["remaining"], 2, "{algorithm}: {changed}");
            assert_eq!(counting.admitted(key, "v", 4).await, 2, "{algorithm}");
        }
        let reset = act(server, "reset", &body(key, "v", None));
        let changed = reset.json();
        assert_eq!(reset.status, 200, "{algorithm}: {reset:?}");
        let used = changed["before"]["used"].as_u64();
        assert!(used >= Some(LIMIT.into()), "{algorithm}: {changed}");
        assert_eq!(changed["after"]["used"], 0, "{algorithm}: {changed}");
        assert_eq!(counting.admitted(key, "v", LIMIT + 1).await, LIMIT, "{algorithm}");
    }
}

#[tokio::test]
async fn actions_in_memory_are_exact() {
    actions_are_exact(&service().start()).await;
}

#[tokio::test]
async fn actions_in_redis_are_exact() {
    let redis = RedisProcess::start();
    let settings = [("REDIS_URL", redis.address())];
    let server = answered_by_redis(service(), &settings)
        .with_env("LOCAL_CACHE_SIZE_IN_BYTES", "1000000")
        .start();
    actions_are_exact(&server).await;
}

#[tokio::test]
async fn actions_on_a_cluster_are_exact() {
    let cluster = ClusterProcess::start();
    actions_are_exact(&answered_by_redis(service(), &cluster.settings()).start()).await;
}

#[tokio::test]
async fn a_change_is_announced_to_the_caches_of_all_replicas() {
    let redis = RedisProcess::start();
    let on_redis = || {
        answered_by_redis(service(), &[("REDIS_URL", redis.address())])
            .with_env("LOCAL_CACHE_SIZE_IN_BYTES", "1000000")
            .start()
    };
    let one = on_redis();
    let other = on_redis();
    let mut at_one = Counting::at(&one).await;
    let mut at_other = Counting::at(&other).await;
    at_one.wait_for_verdicts(&[("counted", "another")]).await;
    at_other.wait_for_verdicts(&[("counted", "another")]).await;
    at_one.admitted("counted", "v", LIMIT).await;
    assert_eq!(at_other.admitted("counted", "v", 3).await, 0);
    let cached = "tollgate_over_limit_cache_hits_total";
    assert!(other.metric(cached) > Some(0.0));

    let mut connection = redis.connection();
    let limit = Some(Duration::from_secs(30));
    connection.set_read_timeout(limit).expect("it is no zero");
    let mut messages = connection.as_pubsub();
    messages.subscribe("tg:replicas:0").expect("it is allowed");
    assert_eq!(act(&one, "reset", &body("counted", "v", None)).status, 200);
    // Heartbeats are on the same channel.
    while messages
        .get_message()
        .and_then(|message| message.get_payload::<String>())
        .expect("there is a message")
        != "!"
    {}
    eventually("the other replica admits hits", async || {
        at_other.admitted("counted", "v", 1).await == 1
    })
    .await;
}

#[tokio::test]
async fn without_redis_nothing_is_changed() {
    let mut redis = RedisProcess::start();
    let server = answered_by_redis(service(), &[("REDIS_URL", redis.address())]).start();
    let mut counting = Counting::at(&server).await;
    counting.wait_for_verdicts(&[("token", "v")]).await;
    redis.kill();
    let reply = act(&server, "reset", &body("token", "v", None));
    assert_eq!(reply.status, 503, "{reply:?}");
    assert_eq!(actions(&server, "reset", "failed"), Some(1.0));
    server.assert_logged_once("admin action failed");
}

#[test]
fn actions_need_the_token() {
    let server = TestServer::with_rules(&rules(LIMIT, "")).start();
    let reset = body("token", "v", None);
    let reply = act(&server, "reset", &reset);
    assert_eq!(reply.status, 403, "{reply:?}");
    assert_eq!(actions(&server, "reset", "forbidden"), Some(1.0));

    let server = service().start();
    let wrong = [
        vec![],
        vec![bearer("wrong")],
        vec![bearer(&TOKEN[1..])],
        vec![format!("authorization: Basic {TOKEN}")],
    ];
    for headers in &wrong {
        let reply = act_with(&server, headers, "reset", &reset);
        assert_eq!(reply.status, 401, "{headers:?}: {reply:?}");
        assert!(reply.has_header("www-authenticate: Bearer"), "{reply:?}");
    }
    assert_eq!(actions(&server, "reset", "unauthorized"), Some(4.0));
    assert_eq!(act(&server, "reset", &reset).status, 200);
    assert_eq!(actions(&server, "reset", "done"), Some(1.0));
    server.assert_not_logged(TOKEN);
}

#[test]
fn guesses_are_throttled() {
    let server = service().start();
    let reset = body("token", "v", None);
    let guess = |number| act_with(&server, &[bearer(&format!("guess-{number}"))], "reset", &reset);
    let replies: Vec<Reply> = (0..12).map(guess).collect();
    let unauthorized = replies.iter().filter(|reply| reply.status == 401).count();
    // One may have come back meanwhile.
    assert!((10..12).contains(&unauthorized), "{replies:?}");
    let throttled = replies.iter().find(|reply| reply.status == 429);
    assert!(throttled.is_some_and(|reply| reply.has_header("retry-after: 6")), "{replies:?}");
    // Reads are not throttled.
    server.admin_json("/api/v1/counters?domain=d&e=token%3Dv&e=caller%3D");
}

#[tokio::test]
async fn token_file_is_reloaded() {
    let directory = TempDir::new().expect("a temporary directory can be made");
    let file = directory.path().join("token");
    let write = |token: &str| fs::write(&file, token).expect("a file can be written");
    write("first\n");
    let server = TestServer::with_rules(&rules(LIMIT, ""))
        .with_env("ADMIN_TOKEN", "beside")
        .with_env("ADMIN_TOKEN_FILE", &file.display().to_string())
        .start();
    let status = |token: &str| {
        act_with(&server, &[bearer(token)], "reset", &body("token", "v", None)).status
    };
    assert_eq!((status("first"), status("beside")), (200, 401));
    write("second\n");
    eventually("the token is reloaded", async || server.log().contains("admin token reloaded"))
        .await;
    assert_eq!((status("second"), status("first")), (200, 401));
    for (content, reason) in [("", "is empty"), (" second \n", "begins or ends with a blank")] {
        write(content);
        let rejected = "reload of the admin token rejected; the previous content stays in use";
        eventually("the file is rejected", async || {
            let log = server.log();
            log.lines().any(|line| line.contains(rejected) && line.contains(reason))
        })
        .await;
        assert_eq!(status("second"), 200);
    }
    assert!(server.log().contains("ADMIN_TOKEN has fewer than 16 characters"));
}

#[tokio::test]
async fn each_action_is_logged_once_at_every_level() {
    let server = service().with_env("LOG_LEVEL", "error").start();
    let value = "v\u{1b}";
    let mut counting = Counting::at(&server).await;
    counting.admitted("counted", value, LIMIT + 1).await;
    let before = server.log();
    let grant = act(&server, "grant", &body("counted", value, Some(3)));
    assert_eq!(grant.status, 200);
    let log = server.log_with("action=grant");
    let lines: Vec<&str> = log[before.len()..].lines().collect();
    assert_eq!(lines.len(), 1, "{log}");
    let (of_before, of_after) = lines[0].split_once(" after=").expect("it has both");
    let expected = "admin action action=grant remote=127.0.0.1 domain=d descriptor=\"counted=v\\u001b,caller=\" hits=3 before=";
    assert!(of_before.contains(expected), "{of_before}");
    assert!(of_before.contains(r#"\"used\":6"#), "{of_before}");
    assert!(of_after.contains(r#"\"used\":2"#), "{of_after}");
    server.assert_not_logged(TOKEN);
    server.assert_not_logged("\u{1b}");
}

/// An action, its body, the status and a text of the answer.
const REJECTED: &str = r#"
reset |  | 400 | EOF
reset | [] | 400 | invalid length
reset | {"domain": "d"} | 400 | missing field `descriptor`
reset | {"domain": "", "descriptor": [["token", "v"]]} | 400 | a domain and a descriptor are needed
reset | {"domain": "d", "descriptor": [["", "v"]]} | 400 | a domain and a descriptor are needed
reset | {"domain": "d", "descriptor": []} | 400 | a domain and a descriptor are needed
reset | {"domain": "d", "descriptor": [["token"]]} | 400 | invalid length 1
reset | {"domain": "d", "descriptor": [["token", 1]]} | 400 | expected a string
reset | {"domain": "d", "descriptor": [["token", "v"]], "hits": 1} | 400 | unknown field `hits`
reset | {"domain": "d", "descriptors": [["token", "v"]]} | 400 | unknown field `descriptors`
grant | {"domain": "d", "descriptor": [["token", "v"], ["caller", ""]]} | 400 | missing field `hits`
grant | {"domain": "d", "descriptor": [["token", "v"], ["caller", ""]], "hits": 0} | 400 | expected a nonzero u64
grant | {"domain": "d", "descriptor": [["token", "v"], ["caller", ""]], "hits": -1} | 400 | expected a nonzero u64
grant | {"domain": "d", "descriptor": [["token", "v"], ["caller", ""]], "hits": 6} | 422 | at most its limit, 5 hits
reset | {"domain": "d", "descriptor": [["unknown", "v"]]} | 404 | no such key
reset | {"domain": "d", "descriptor": [["places", "v"], ["caller", ""]]} | 400 | names the holder of a slot
"#;

#[test]
fn invalid_actions_are_rejected() {
    let server = service().start();
    for line in REJECTED.trim().lines() {
        let cells: Vec<&str> = line.split(" | ").collect();
        let reply = act(&server, cells[0], cells[1]);
        assert_eq!(reply.status.to_string(), cells[2], "{line}: {reply:?}");
        assert!(reply.json()["error"].is_string(), "{reply:?}");
        assert!(reply.body.contains(&cells[3].replace('"', "\\\"")), "{line}: {reply:?}");
    }
    let large = body("token", &"v".repeat(20_000), None);
    assert_eq!(act(&server, "reset", &large).status, 413);
}
