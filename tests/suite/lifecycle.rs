//! Life and death: what the doors say while the process drains, what it finishes, and what does not
//! hold it up.
//!
//! Where a test must see that nobody waits for a period, the period is ten minutes: whoever waits
//! for it fails the test.

use prost::Message as _;
use tokio::task::JoinSet;
use tollgate::base::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use tonic_health::pb::health_check_response::ServingStatus::{NotServing, Serving};

use crate::support::http::Connection;
use crate::support::{Builder, Code, TestServer, eventually, next_status, raw_grpc, request};

const NEVER: &str = "10m";
/// The second call of `queue` waits for 10 s, that of `hours` for an hour.
const RULES: &str = "
domain: d
descriptors:
- {key: k, rate_limit: {unit: year, requests_per_unit: 1000}}
- key: queue
  rate_limit: {unit: minute, requests_per_unit: 6}
  metadata: {tollgate: {algorithm: leaky_bucket, on_limit: queue, max_wait: 1h}}
- key: hours
  rate_limit: {unit: day, requests_per_unit: 24}
  metadata: {tollgate: {algorithm: leaky_bucket, on_limit: queue, max_wait: 1h}}
";
const BODY: &str = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k"}]}]}"#;

fn server(drain_period: &str, shutdown_timeout: &str) -> Builder {
    TestServer::with_rules(RULES)
        .with_env("DRAIN_PERIOD", drain_period)
        .with_env("SHUTDOWN_TIMEOUT", shutdown_timeout)
}

#[tokio::test]
async fn draining_reports_not_serving_and_serves_requests() {
    let mut server = server(NEVER, NEVER).start();
    let mut old = server.client().await;
    let mut old_http = Connection::open(server.http);
    assert_eq!(old.health("").await.expect("it is known"), Serving);

    server.signal("TERM");
    eventually("health fails", async || old.health("").await.expect("it is known") == NotServing)
        .await;

    let health = old.health("ratelimit").await;
    assert_eq!(health.expect("it is known"), NotServing);
    assert_eq!(status(&mut old_http, "GET", "/healthcheck"), 500);
    let ready = server.get("/ready");
    assert_eq!(ready.status, 503);
    assert!(ready.body.starts_with("not ready\nprocess: draining\n"), "{ready:?}");

    assert_eq!(old.ask("d", &[("k", "")]).await, Code::Ok);
    assert_eq!(server.client().await.ask("d", &[("k", "")]).await, Code::Ok);
    assert_eq!(status(&mut old_http, "POST", "/json"), 200);
    assert_eq!(server.json(BODY).status, 200);

    server.signal("TERM");
    let code = server.exit_code().await;
    assert_eq!(code, Some(0), "the second signal ends it at once");
}

/// The response on this connection; [`BODY`] is sent.
fn status(connection: &mut Connection, method: &str, path: &str) -> u16 {
    let reply = connection.send(method, path, BODY);
    reply.expect("an answer").status
}

#[tokio::test]
async fn drain_ends_the_process_while_clients_are_connected() {
    let mut server = server("300ms", NEVER).start();
    let mut client = server.client().await;
    let mut idle_http = Connection::open(server.http);
    let mut idle_admin = Connection::open(server.admin);
    assert_eq!(client.ask("d", &[("k", "")]).await, Code::Ok);
    assert_eq!(status(&mut idle_http, "GET", "/healthcheck"), 200);
    assert_eq!(status(&mut idle_admin, "GET", "/stats"), 200);

    server.signal("TERM");
    assert_eq!(server.exit_code().await, Some(0));
    server.assert_logged("draining: reporting NOT_SERVING, still serving requests");
    server.assert_logged("stopping");
}

#[tokio::test]
async fn no_request_is_lost_until_health_fails() {
    // Longer than a client needs to ask for health.
    let mut server = server("3s", NEVER).start();
    let mut callers = JoinSet::new();
    for _ in 0..4 {
        let mut client = server.client().await;
        callers.spawn(async move {
            let mut calls = 0;
            while client.health("").await.expect("it answers while it drains") == Serving {
                assert_eq!(client.ask("unknown", &[("k", "")]).await, Code::Ok);
                calls += 1;
            }
            calls
        });
    }
    server.signal("TERM");
    let calls: usize = callers.join_all().await.into_iter().sum();
    assert_eq!(server.exit_code().await, Some(0), "after {calls} calls");
}

#[tokio::test]
async fn health_watch_reports_not_serving_and_ends() {
    let mut server = server("1s", NEVER).start();
    let mut client = server.client().await;
    let mut stream = client.watch("ratelimit").await;
    assert_eq!(next_status(&mut stream).await, Serving);

    server.signal("TERM");
    assert_eq!(next_status(&mut stream).await, NotServing);
    let end = stream.message().await.expect("the stream ends well");
    assert_eq!(end, None);
    let code = server.exit_code().await;
    assert_eq!(code, Some(0), "though the client is connected");
}

#[tokio::test]
async fn sigint_skips_the_drain() {
    let mut server = server(NEVER, NEVER).start();
    server.signal("INT");
    assert_eq!(server.exit_code().await, Some(0));
}

