//! Clients that keep connections open when the process stops. The process ends when it has sent the
//! answers that it owes, whatever else is open.

use std::net::TcpStream;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::support::http::Connection;
use crate::support::{Builder, Code, TestServer, eventually, raw_grpc};
use crate::system::hostile::grpc::{Attacker, Call, SHOULD_RATE_LIMIT, WATCH, message};
use crate::system::hostile::tls::tls_server;

const SHUTDOWN_TIMEOUT: &str = "10m";
/// Without the bound, the end takes 50 s: until a client that answers no PING is closed.
const LATE: Duration = Duration::from_secs(20);
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
/// `k` has no limit in practice; of `queue` the second call waits 5 s.
const RULES: &str = "
domain: d
descriptors:
- {key: k, rate_limit: {unit: hour, requests_per_unit: 1000000}}
- key: queue
  rate_limit: {unit: minute, requests_per_unit: 12}
  metadata: {tollgate: {algorithm: leaky_bucket, on_limit: queue, max_wait: 10m}}
";

/// Connections that owe nothing to anybody.
#[derive(Default)]
struct Open {
    attackers: Vec<Attacker>,
    half_calls: Vec<(raw_grpc::Connection, raw_grpc::Call)>,
    sockets: Vec<TcpStream>,
    idle: Vec<Connection>,
}

fn server() -> Builder {
    TestServer::with_rules(RULES)
        .with_env("DRAIN_PERIOD", "0s")
        .with_env("SHUTDOWN_TIMEOUT", SHUTDOWN_TIMEOUT)
}

/// Waits for the end after a signal.
async fn ends(mut server: TestServer) {
    let began = Instant::now();
    assert_eq!(server.exit_code().await, Some(0));
    let took = began.elapsed();
    assert!(took < LATE, "{took:?}");
}

impl Open {
    /// Some of each kind on every port, on a server without other calls.
    async fn on(server: &TestServer) -> Self {
        let mut open = Self::default();
        let message = message();
        // SETTINGS_INITIAL_WINDOW_SIZE: no response can be sent.
        let no_window = &[(4, 0)];
        // None of them answers a PING, or closes after GOAWAY.
        for (path, settings, call) in [
            (SHOULD_RATE_LIMIT, &[][..], Call::Head),
            (SHOULD_RATE_LIMIT, no_window, Call::Whole(&message)),
            (WATCH, &[], Call::Whole(&[])),
            (WATCH, no_window, Call::Whole(&[])),
            (REFLECTION, &[], Call::Head),
        ] {
            let mut attacker = Attacker::connect(server.grpc, path, settings).await;
            assert!(attacker.open(10, call).await);
            open.attackers.push(attacker);
        }
        let frame = raw_grpc::frame_of(&message);
        let mut connection = raw_grpc::Connection::open(server.grpc).await;
        let mut call = connection.begin().await;
        call.send(&frame[..7]);
        open.half_calls.push((connection, call));
        // The others are closed after 5 s.
        eventually("three connections have their streams", async || {
            server.metric("tollgate_streams") >= Some(30.0)
        })
        .await;

        for addr in [server.grpc, server.http, server.admin] {
            open.sockets.push(TcpStream::connect(addr).expect("the port is open"));
        }
        for addr in [server.http, server.admin] {
            let mut half_a_head = Connection::open(addr);
            half_a_head.write(b"GET /ready HTTP/1.1\r\nhost: t").expect("it is open");
            let mut idle = Connection::open(addr);
            idle.send("GET", "/ready", "").expect("an answer");
            open.idle.extend([half_a_head, idle]);
        }
        for (addr, path) in
            [(server.http, "/json"), (server.admin, "/explain"), (server.admin, "/api/v1/counters")]
        {
            let mut half_a_body = Connection::open(addr);
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{{"
            );
            half_a_body.write(head.as_bytes()).expect("it is open");
            open.idle.push(half_a_body);
        }
        let mut events = Connection::open(server.admin);
        events.write(b"GET /api/v1/over-limit HTTP/1.1\r\nhost: test\r\n\r\n").expect("it is open");
        open.idle.push(events);
        open
    }
}

#[tokio::test]
async fn connections_that_owe_nothing_do_not_delay_the_end() {
    let server = server().start();
    let _open = Open::on(&server).await;
    server.signal("TERM");
    ends(server).await;
}

#[tokio::test]
async fn silent_tls_handshakes_do_not_delay_the_end() {
    let (builder, _authority) = tls_server();
    let server = builder
        .with_env("DRAIN_PERIOD", "0s")
        .with_env("SHUTDOWN_TIMEOUT", SHUTDOWN_TIMEOUT)
        .start();
    let _silent = TcpStream::connect(server.grpc).expect("the port is open");
    server.metric_becomes("tollgate_connections", 1.0).await;
    server.signal("TERM");
    ends(server).await;
}

#[tokio::test]
async fn calls_that_wait_for_their_slot_are_answered_before_the_end() {
    let server = server().start();
    let _open = Open::on(&server).await;
    let mut calls = JoinSet::new();
    for _ in 0..2 {
        let mut client = server.client().await;
        calls.spawn(async move { client.ask("d", &[("queue", "")]).await });
    }
    server.metric_becomes("tollgate_queue_waiters", 1.0).await;
    server.signal("TERM");
    assert_eq!(calls.join_all().await, [Code::Ok; 2]);
    ends(server).await;
}

#[tokio::test]
async fn connection_that_is_past_its_age_does_not_delay_the_end() {
    let server = server().with_env("GRPC_MAX_CONNECTION_AGE", "1s").start();
    let mut attacker = Attacker::connect(server.grpc, SHOULD_RATE_LIMIT, &[(4, 0)]).await;
    assert!(attacker.open(1, Call::Whole(&message())).await);
    server.metric_becomes("tollgate_connections_aged_total", 1.0).await;
    server.signal("TERM");
    ends(server).await;
}
