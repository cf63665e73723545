//! Connections to the gRPC and HTTP listeners: how they are accepted and closed.

use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::transport::Endpoint;
use tower::service_fn;

use crate::support::{
    Builder, Client, Code, PATIENCE, TestServer, eventually, http, limit_of, raw_grpc, request,
};

fn server() -> Builder {
    TestServer::with_rules(&limit_of(1_000_000)).with_env("DRAIN_PERIOD", "0s")
}

/// A client on a Unix socket.
async fn client_at(path: &Path) -> Client {
    let path = path.to_owned();
    let connect = service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://localhost").timeout(PATIENCE);
    Client::on(endpoint.connect_with_connector(connect).await.expect("a listener"))
}

/// A whole call.
fn call() -> Vec<u8> {
    raw_grpc::frame(&request("d", &[&[("k", "")]]))
}

#[tokio::test]
async fn grpc_on_a_unix_socket_is_announced_answered_and_removed_at_the_end() {
    let home = TempDir::new().expect("a temporary directory can be made");
    let path = home.path().join("tollgate.sock");
    let mut server = server()
        .with_env("GRPC_UDS", path.to_str().expect("it is text"))
        .with_env("WORKERS", "2")
        .start();
    server.assert_announced(&format!("gRPC     unix:{}\n", path.display()));

    let mut clients = Vec::new();
    for _ in 0..4 {
        let mut client = client_at(&path).await;
        assert_eq!(client.ask("d", &[("k", "")]).await, Code::Ok);
        clients.push(client);
    }
    assert_eq!(server.get("/healthcheck").status, 200, "HTTP has its port as ever");
    server.metric_becomes("tollgate_connections", 4.0).await;

    server.signal("TERM");
    assert_eq!(server.exit_code().await, Some(0));
    assert!(!path.exists(), "it is removed");
}

#[tokio::test]
async fn each_door_is_where_its_host_and_port_say() {
    // Another test could take one of them, of 28,000.
    let free = || {
        TcpListener::bind("127.0.0.2:0")
            .expect("any port will do")
            .local_addr()
            .expect("it is bound")
    };
    let http = free();
    let grpc = free();
    let debug = free();
    let listeners = [("", http), ("GRPC_", grpc), ("DEBUG_", debug)];
    let server = listeners.iter().fold(server(), |server, (prefix, addr)| {
        server
            .with_env(&format!("{prefix}HOST"), "127.0.0.2")
            .with_env(&format!("{prefix}PORT"), &addr.port().to_string())
    });
    let server = server.start();
    assert_eq!((server.http, server.grpc, server.admin), (http, grpc, debug));
    assert_eq!(http::get(http, "/healthcheck").status, 200);
    assert!(http::get(debug, "/metrics").body.contains("tollgate_rules 1"));
    assert_eq!(Client::connect(grpc).await.ask("d", &[("k", "")]).await, Code::Ok);
}

#[tokio::test]
async fn connections_end_at_their_age_and_lose_no_call() {
    const CONNECTIONS: usize = 12;
    let server =
        server().with_env("GRPC_MAX_CONNECTION_AGE", "2s").with_env("WORKERS", "2").start();
    let began = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let addr = server.grpc;
        callers.spawn(async move {
            let mut connection = raw_grpc::Connection::open(addr).await;
            // Until GOAWAY. Every call in flight succeeds, or this panics.
            while let Some(begun) = connection.try_begin().await {
                assert_eq!(begun.finish(&call()).await.status, tonic::Code::Ok);
            }
            let age = began.elapsed();
            let mut next = raw_grpc::Connection::open(addr).await;
            assert_eq!(
                next.begin().await.finish(&call()).await.status,
                tonic::Code::Ok,
                "new connections are served"
            );
            age
        });
    }
    let ages = callers.join_all().await;
    // A tenth less than 2 s at most.
    assert!(ages.iter().all(|age| *age >= Duration::from_millis(1_790)), "{ages:?}");
    assert!(server.metric("tollgate_connections_aged_total") >= Some(12.0));
    server.assert_metric("tollgate_connections_force_closed_total", 0.0);
}

#[tokio::test]
async fn what_is_in_flight_when_the_grace_is_over_is_cut_off() {
    let server = server()
        .with_env("GRPC_MAX_CONNECTION_AGE", "1s")
        .with_env("GRPC_MAX_CONNECTION_AGE_GRACE", "1500ms")
        .start();
    let mut connection = raw_grpc::Connection::open(server.grpc).await;
    let mut begun = connection.begin().await;
    begun.send(&call()[..7]);
    eventually("GOAWAY", async || connection.is_told_to_go().await).await;
    server.metric_becomes("tollgate_connections", 0.0).await;
    server.assert_metric("tollgate_connections_force_closed_total", 1.0);
}
