//! Connections to a control plane: addresses, TLS, unresponsive servers, health, settings.

use std::fs;
use std::net::SocketAddr;

use serde_json::json;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio_stream::wrappers::UnixListenerStream;
use tollgate::base::proto::ratelimit::config::ratelimit::v3::RateLimitConfig;
use tonic_health::pb::health_check_response::ServingStatus::{NotServing, Serving};

use crate::support::certificates::{Authority, KeyForm};
use crate::support::idle_proxy::IdleProxy;
use crate::support::xds::{ControlPlane, Puppet, Stream, response, rules_of};
use crate::support::{
    Builder, Client, TestServer, assert_settings_rejected, eventually, limit_of, look_until,
};
use crate::xds::helpers::{GATEWAY, asking, has_limit, logged, resource};

#[tokio::test]
async fn mtls_works_with_certificates_of_envoy_gateway() {
    let authority = Authority::new();
    let plane =
        ControlPlane::start_with_tls(&authority.sign("envoy-gateway", GATEWAY, KeyForm::Pkcs1));
    plane.serve("1", &json!([resource("d", 3)]));
    let own = authority.sign("envoy-rate-limit", "DNS:envoy-ratelimit", KeyForm::Pkcs1);
    let text = |path: &std::path::Path| path.to_str().expect("a plain name").to_owned();
    let by_tls = || asking(plane.addr).with_env("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true");
    let named = || by_tls().with_env("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "envoy-gateway");
    let with_own = |server: Builder| {
        server
            .with_env("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &text(&own.cert))
            .with_env("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &text(&own.key))
    };
    let with_authority =
        |server: Builder| server.with_env("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &text(&own.ca));

    let server = with_authority(with_own(named())).start();
    has_limit(&server, "d.k", 3).await;
    // The system's authorities are those that SSL_CERT_FILE names.
    let server = with_own(named()).with_env("SSL_CERT_FILE", &text(&own.ca)).start();
    has_limit(&server, "d.k", 3).await;

    let unnamed = with_authority(with_own(by_tls())).start();
    logged(&unnamed, "certificate not valid for name").await;
    let unknown = Authority::new();
    let distrusting =
        with_own(named()).with_env("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &text(&unknown.cacert()));
    // A named authority is the only one, whatever the system trusts.
    let distrusting = distrusting.with_env("SSL_CERT_FILE", &text(&own.ca)).start();
    // It has the name of the one that is not trusted, so it is the signature that is wrong.
    logged(
        &distrusting,
        "invalid peer certificate: the trusted authority of that name did not sign it",
    )
    .await;
    let anonymous = with_authority(named()).start();
    logged(&anonymous, "CertificateRequired").await;
    let in_plain_text = asking(plane.addr).start();
    logged(&in_plain_text, "xDS stream failed").await;
    for server in [unnamed, distrusting, anonymous, in_plain_text] {
        assert_eq!(server.admin("/rlconfig"), "");
    }
}

#[tokio::test]
async fn a_self_signed_certificate_is_accepted_where_it_is_trusted() {
    let (_files, identity) = Authority::self_signed(GATEWAY);
    let plane = ControlPlane::start_with_tls(&identity);
    plane.serve("1", &json!([resource("d", 3)]));
    let [cert, key] =
        [&identity.cert, &identity.key].map(|path| path.to_str().expect("a plain name"));
    // The server wants certificates of clients, too.
    let by_tls = || {
        asking(plane.addr)
            .with_env("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true")
            .with_env("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "envoy-gateway")
            .with_env("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", cert)
            .with_env("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", key)
    };
    for trusting in ["CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "SSL_CERT_FILE"] {
        let server = by_tls().with_env(trusting, cert).start();
        has_limit(&server, "d.k", 3).await;
    }
    let other = Authority::new();
    let ca = other.cacert();
    let distrusting = by_tls()
        .with_env("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", ca.to_str().expect("a plain name"))
        .start();
    logged(&distrusting, "(CA:TRUE), and not itself trusted; trust it").await;
}

#[tokio::test]
async fn rules_arrive_after_a_proxy_has_closed_the_idle_stream() {
    let plane = ControlPlane::start();
    let proxy = IdleProxy::before(plane.addr.port());
    let server = asking(proxy.addr).start();
    for requests in 1..=3 {
        plane.serve(&requests.to_string(), &json!([resource("d", requests)]));
        has_limit(&server, "d.k", requests).await;
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
    let path = |name: &str| mounted.path().join(name).to_str().expect("a plain name").to_owned();
    let server = asking(plane.addr)
        .with_env("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true")
        .with_env("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "envoy-gateway")
        .with_env("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &path("tls.crt"))
        .with_env("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &path("tls.key"))
        .with_env("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &path("ca.crt"))
        .start();
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
    has_limit(&server, "d.k", 3).await;

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
    has_limit(&server, "d.k", 4).await;
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
        let mut server = asking(addr)
            .with_env("CONFIG_GRPC_XDS_SERVER_USE_TLS", tls)
            .with_env("DRAIN_PERIOD", "0s")
            .start();
        let mut held: Option<Stream> = None;
        let mut connection: Option<TcpStream> = None;
        if addr == mute {
            connection = Some(silent.accept().await.expect("it comes").0);
        } else if addr == idle {
            held = Some(puppet.stream().await);
        }
        server.signal("TERM");
        assert_eq!(server.exit_code().await, Some(0), "{addr} {tls}");
        // How an attempt to connect ended would be logged.
        assert!(
            addr == nowhere || !server.log().contains("xDS stream failed"),
            "{addr} {tls}: {}",
            server.log()
        );
        drop((held, connection));
    }
}

#[tokio::test]
async fn server_address_may_be_a_name_or_a_socket() {
    let mut puppet = Puppet::start().await;
    let server = TestServer::with_xds(&format!("dns:///localhost:{}", puppet.addr.port())).start();
    let mut stream = puppet.stream().await;
    stream.request().await;
    stream.ask(response("1", "a", &[rules_of(4)])).await;
    has_limit(&server, "d.k", 4).await;

    let home = TempDir::new().expect("a temporary directory");
    let path = home.path().join("xds.sock");
    let mut puppet = Puppet::start_on(UnixListenerStream::new(
        UnixListener::bind(&path).expect("it can be bound"),
    ));
    let server = TestServer::with_xds(&format!("unix:{}", path.display())).start();
    let mut stream = puppet.stream().await;
    stream.request().await;
    stream.ask(response("1", "a", &[rules_of(5)])).await;
    has_limit(&server, "d.k", 5).await;
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
    let server = empty
        .iter()
        .fold(TestServer::with_xds(""), |server, name| server.with_env(name, ""))
        .start();
    server.assert_announced("requesting them from xDS server localhost:18000");
    server.assert_not_logged("has no effect");
}

#[tokio::test]
async fn health_depends_on_rules_as_with_files() {
    let mut puppet = Puppet::start().await;
    let health =
        async |server: &TestServer| server.client().await.health("").await.expect("it is known");
    let becomes = async |server: &TestServer, status| {
        let mut client: Client = server.client().await;
        eventually("health follows the rules", async || {
            client.health("").await.expect("it is known") == status
        })
        .await;
    };
    let server = asking(puppet.addr).start();
    let mut stream = puppet.stream().await;
    assert_eq!(health(&server).await, NotServing);
    assert_eq!(server.get("/healthcheck").status, 500);
    assert!(
        server.get("/ready").body.contains("rules: waiting for the first rules\n"),
        "{:?}",
        server.get("/ready")
    );
    stream.request().await;
    stream.ask(response("1", "a", &[RateLimitConfig::default()])).await;
    assert_eq!(health(&server).await, NotServing);
    stream.ask(response("2", "b", &[])).await;
    becomes(&server, Serving).await;

    let server = asking(puppet.addr).with_env("FORCE_START_WITHOUT_INITIAL_CONFIG", "true").start();
    assert_eq!(health(&server).await, Serving);
    assert_eq!(server.get("/healthcheck").status, 200);
    drop((server, stream, puppet));

    let mut puppet = Puppet::start().await;
    let server =
        asking(puppet.addr).with_env("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true").start();
    let mut stream = puppet.stream().await;
    stream.request().await;
    stream.ask(response("1", "a", &[])).await;
    assert_eq!(health(&server).await, NotServing);
    stream.ask(response("2", "b", &[rules_of(1)])).await;
    becomes(&server, Serving).await;
    stream.ask(response("3", "c", &[])).await;
    becomes(&server, NotServing).await;
}
