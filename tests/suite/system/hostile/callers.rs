//! Callers of the admin port that are no operators: pages of other sites in an operator's browser,
//! guesses of the token, readers who look for values of clients, and a network that loses answers.

use std::io::BufReader;

use serde_json::{Value, json};

use crate::support::counting::{Counting, answered_by_redis, rules};
use crate::support::http::{self, Connection, Reply, bearer};
use crate::support::proxy::Proxy;
use crate::support::redis::RedisProcess;
use crate::support::{Builder, Code, TestServer, eventually, limit_of};
use crate::system::hostile::UnderAttack;
use crate::system::hostile::admin::connect_from;

const TOKEN: &str = "s3cret-of-admins";
const RESET: &str = r#"{"domain": "d", "descriptor": [["k", ""]]}"#;
const NOSNIFF: &str = "x-content-type-options: nosniff";

fn server() -> Builder {
    TestServer::with_rules(&limit_of(1_000_000_000))
        .with_envs(&[("WORKERS", "1"), ("ADMIN_TOKEN", TOKEN)])
}

/// A response to a request with exactly these headers.
fn send(addr: std::net::SocketAddr, line: &str, headers: &[&str], body: &str) -> Reply {
    let headers: Vec<String> = headers.iter().map(|line| format!("{line}\r\n")).collect();
    let headers = headers.concat();
    let length = body.len();
    let text = format!("{line} HTTP/1.1\r\n{headers}content-length: {length}\r\n\r\n{body}");
    let mut connection = Connection::open(addr);
    connection.write(text.as_bytes()).expect("it is connected");
    connection.read("").expect("there is a response")
}

/// Every kind of path: pages, the API, the console and its files, probes, and unknown ones.
const REQUESTS: [&str; 19] = [
    "GET /",
    "GET /metrics",
    "GET /stats",
    "GET /rlconfig",
    "GET /ready",
    "GET /live",
    "GET /healthcheck",
    "GET /explain?domain=d&descriptor=k%3Dv",
    "GET /console/rules",
    "GET /console/console.js",
    "GET /unknown",
    "POST /metrics",
    "GET /api/v1/rules",
    "GET /api/v1/top",
    "GET /api/v1/counters?domain=d&e=k%3D",
    "GET /api/v1/unknown",
    "POST /api/v1/counters/reset",
    "PUT /api/v1/rules/rules.yaml",
    "GET /api/v1/rules/rules.yaml",
];

