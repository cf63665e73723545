//! Connections to a control plane: addresses, TLS, unresponsive servers, health, settings.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use serde_json::json;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio_stream::wrappers::UnixListenerStream;
use tollgate::base::proto::ratelimit::config::ratelimit::v3::RateLimitConfig;
use tonic_health::pb::health_check_response::ServingStatus::{NotServing, Serving};

use crate::reload::limit_becomes;
use crate::support::certificates::{Authority, KeyForm};
use crate::support::proxy::Proxy;
use crate::support::xds::{ControlPlane, Puppet, Stream, response, rules_of};
use crate::support::{
    Builder, TestServer, assert_settings_rejected, eventually, limit_of, look_until,
};
use crate::xds::helpers::{GATEWAY, asking, logged, resource, subscribed};

const CERT: &str = "CONFIG_GRPC_XDS_CLIENT_TLS_CERT";
const KEY: &str = "CONFIG_GRPC_XDS_CLIENT_TLS_KEY";
const CACERT: &str = "CONFIG_GRPC_XDS_SERVER_TLS_CACERT";
/// The system's authorities are those that it names.
const SYSTEM: &str = "SSL_CERT_FILE";
/// The name of the server.
const NAMED: (&str, &str) = ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "envoy-gateway");

fn by_tls(addr: SocketAddr) -> Builder {
    asking(addr).with_env("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain name")
}

#[tokio::test]
async fn mtls_works_with_certificates_of_envoy_gateway() {
    let authority = Authority::new();
    let plane =
        ControlPlane::start_with_tls(&authority.sign("envoy-gateway", GATEWAY, KeyForm::Pkcs1));
    plane.serve("1", &json!([resource("d", 3)]));
    let own = authority.sign("envoy-rate-limit", "DNS:envoy-ratelimit", KeyForm::Pkcs1);
    let (cert, key, ca) = ((CERT, text(&own.cert)), (KEY, text(&own.key)), text(&own.ca));
    for trusted in [(CACERT, ca), (SYSTEM, ca)] {
        let server = by_tls(plane.addr).with_envs(&[NAMED, cert, key, trusted]).start();
        limit_becomes(&server, "d.k", 3).await;
    }
    let unknown = Authority::new();
    let unknown_ca = unknown.cacert();
    let wrong_signature =
        "invalid peer certificate: the trusted authority of that name did not sign it";
    for (settings, error) in [
        (&[cert, key, (CACERT, ca)][..], "certificate not valid for name"),
        // A named authority is the only one, whatever the system trusts. It has the name of the one
        // that is not trusted, so it is the signature that is wrong.
        (&[NAMED, cert, key, (CACERT, text(&unknown_ca)), (SYSTEM, ca)], wrong_signature),
        (&[NAMED, (CACERT, ca)], "CertificateRequired"),
        (&[("CONFIG_GRPC_XDS_SERVER_USE_TLS", "false")], "xDS stream failed"),
    ] {
        let server = by_tls(plane.addr).with_envs(settings).start();
        logged(&server, error).await;
        assert_eq!(server.admin("/rlconfig"), "");
    }
}

#[tokio::test]
async fn a_self_signed_certificate_is_accepted_where_it_is_trusted() {
    let (_files, identity) = Authority::self_signed(GATEWAY);
    let plane = ControlPlane::start_with_tls(&identity);
    plane.serve("1", &json!([resource("d", 3)]));
    let cert = text(&identity.cert);
    // The server wants certificates of clients, too.
    let own = [NAMED, (CERT, cert), (KEY, text(&identity.key))];
    for trusting in [CACERT, SYSTEM] {
        let server = by_tls(plane.addr).with_envs(&own).with_env(trusting, cert).start();
        limit_becomes(&server, "d.k", 3).await;
    }
    let other = Authority::new();
    let ca = other.cacert();
    let distrusting = by_tls(plane.addr).with_envs(&own).with_env(CACERT, text(&ca)).start();
    logged(&distrusting, "(CA:TRUE), and not itself trusted; trust it").await;
}

