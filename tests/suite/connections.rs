//! Connections to the gRPC and HTTP listeners: how they are accepted and closed.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixListener;
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

/// The same port on the machine itself, by both families.
fn loopbacks(addr: SocketAddr) -> [SocketAddr; 2] {
    [(Ipv4Addr::LOCALHOST, addr.port()).into(), (Ipv6Addr::LOCALHOST, addr.port()).into()]
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
async fn a_socket_of_a_process_that_is_no_more_is_taken_over() {
    let home = TempDir::new().expect("a temporary directory can be made");
    let path = home.path().join("tollgate.sock");
    drop(UnixListener::bind(&path).expect("no listener"));
    assert!(fs::metadata(&path).expect("it was left behind").file_type().is_socket());
    let _server = server().with_env("GRPC_UDS", path.to_str().expect("it is text")).start();
    assert_eq!(client_at(&path).await.ask("d", &[("k", "")]).await, Code::Ok);
}

#[tokio::test]
async fn a_socket_that_somebody_listens_at_and_any_other_file_are_left_alone() {
    let home = TempDir::new().expect("a temporary directory can be made");
    let path = home.path().join("tollgate.sock");
    let path = path.to_str().expect("it is text");
    let _first = server().with_env("GRPC_UDS", path).start();
    let ran = server().with_env("GRPC_UDS", path).start_and_fail();
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.stderr.contains("(GRPC_UDS): another process listens on it")
            && ran.stderr.contains(path),
        "{ran:?}"
    );
    assert_eq!(client_at(Path::new(path)).await.ask("d", &[("k", "")]).await, Code::Ok);

    let file = home.path().join("notes");
    fs::write(&file, "precious").expect("a file can be written");
    let ran = server().with_env("GRPC_UDS", file.to_str().expect("it is text")).start_and_fail();
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("the file is not a socket"), "{ran:?}");
    assert_eq!(fs::read_to_string(&file).expect("it is there"), "precious");
}

#[tokio::test]
async fn a_host_of_two_colons_is_every_address_of_ipv6_and_ipv4() {
    for every in ["::", "[::]", ""] {
        let server = server()
            .with_env("HOST", every)
            .with_env("GRPC_HOST", every)
            .with_env("DEBUG_HOST", every)
            .with_env("USE_PROMETHEUS", "true")
            .with_env("PROMETHEUS_ADDR", if every == "::" { "[::]:0" } else { ":0" })
            .start();
        for addr in loopbacks(server.http).into_iter().chain(loopbacks(server.admin)) {
            assert_eq!(http::get(addr, "/healthcheck").status, 200, "{every}: {addr}");
        }
        for addr in loopbacks(server.prometheus.expect("it is bound")) {
            assert_eq!(http::get(addr, "/metrics").status, 200, "{every}: {addr}");
        }
        for addr in loopbacks(server.grpc) {
            assert_eq!(
                Client::connect(addr).await.ask("d", &[("k", "")]).await,
                Code::Ok,
                "{every}: {addr}"
            );
        }
    }
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
