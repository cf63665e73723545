//! A log that is not read: the pipe is full, and its reading end stays open.

use std::io::{PipeReader, Read as _};
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use tempfile::TempDir;
use tonic::transport::Endpoint;

use crate::support::{
    Builder, Client, Code, PATIENCE, TestServer, eventually, limit_of, look_until,
};
use crate::system::hostile::UnderAttack;

const DROPPED: &str = "tollgate_log_lines_dropped_total";
/// Above the lines that the queue holds.
const OVER_LIMIT_CALLS: u32 = 3_000;
const RULES: &str = "\
domain: d
descriptors:
  - key: k
    rate_limit: {unit: year, requests_per_unit: 1000000000}
  - key: user
    rate_limit: {unit: year, requests_per_unit: 0}
";

/// A server that logs every over-limit call.
fn server() -> Builder {
    TestServer::with_rules(RULES)
        .with_env("LOG_LEVEL", "warn")
        .with_env("REFUSALS_LOG_SAMPLE_RATE", "1")
        .with_env("REFUSALS_LOG_LINES_PER_SECOND_MAX", "1000000")
}

async fn call_over_limit(server: &TestServer) {
    let mut client = server.client().await;
    let value = "v".repeat(1_000);
    for _ in 0..OVER_LIMIT_CALLS {
        assert_eq!(client.ask("d", &[("user", &value)]).await, Code::OverLimit);
    }
}

/// Reads a log in a thread: what was read so far.
fn read(mut log: PipeReader) -> Arc<Mutex<Vec<u8>>> {
    let text = Arc::<Mutex<Vec<u8>>>::default();
    let read = text.clone();
    thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(bytes @ 1..) = log.read(&mut buffer) {
            read.lock().extend_from_slice(&buffer[..bytes]);
        }
    });
    text
}

/// The numbers of dropped lines in a log, in sum.
fn reported(log: &[u8]) -> u32 {
    let log = String::from_utf8_lossy(log);
    let numbers = log.lines().filter_map(|line| line.split_once("log lines dropped lines="));
    numbers.map(|(_, number)| number.parse::<u32>().expect("a number")).sum()
}

#[tokio::test]
async fn unread_log_delays_no_call_and_lost_lines_are_reported_once_it_is_read() {
    let (builder, log) = server().with_full_log();
    let attack = UnderAttack::start(builder);
    let server = &attack.server;
    call_over_limit(server).await;
    assert_eq!(server.get("/healthcheck").status, 200);
    let dropped = server.metric(DROPPED);
    assert!(dropped > Some(0.0), "every line fits");
    let log = read(log);
    look_until("the log says how many lines were lost", || {
        Some(f64::from(reported(&log.lock()))) == dropped
    });
    let log = String::from_utf8(log.lock().clone()).expect("it is text");
    let lines = u32::try_from(log.matches("over limit").count()).expect("there are few");
    server.assert_metric(DROPPED, f64::from(OVER_LIMIT_CALLS - lines));
    attack.finish().await;
}

#[tokio::test]
async fn unread_log_delays_no_reload() {
    let (builder, _log) = server().with_full_log();
    let server = builder.start();
    let rule = |index: u32| format!("  - key: key{index}\n    rate_limit: {{unit: x}}\n");
    let rules: String = (0..400).map(rule).collect();
    for _ in 0..3 {
        server.write("rules.yaml", &format!("domain: d\ndescriptors:\n{rules}"));
        server.metric_becomes("tollgate_rules_rejected", 1.0).await;
        server.write("rules.yaml", &limit_of(0));
        server.metric_becomes("tollgate_rules_rejected", 0.0).await;
    }
    let answer = server.client().await.ask("d", &[("k", "")]).await;
    assert_eq!(answer, Code::OverLimit);
}

#[tokio::test]
async fn unread_log_does_not_delay_the_end() {
    // The second signal ends the drain of the second server.
    for (drain_period, signals) in [("0s", 1), ("1h", 2)] {
        let (builder, _log) = server()
            .with_env("LOG_LEVEL", "info")
            .with_env("DRAIN_PERIOD", drain_period)
            .with_full_log();
        let mut server = builder.start();
        call_over_limit(&server).await;
        server.signal("TERM");
        if signals == 2 {
            let drains = async || server.get("/healthcheck").status != 200;
            eventually("it drains", drains).await;
            server.signal("TERM");
        }
        assert_eq!(server.exit_code().await, Some(0), "{signals} signals");
    }
}

#[tokio::test]
async fn unread_stdout_and_stderr_do_not_delay_the_start() {
    let home = TempDir::new().expect("a temporary directory can be made");
    let socket = home.path().join("grpc");
    let mut server = server()
        .with_env("GRPC_UDS", socket.to_str().expect("a plain name"))
        // Lines before the ports are bound, too.
        .with_env("LOG_LEVEL", "trace")
        .with_env("DRAIN_PERIOD", "0s")
        .start_unread();
    eventually("gRPC is on the socket", async || socket.exists()).await;
    let endpoint = Endpoint::try_from(format!("unix:{}", socket.display()));
    let endpoint = endpoint.expect("a plain name").timeout(PATIENCE);
    let channel = endpoint.connect().await.expect("it listens");
    let answer = Client::on(channel).ask("d", &[("k", "")]).await;
    assert_eq!(answer, Code::Ok);
    server.process.signal("TERM");
    eventually("it ends", async || server.process.ended().is_some()).await;
    assert!(server.process.wait_until_ended().success());
}

#[tokio::test]
async fn unread_stderr_does_not_delay_the_end_of_a_failed_start() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = taken.local_addr().expect("it is bound").port();
    let mut server = server().with_env("PORT", &port.to_string()).start_unread();
    assert_eq!(server.process.wait_until_ended().code(), Some(1));
}