#[tokio::test]
async fn rules_arrive_after_a_proxy_has_closed_the_idle_stream() {
    let plane = ControlPlane::start();
    let proxy = Proxy::closing_idle(plane.addr.port());
    let server = asking(proxy.addr()).start();
    for requests in 1..=3 {
        plane.serve(&requests.to_string(), &json!([resource("d", requests)]));
        limit_becomes(&server, "d.k", requests).await;
        let closed = proxy.closed();
        look_until("the proxy closes the stream", || proxy.closed() > closed);
    }
}

#[tokio::test]
async fn certificates_are_read_for_each_connection() {
    let authority = Authority::new();
    let plane =
        ControlPlane::start_with_tls(&authority.sign("envoy-gateway", GATEWAY, KeyForm::Pkcs1));
    plane.serve("1", &json!([resource("d", 3)]));
    let mounted = TempDir::new().expect("a temporary directory");
    let path = |name: &str| mounted.path().join(name);
    let files = [(CERT, path("tls.crt")), (KEY, path("tls.key")), (CACERT, path("ca.crt"))];
    let server = by_tls(plane.addr).with_envs(&[NAMED]).with_envs(&files).start();
    logged(&server, "CONFIG_GRPC_XDS_SERVER_TLS_CACERT: ").await;
    fs::copy(authority.cacert(), path("ca.crt")).expect("it is copied");
    logged(&server, "CONFIG_GRPC_XDS_CLIENT_TLS_CERT: ").await;
    fs::write(path("tls.crt"), "no certificate").expect("it is written");
    logged(&server, "has no certificate in PEM").await;
    let own = authority.sign("envoy-rate-limit", "DNS:envoy-ratelimit", KeyForm::Pkcs1);
    let other = authority.sign("other", "DNS:envoy-ratelimit", KeyForm::Pkcs8);
    fs::copy(&own.cert, path("tls.crt")).expect("it is copied");
    fs::copy(&other.key, path("tls.key")).expect("it is copied");
    logged(&server, "cannot be used together").await;
    fs::copy(&own.key, path("tls.key")).expect("it is copied");
    limit_becomes(&server, "d.k", 3).await;

    // Everybody gets new ones, of another authority.
    let addr = plane.addr;
    drop(plane);
    let authority = Authority::new();
    let plane = ControlPlane::start_with_tls_at(
        addr,
        &authority.sign("envoy-gateway", GATEWAY, KeyForm::Pkcs1),
    );
    plane.serve("2", &json!([resource("d", 4)]));
    logged(&server, "invalid peer certificate").await;
    let own = authority.sign("envoy-rate-limit", "DNS:envoy-ratelimit", KeyForm::Pkcs1);
    for (from, to) in [(&own.ca, "ca.crt"), (&own.cert, "tls.crt"), (&own.key, "tls.key")] {
        fs::copy(from, path(to)).expect("it is copied");
    }
    limit_becomes(&server, "d.k", 4).await;
}

#[tokio::test]
async fn unresponsive_server_does_not_delay_shutdown() {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let mute = silent.local_addr().expect("it is bound");
    let mut puppet = Puppet::start().await;
    let idle = puppet.addr;
    // Packets to it are dropped, or rejected at once.
    let nowhere: SocketAddr = "192.0.2.1:18001".parse().expect("an address");
    for (addr, tls) in [(mute, "false"), (mute, "true"), (idle, "false"), (nowhere, "false")] {
        let server = by_tls(addr).with_env("CONFIG_GRPC_XDS_SERVER_USE_TLS", tls);
        let mut server = server.with_env("DRAIN_PERIOD", "0s").start();
        let mut held: (Option<Stream>, Option<TcpStream>) = (None, None);
        if addr == mute {
            held.1 = Some(silent.accept().await.expect("it comes").0);
        } else if addr == idle {
            held.0 = Some(puppet.stream().await);
        }
        server.signal("TERM");
        assert_eq!(server.exit_code().await, Some(0), "{addr} {tls}");
        if addr != nowhere {
            // How an attempt to connect ended would be logged.
            server.assert_not_logged("xDS stream failed");
        }
        drop(held);
    }
}

