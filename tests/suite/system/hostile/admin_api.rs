//! Clients of `/api/v1` and the console that hold connections, do not read, or send ten megabytes,
//! while another client is served.

use std::thread;

use crate::support::http::{self, Connection};
use crate::support::{Builder, Code, TestServer, limit_of, look_until, request, resident_peak_kib};
use crate::system::hostile::admin::{Attack, assert_probes};
use crate::system::hostile::{RESIDENT_MAX_KIB, UnderAttack, WellBehaved};

const OVERSIZED_BYTES: usize = 10 << 20;
const FULL: &str = "tollgate_admin_responses_full_total";

fn server() -> Builder {
    let limit = limit_of(1_000_000_000);
    let keys = rules_with_keys();
    TestServer::with_files([("rules.yaml", &*limit), ("keys.yaml", &*keys)]).with_envs(&[
        ("WORKERS", "1"),
        ("DRAIN_PERIOD", "0s"),
        ("ADMIN_TOKEN", "open-sesame"),
        ("ADMIN_REDACT", "none"),
    ])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_connections_are_bounded_and_calls_are_answered() {
    let server = server().start();
    let client = WellBehaved::start(&server);
    for path in ["", "/api/v1/over-limit"] {
        let attack = match path {
            "" => Attack::Nothing,
            path => Attack::Pipelined(path, 1),
        };
        for addresses in [1, 250] {
            let _attackers = attack.start(server.admin, addresses);
            assert_probes(&server, &format!("{attack:?} from {addresses} addresses"));
        }
    }
    let closed = server.metric("tollgate_http_connections_full_total");
    assert!(closed > Some(2_000.0), "{closed:?}");
    client.finish(&server).await;
}

/// Rules with keys: some megabytes in an answer.
const KEY_RULES: usize = 50;
const KEYS: usize = 100;

fn rules_with_keys() -> String {
    let rule = |number| {
        format!("  - {{key: k{number}, rate_limit: {{unit: hour, requests_per_unit: 1}}}}\n")
    };
    let rules: String = (0..KEY_RULES).map(rule).collect();
    format!("domain: keys\ndescriptors:\n{rules}")
}

async fn name_keys(server: &TestServer) {
    let mut client = server.client().await;
    for key in 0..KEYS {
        // A client may choose values that are as long in JSON as can be.
        let value = format!("{key:\u{1}>240}");
        let entries: Vec<_> =
            (0..KEY_RULES).map(|rule| [(format!("k{rule}"), value.clone())]).collect();
        let entries: Vec<_> =
            entries.iter().map(|[(key, value)]| [(key.as_str(), value.as_str())]).collect();
        let descriptors: Vec<&[(&str, &str)]> = entries.iter().map(|one| &one[..]).collect();
        let answer = client.answer(request("keys", &descriptors)).await;
        assert_eq!(answer.overall_code(), Code::Ok);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_readers_of_large_answers_use_little_memory_and_are_closed() {
    let top = "/api/v1/top?by=hits&window=60m";
    let server = server().start();
    name_keys(&server).await;
    let answer = http::get(server.admin, top);
    assert_eq!(answer.body.matches("\"hits\"").count(), KEY_RULES * KEYS);
    assert!(answer.body.len() > 6 << 20, "{}", answer.body.len());

    let client = WellBehaved::start(&server);
    let attackers = Attack::Pipelined(top, 2).start(server.admin, 250);
    look_until("responses are rejected", || server.metric(FULL) > Some(0.0));
    assert_probes(&server, "while answers are not read");
    look_until("connections are closed", || {
        server.metric("tollgate_http_write_timeouts_total") > Some(0.0)
    });
    client.finish(&server).await;
    drop(attackers);
    look_until("others get an answer", || http::get(server.admin, top).status == 200);
    let peak = resident_peak_kib(server.pid());
    assert!(peak < RESIDENT_MAX_KIB, "{peak} KiB");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_ten_megabytes_are_rejected_and_not_held() {
    let attacked = UnderAttack::start(server());
    let server = &attacked.server;
    let large = "x".repeat(OVERSIZED_BYTES);
    let sent = |method: &str, path: &str| {
        let chunked = format!("transfer-encoding: chunked\r\n\r\n{OVERSIZED_BYTES:x}\r\n{large}");
        let announced = format!("content-length: {OVERSIZED_BYTES}\r\n\r\n{large}");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer open-sesame\r\n"
        );
        [chunked, announced].map(|body| format!("{head}{body}"))
    };
    let mut requests = Vec::new();
    for path in [
        "/api/v1/counters?domain=d&e=",
        "/api/v1/top?domain=",
        "/console/rules?q=",
        "/console/key?domain=d&e=",
        "/explain?domain=",
        "/",
    ] {
        requests.push((431, format!("GET {path}{large} HTTP/1.1\r\nhost: test\r\n\r\n")));
    }
    requests.push((431, format!("GET / HTTP/1.1\r\nhost: test\r\nx: {large}\r\n\r\n")));
    for path in ["/api/v1/counters", "/api/v1/counters/reset", "/api/v1/counters/grant", "/explain"]
    {
        requests.extend(sent("POST", path).map(|request| (413, request)));
    }
    thread::scope(|scope| {
        for (expected, request) in &requests {
            let admin = server.admin;
            scope.spawn(move || {
                for _ in 0..3 {
                    let mut connection = Connection::open(admin);
                    // The server answers, and closes before it has read all of it.
                    let _ = connection.write(request.as_bytes());
                    let status = connection.read("GET").expect("there is a reply").status;
                    assert_eq!(status, *expected, "{}", &request[..60]);
                }
            });
        }
    });
    assert_probes(server, "after requests of ten megabytes");
    attacked.finish().await;
}