#[tokio::test]
async fn grpc_requests_in_flight_finish_after_goaway() {
    let mut server = server("0s", NEVER).start();
    let queued = queued_grpc_call(&server, "queue").await;

    server.signal("TERM");
    ports_are_closed(&server).await;
    eventually("the client receives GOAWAY", async || queued.connection.is_told_to_go().await)
        .await;
    let ended = queued.call.ended().await;
    assert_eq!(ended.status, tonic::Code::Ok);
    let message = ended.message.expect("there is an answer");
    let answer = RateLimitResponse::decode(message).expect("it is one");
    assert_eq!(answer.overall_code(), Code::Ok);
    assert_eq!(server.exit_code().await, Some(0));
}

#[tokio::test]
async fn http_requests_in_flight_finish() {
    let mut server = server("0s", NEVER).start();
    let mut call = queued_http_call(&server, "queue").await;

    server.signal("TERM");
    ports_are_closed(&server).await;
    assert_eq!(call.read("POST").expect("an answer").status, 200);
    assert_eq!(server.exit_code().await, Some(0));
}

#[tokio::test]
async fn requests_that_take_too_long_are_closed_at_shutdown_timeout() {
    let mut grpc = server("0s", "1s").start();
    let _call = queued_grpc_call(&grpc, "hours").await;
    let mut http = server("0s", "1s").start();
    let _call = queued_http_call(&http, "hours").await;
    for server in [&mut grpc, &mut http] {
        server.signal("TERM");
        assert_eq!(server.exit_code().await, Some(0));
        server.assert_logged("still in flight at SHUTDOWN_TIMEOUT");
    }
}

#[tokio::test]
async fn a_second_signal_ends_the_process_at_once() {
    for second in ["TERM", "INT"] {
        let mut server = server("0s", NEVER).start();
        let _call = queued_grpc_call(&server, "hours").await;
        server.signal("TERM");
        ports_are_closed(&server).await;
        server.signal(second);
        assert_eq!(server.exit_code().await, Some(0), "{second}");
        server.assert_logged("second signal");
    }
}

#[test]
fn a_port_that_is_taken_is_named_with_its_setting_and_ends_it_with_1() {
    let first = server("0s", NEVER).with_env("USE_PROMETHEUS", "true").start();
    let prometheus = first.prometheus.expect("a Prometheus address").to_string();
    let taken = [
        ("GRPC_PORT", first.grpc.port().to_string()),
        ("PORT", first.http.port().to_string()),
        ("DEBUG_PORT", first.admin.port().to_string()),
        ("PROMETHEUS_ADDR", prometheus),
    ];
    for (setting, value) in taken {
        let ran = server("0s", NEVER)
            .with_env("USE_PROMETHEUS", "true")
            .with_env(setting, &value)
            .start_and_fail();
        assert_eq!(ran.code, Some(1), "{ran:?}");
        let port = value.rsplit(':').next().expect("there is a part");
        for expected in [setting, port, "Address already in use"] {
            assert!(ran.stderr.contains(expected), "{expected} is missing: {ran:?}");
        }
        assert!(!ran.stdout.contains("gRPC"), "it says that it serves: {ran:?}");
    }
}

#[tokio::test]
async fn a_closed_stderr_does_not_end_the_service() {
    let mut server = server("0s", NEVER).with_nobody_to_read_its_log().start();
    server.write("rules.yaml", "no: rules");
    server.metric_becomes("tollgate_rules_rejected", 1.0).await;
    assert_eq!(server.client().await.ask("d", &[("k", "")]).await, Code::Ok);
    assert!(server.is_running());
}

/// Waits until both Envoy-facing ports are closed.
async fn ports_are_closed(server: &TestServer) {
    let are_closed = async || {
        Connection::try_open(server.grpc).is_err() && Connection::try_open(server.http).is_err()
    };
    eventually("the ports are closed", are_closed).await;
}

/// A call of `/json` that waits for its slot.
async fn queued_http_call(server: &TestServer, key: &str) -> Connection {
    let body = BODY.replace("\"k\"", &format!("\"{key}\""));
    assert_eq!(server.json(&body).status, 200, "the first one does not wait");
    let mut call = Connection::open(server.http);
    let length = body.len();
    call.write(
        format!("POST /json HTTP/1.1\r\nhost: test\r\ncontent-length: {length}\r\n\r\n{body}")
            .as_bytes(),
    )
    .expect("the connection is open");
    server.metric_becomes("tollgate_queue_waiters", 1.0).await;
    call
}

/// A ShouldRateLimit call that waits for its slot.
struct QueuedCall {
    connection: raw_grpc::Connection,
    call: raw_grpc::Call,
}

async fn queued_grpc_call(server: &TestServer, key: &str) -> QueuedCall {
    let whole = raw_grpc::frame(&request("d", &[&[(key, "")]]));
    let mut connection = raw_grpc::Connection::open(server.grpc).await;
    let first = connection.begin().await.finish(&whole).await;
    assert_eq!(first.status, tonic::Code::Ok, "it does not wait");
    let mut call = connection.begin().await;
    call.send_last(&whole);
    server.metric_becomes("tollgate_queue_waiters", 1.0).await;
    QueuedCall { connection, call }
}
