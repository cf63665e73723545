//! Connections that do not finish their TLS handshake.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tollgate::api::handshakes::HANDSHAKES_MAX;

use crate::support::certificates::{Authority, KeyForm};
use crate::support::{Builder, TestServer, eventually, raw_grpc, request};
use crate::system::hostile::server;

/// A server with TLS and one worker, and its authority.
pub(super) fn tls_server() -> (Builder, Authority) {
    let authority = Authority::new();
    let identity = authority.sign("server", "DNS:localhost", KeyForm::Pkcs8);
    let path = |path: &std::path::Path| path.to_str().expect("it is text").to_owned();
    let server = server("1")
        .with_env("GRPC_SERVER_USE_TLS", "true")
        .with_env("GRPC_SERVER_TLS_CERT", &path(&identity.cert))
        .with_env("GRPC_SERVER_TLS_KEY", &path(&identity.key));
    (server, authority)
}

/// One call on a connection of its own.
async fn call(server: &TestServer, authority: &Authority) -> tonic::Code {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(authority.cacert()).expect("it is a certificate"))
        .expect("it is an authority's");
    let versions = ClientConfig::builder_with_provider(tollgate::base::net::tls::provider())
        .with_safe_default_protocol_versions();
    let mut config =
        versions.expect("they are known").with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(server.grpc).await.expect("the port is open");
    let name = ServerName::try_from("localhost").expect("it is a name");
    let stream =
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.expect("it is accepted");
    let mut connection = raw_grpc::Connection::over(stream, server.grpc).await;
    connection.begin().await.finish(&raw_grpc::frame(&request("d", &[&[("k", "")]]))).await.status
}

#[tokio::test]
async fn silent_client_is_evicted_for_a_handshake() {
    let (builder, authority) = tls_server();
    let server = builder.start();
    let mut silent = Vec::new();
    for _ in 0..600 {
        silent.push(TcpStream::connect(server.grpc).await.expect("the port is open"));
    }
    assert_eq!(call(&server, &authority).await, tonic::Code::Ok);
    let evicted = server
        .metric("tollgate_tls_handshakes_failed_total{reason=\"evicted\"}")
        .expect("it is counted");
    let late = server
        .metric("tollgate_tls_handshakes_failed_total{reason=\"timeout\"}")
        .expect("it is counted");
    #[expect(clippy::cast_precision_loss, reason = "it is a small number")]
    let max = HANDSHAKES_MAX as f64;
    let full = server.metric("tollgate_tls_handshakes_full_total");
    assert!(
        full >= Some(evicted) && full <= Some(601.0 - max),
        "each that waited is counted once, and {evicted} were closed: {full:?}"
    );
    assert!(evicted + late >= 601.0 - max, "{evicted} evicted, {late} late");
    server.metric_becomes("tollgate_connections", 0.0).await;
}

#[tokio::test]
async fn client_that_stops_after_its_hello_is_evicted() {
    let (builder, authority) = tls_server();
    let server = builder.start();
    // What a client says first, as long as it needs no answer.
    let mut hello = Vec::new();
    let config = ClientConfig::builder_with_provider(tollgate::base::net::tls::provider())
        .with_safe_default_protocol_versions();
    let config = config
        .expect("they are known")
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("it is a name");
    let mut client =
        rustls::ClientConnection::new(Arc::new(config), name).expect("it is a configuration");
    client.write_tls(&mut hello).expect("it is written to memory");
    let mut stopped = Vec::new();
    for _ in 0..HANDSHAKES_MAX {
        let mut stream = TcpStream::connect(server.grpc).await.expect("the port is open");
        stream.write_all(&hello).await.expect("the connection is open");
        stopped.push(stream);
    }
    eventually("all are accepted", async || {
        server.metric("tollgate_connections_accepted_total") >= Some(256.0)
    })
    .await;
    assert_eq!(call(&server, &authority).await, tonic::Code::Ok);
    // It is 0 where the handshakes are over before the last one began, on a slow machine.
    assert!(server.metric("tollgate_tls_handshakes_full_total") <= Some(1.0));
    drop(stopped);
    tokio::time::timeout(Duration::from_secs(60), call(&server, &authority))
        .await
        .expect("others are served");
}