/// Headers of requests that pages of other sites cause, and what the answer has.
const FOREIGN: [(&[&str], &str); 5] = [
    (&["host: evil.example"], "ADMIN_HOSTS"),
    (&["host: 127.0.0.1.evil.example:6070"], "ADMIN_HOSTS"),
    (&["host: localhost", "origin: http://evil.example"], "another origin"),
    (&["host: localhost", "origin: null"], "another origin"),
    (
        &["host: localhost", "sec-fetch-site: cross-site", "sec-fetch-mode: no-cors"],
        "another origin",
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_other_sites_read_and_change_nothing() {
    let attacked = UnderAttack::start(server().with_envs(&[
        ("USE_PROMETHEUS", "true"),
        ("ADMIN_HOSTS", "ratelimit.example.com, Other.example.com."),
        ("DEBUG_HOST", "127.0.0.1"),
    ]));
    let server = &attacked.server;
    let prometheus = server.prometheus.expect("it listens");
    for (headers, text) in FOREIGN {
        let bearer = bearer(TOKEN);
        let headers = [headers, &[&bearer]].concat();
        let of_admin = REQUESTS.map(|line| (server.admin, line));
        for (addr, line) in of_admin.into_iter().chain([(prometheus, "GET /metrics")]) {
            let reply = send(addr, line, &headers, RESET);
            assert_eq!(reply.status, 403, "{line} {headers:?}: {reply:?}");
            assert!(reply.body.contains(text), "{line} {headers:?}: {reply:?}");
            assert_eq!(reply.body.lines().count(), 1, "{reply:?}");
        }
    }
    let absolute = send(server.admin, "GET http://evil.example/", &["host: localhost"], "");
    assert_eq!(absolute.status, 403, "{absolute:?}");
    let rejected = |reason| {
        let series = format!(r#"tollgate_admin_foreign_requests_total{{reason="{reason}"}}"#);
        server.metric(&series)
    };
    // With the page of metrics at its own address.
    let requests = u32::try_from(REQUESTS.len() + 1).expect("few");
    assert_eq!(rejected("host"), Some(f64::from(2 * requests + 1)));
    assert_eq!(rejected("origin"), Some(f64::from(3 * requests)));
    server.assert_not_logged("evil.example");
    // Which callers are served is tested with the code.
    for addr in [server.admin, prometheus] {
        let own = send(addr, "GET /metrics", &["host: OTHER.example.com"], "");
        assert_eq!(own.status, 200, "{own:?}");
    }
    attacked.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_locked_out_by_others_of_the_same_address() {
    let attacked = UnderAttack::start(server().with_env("RULES_WRITABLE", "true"));
    let server = &attacked.server;
    let reset = |headers: &[String]| {
        http::post_with(headers, server.admin, "/api/v1/counters/reset", RESET).status
    };
    for _ in 0..30 {
        assert_eq!(reset(&[]), 401, "it is no attempt");
    }
    let guesses: Vec<u16> =
        (0..30).map(|guess| reset(&[bearer(&format!("guess-{guess}"))])).collect();
    assert_eq!(guesses[..10], [401; 10]);
    let throttled = guesses.iter().filter(|status| **status == 429).count();
    assert!(throttled > 0, "{guesses:?}");
    let series = r#"tollgate_admin_actions_total{action="reset",outcome="throttled"}"#;
    server.assert_metric(series, f64::from(u32::try_from(throttled).expect("few")));
    let mut elsewhere = Connection(BufReader::new(connect_from(1, server.admin)));
    let guess = [bearer("guess")];
    let reply = elsewhere.send_with(&guess, "POST", "/api/v1/counters/reset", RESET);
    let status = reply.expect("there is a response").status;
    assert_eq!(status, 401, "each address has its own attempts");
    assert_eq!(reset(&[bearer(TOKEN)]), 200);
    let put = |token: &str| {
        let headers = [bearer(token), "if-match: other".to_owned()];
        let mut connection = Connection::open(server.admin);
        let reply = connection.send_with(&headers, "PUT", "/api/v1/rules/rules.yaml", "domain: d");
        reply.expect("there is a response").status
    };
    assert_eq!((put("guess"), put(TOKEN)), (429, 412));
    attacked.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_characters_of_clients_are_escaped_and_no_response_is_sniffed() {
    let detailed = "  - key: user\n    detailed_metric: true\n    rate_limit: {unit: day, requests_per_unit: 10}\n";
    let rules = format!("{}{detailed}", limit_of(1_000_000_000));
    let attacked =
        UnderAttack::start(TestServer::with_rules(&rules).with_env("ADMIN_REDACT", "none"));
    let server = &attacked.server;
    let value = "\u{1b}]0;x\u{7}\u{9b}2J\r\nlive: 1";
    let mut client = server.client().await;
    assert_eq!(client.ask("d", &[("user", value)]).await, Code::Ok);
    let encoded = "%1b%5d0;x%07%c2%9b2J%0d%0alive:+1";
    let explain = [
        format!("GET /explain?domain=d&descriptor=user%3D{encoded}"),
        format!("GET /explain?domain=d&descriptor=unknown%3D{encoded}"),
        format!("GET /explain?domain={encoded}&descriptor=user%3D1"),
        format!("GET /explain?domain=d&descriptor=%3D{encoded}"),
        format!("GET /rlconfig?format={encoded}"),
    ];
    for line in explain.iter().map(String::as_str).chain(REQUESTS) {
        let reply = send(server.admin, line, &["host: localhost"], "{}");
        assert!(reply.has_header(NOSNIFF), "{line}: {reply:?}");
        let is_bad = |letter: char| letter.is_control() && letter != '\n';
        let is_text =
            reply.headers.iter().any(|header| header.starts_with("content-type: text/plain"));
        assert!(!is_text || !reply.body.contains(is_bad), "{line}: {reply:?}");
        assert!(!reply.body.lines().any(|line| line == "live: 1"), "{line}: {reply:?}");
    }
    let body =
        json!({"domain": "d", "descriptors": [{"entries": [{"key": "user", "value": value}]}]});
    let by_body = http::post(server.admin, "/explain", &body.to_string());
    assert!(
        by_body.body.contains(r"descriptor user=\u{1b}]0;x\u{7}\u{9b}2J\u{d}\u{a}live: 1"),
        "{by_body:?}"
    );
    let field = format!("{{\"{value}\": 1}}").replace(['\r', '\n'], "");
    for (addr, path) in [(server.admin, "/explain"), (server.http, "/json")] {
        let reply = http::post(addr, path, &field.replace('\u{1b}', "\\u001b"));
        assert_eq!(reply.status, 400, "{reply:?}");
        assert!(
            !reply.body.trim_end().contains(|letter: char| letter.is_control() && letter != '\n'),
            "{reply:?}"
        );
    }
    attacked.finish().await;
}

/// Hits that a counter admits.
const LIMIT: u32 = 5;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_action_reports_what_is_known_of_it_whichever_reply_is_lost() {
    let redis = RedisProcess::start();
    let proxy = Proxy::before(redis.port());
    let settings = [("REDIS_URL", proxy.addr().to_string())];
    let server = TestServer::with_rules(&rules(LIMIT, "")).with_env("ADMIN_TOKEN", TOKEN);
    let server = answered_by_redis(server, &settings).start();
    let mut counting = Counting::at(&server).await;
    for algorithm in ["counted", "token"] {
        counting.wait_for_verdicts(&[(algorithm, "first")]).await;
        for (action, hits, after) in [("grant", 2, 2), ("reset", 0, LIMIT)] {
            let act = |value: &str| {
                let mut body =
                    json!({"domain": "d", "descriptor": [[algorithm, value], ["caller", ""]]});
                if hits > 0 {
                    body["hits"] = hits.into();
                }
                let headers = [bearer(TOKEN)];
                let path = format!("/api/v1/counters/{action}");
                let reply = http::post_with(&headers, server.admin, &path, &body.to_string());
                let answer: Value = serde_json::from_str(&reply.body).expect("it is JSON");
                (reply.status, answer)
            };
            let warm_up = format!("{algorithm}-{action}");
            eventually("Redis knows the script", async || act(&warm_up).0 == 200).await;
            // A read, the action and a read.
            for lost in 0..4 {
                let value = format!("{algorithm}-{action}-{lost}");
                counting.wait_for_verdicts(&[(algorithm, "first")]).await;
                assert_eq!(counting.admitted(algorithm, &value, LIMIT).await, LIMIT);
                proxy.drop_reply_to(value.as_bytes(), lost);
                let (status, answer) = act(&value);
                assert_eq!(proxy.has_dropped_reply(), lost < 3, "{value}: {status} {answer}");
                let (expected, reason, admitted) = match lost {
                    0 => (503, "nothing was changed", 0),
                    1 => (503, "may have changed", after),
                    _ => (200, "", after),
                };
                assert_eq!(status, expected, "{value}: {answer}");
                let error = answer["error"].as_str().unwrap_or_default();
                assert!(error.contains(reason), "{answer}");
                assert_eq!(answer["note"].is_string(), lost == 2, "{answer}");
                counting.wait_for_verdicts(&[(algorithm, "first")]).await;
                assert_eq!(
                    counting.admitted(algorithm, &value, LIMIT + 3).await,
                    admitted,
                    "{value}"
                );
            }
        }
    }
}