#[tokio::test]
async fn server_address_may_be_a_name_or_a_socket() {
    let mut puppet = Puppet::start().await;
    let server = TestServer::with_xds(&format!("dns:///localhost:{}", puppet.addr.port())).start();
    let mut stream = puppet.stream().await;
    stream.request().await;
    stream.ask(response("1", "a", &[rules_of(4)])).await;
    limit_becomes(&server, "d.k", 4).await;

    let home = TempDir::new().expect("a temporary directory");
    let path = home.path().join("xds.sock");
    let listener = UnixListener::bind(&path).expect("it can be bound");
    let mut puppet = Puppet::start_on(UnixListenerStream::new(listener));
    let server = TestServer::with_xds(&format!("unix:{}", path.display())).start();
    let mut stream = puppet.stream().await;
    stream.request().await;
    stream.ask(response("1", "a", &[rules_of(5)])).await;
    limit_becomes(&server, "d.k", 5).await;
}

#[test]
fn invalid_xds_settings_exit_with_78_and_a_hint() {
    assert_settings_rejected(
        || TestServer::with_xds("127.0.0.1:1"),
        "
CONFIG_TYPE=XDS => write one of FILE, GRPC_XDS_SOTW
CONFIG_GRPC_XDS_SERVER_URL=http://gateway:18001 => write host:port, dns:///host:port or unix:/path
CONFIG_GRPC_XDS_NODE_METADATA=zone => zone is not a pair; write key=value,key2=value2
CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=a:b,s3cret => pair 2 is not a header; write name:value
CONFIG_GRPC_XDS_SERVER_USE_TLS=true; CONFIG_GRPC_XDS_CLIENT_TLS_CERT=/certs/tls.crt => CONFIG_GRPC_XDS_CLIENT_TLS_CERT is set and CONFIG_GRPC_XDS_CLIENT_TLS_KEY is not
CONFIG_GRPC_XDS_SERVER_USE_TLS=yes => write true or false
XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=0s => write a time from 1ms
XDS_CLIENT_BACKOFF_MAX_INTERVAL=10 => such as 10s
XDS_CLIENT_BACKOFF_RANDOM_FACTOR=-1 => write a number, such as 2
XDS_CLIENT_BACKOFF_JITTER=some => write true or false
XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES=4MiB => write a whole number of bytes",
    );
    assert_settings_rejected(
        || TestServer::with_rules(&limit_of(1)),
        "CONFIG_TYPE=GRPC_XDS_SOTW => with CONFIG_TYPE=GRPC_XDS_SOTW; remove one of the two",
    );
}

#[test]
fn xds_settings_without_effect_cause_a_warning() {
    let server = TestServer::with_xds("127.0.0.1:1")
        .with_env("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "3s")
        .with_env("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "envoy-gateway")
        .start();
    for expected in [
        "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL has no effect: ",
        "CONFIG_GRPC_XDS_SERVER_TLS_SAN has no effect: CONFIG_GRPC_XDS_SERVER_USE_TLS is not true",
    ] {
        server.assert_logged(expected);
    }
    let empty = [
        "CONFIG_GRPC_XDS_NODE_ID",
        "CONFIG_GRPC_XDS_NODE_METADATA",
        "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
        "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
        "CONFIG_GRPC_XDS_SERVER_USE_TLS",
        "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
        "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
        "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
        "CONFIG_GRPC_XDS_SERVER_TLS_SAN",
        "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL",
        "XDS_CLIENT_BACKOFF_MAX_INTERVAL",
        "XDS_CLIENT_BACKOFF_RANDOM_FACTOR",
        "XDS_CLIENT_BACKOFF_JITTER",
        "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES",
    ];
    let server = TestServer::with_xds("").with_envs(&empty.map(|name| (name, ""))).start();
    server.assert_announced("requesting them from xDS server localhost:18000");
    server.assert_not_logged("has no effect");
}

/// `reload.rs` has the settings about it.
#[tokio::test]
async fn health_depends_on_rules_as_with_files() {
    let (_puppet, server, mut stream) = subscribed().await;
    let mut client = server.client().await;
    assert_eq!(client.health("").await.expect("it is known"), NotServing);
    assert_eq!(server.get("/healthcheck").status, 500);
    let ready = server.get("/ready").body;
    assert!(ready.contains("rules: waiting for the first rules\n"), "{ready}");
    stream.ask(response("1", "a", &[RateLimitConfig::default()])).await;
    assert_eq!(client.health("").await.expect("it is known"), NotServing);
    stream.ask(response("2", "b", &[])).await;
    eventually("health follows the rules", async || {
        client.health("").await.expect("it is known") == Serving
    })
    .await;
}
