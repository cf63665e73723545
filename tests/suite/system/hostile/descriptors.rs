//! Connections that are held open beyond the limit of file descriptors of the process.

use std::net::{SocketAddr, TcpStream};
use std::thread;

use crate::support::redis::RedisProcess;
use crate::support::{Builder, Client, Code, TestServer, eventually, limit_of};
use crate::system::hostile::admin::probe;
use crate::system::hostile::{UnderAttack, server};

/// What a process gets from a careless unit file, and more connections than that.
const DESCRIPTORS: u32 = 256;
const CONNECTIONS: usize = 900;

/// Starts it with this limit of file descriptors, as the hard limit and the soft one.
fn limited(builder: Builder, descriptors: &str) -> Builder {
    let limit = format!(r#"ulimit {descriptors}; exec "$0" "$@""#);
    builder.run_by(&["sh", "-c", &limit])
}

fn ports(server: &TestServer) -> [SocketAddr; 4] {
    let prometheus = server.prometheus.expect("it is bound");
    [server.grpc, server.http, server.admin, prometheus]
}

fn hold(addr: SocketAddr) -> Vec<TcpStream> {
    (0..CONNECTIONS).map(|_| TcpStream::connect(addr).expect("the port is open")).collect()
}

/// Liveness, readiness, and calls on new connections.
async fn assert_served(server: &TestServer) {
    for (addr, path) in
        [(server.admin, "/live"), (server.admin, "/healthcheck"), (server.http, "/healthcheck")]
    {
        assert_eq!(probe(addr, path), Some(200), "{path}");
    }
    assert_eq!(server.client().await.ask("d", &[("k", "")]).await, Code::Ok);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_leave_descriptors_for_probes_and_calls() {
    for port in 0..4 {
        let builder = server("2").with_env("USE_PROMETHEUS", "true");
        let builder = builder.with_env("LOG_LEVEL", "debug");
        let attack = UnderAttack::start(limited(builder, &format!("-n {DESCRIPTORS}")));
        attack.server.assert_logged("the limit of file descriptors");
        let _held = hold(ports(&attack.server)[port]);
        assert_served(&attack.server).await;
        attack.server.assert_metric("tollgate_accept_errors_total", 0.0);
        attack.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_and_rules_are_reachable_beside_silent_connections() {
    let mut redis = RedisProcess::start();
    let builder =
        server("2").with_env("USE_PROMETHEUS", "true").with_env("REDIS_URL", &redis.address());
    let server = limited(builder, &format!("-n {DESCRIPTORS}")).start();
    let held: Vec<_> = ports(&server).into_iter().map(hold).collect();
    redis.restart();
    let mut client = server.client().await;
    eventually("Redis is used again", async || client.ask("d", &[("k", "")]).await == Code::Ok)
        .await;
    server.write("rules.yaml", &limit_of(0));
    eventually("the rules are in force", async || {
        client.ask("d", &[("k", "")]).await == Code::OverLimit
    })
    .await;
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_silent_connections_do_not_delay_probes() {
    let builder = server("2").with_env("USE_PROMETHEUS", "true");
    let server = limited(builder, "-n 1024").start();
    let grpc = server.grpc;
    let attacker = thread::spawn(move || {
        for _ in 0..3 {
            drop(hold(grpc));
        }
    });
    while !attacker.is_finished() {
        assert_served(&server).await;
    }
    attacker.join().expect("every connection was accepted");
    server.assert_metric("tollgate_accept_errors_total", 0.0);
}

#[tokio::test]
async fn soft_limit_of_descriptors_is_raised() {
    let server = limited(server("1"), "-Sn 64").start();
    assert!(server.metric("process_max_fds") > Some(64.0));
    let mut client = Client::connect(server.grpc).await;
    assert_eq!(client.ask("d", &[("k", "")]).await, Code::Ok);
}

#[test]
fn too_few_descriptors_are_an_error() {
    let ran = limited(server("2"), "-n 128").start_and_fail();
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("128 file descriptors are too few for 2 workers"), "{ran:?}");
}
