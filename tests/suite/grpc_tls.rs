//! TLS of the gRPC port: which clients are accepted, and certificates that change under load.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use rustls::{ClientConfig, HandshakeKind, RootCertStore, SupportedProtocolVersion, version};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::Endpoint;
use tower::service_fn;

use crate::support::certificates::{Authority, EXPIRES_AT_S, Identity, KeyForm};
use crate::support::http::Connection;
use crate::support::volume::Volume;
use crate::support::{
    Builder, Client, Code, PATIENCE, TestServer, copy, eventually, limit_of, raw_grpc, request,
    write,
};

const NAMES: &str = "DNS:localhost";
const EXPIRY: &str = "tollgate_tls_certificate_expiry_timestamp_seconds";

fn server() -> Builder {
    TestServer::with_rules(&limit_of(1_000_000)).with_env("WORKERS", "1")
}

/// Served with a certificate.
fn tls_server(cert: &Path, key: &Path) -> Builder {
    with_files(server(), &[("GRPC_SERVER_TLS_CERT", cert), ("GRPC_SERVER_TLS_KEY", key)])
        .with_env("GRPC_SERVER_USE_TLS", "true")
}

fn with_files(server: Builder, files: &[(&str, &Path)]) -> Builder {
    files.iter().fold(server, |server, (name, path)| {
        server.with_env(name, path.to_str().expect("it is text"))
    })
}

/// A client that trusts one authority, shows a certificate or none, and knows these versions.
fn config(
    ca: &Path,
    shown: Option<&Identity>,
    versions: &[&'static SupportedProtocolVersion],
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(ca).expect("it is a certificate"))
        .expect("it is an authority's");
    let builder = ClientConfig::builder_with_provider(tollgate::base::net::tls::provider())
        .with_protocol_versions(versions)
        .expect("they are known");
    let builder = builder.with_root_certificates(roots);
    let mut config = match shown {
        None => builder.with_no_client_auth(),
        Some(shown) => {
            let cert = CertificateDer::from_pem_file(&shown.cert).expect("it is a certificate");
            let key = PrivateKeyDer::from_pem_file(&shown.key).expect("it is a key");
            builder.with_client_auth_cert(vec![cert], key).expect("they belong together")
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

fn any_version(ca: &Path, shown: Option<&Identity>) -> ClientConfig {
    config(ca, shown, rustls::DEFAULT_VERSIONS)
}

async fn connect(server: &TestServer, config: ClientConfig) -> io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(server.grpc).await?;
    TlsConnector::from(Arc::new(config))
        .connect(ServerName::try_from("localhost").expect("it is a name"), stream)
        .await
}

/// A client that connects once: its calls end with its connection.
async fn client(server: &TestServer, config: ClientConfig) -> Result<Client, String> {
    let mut stream = Some(connect(server, config).await.map_err(|error| error.to_string())?);
    let connector = service_fn(move |_| {
        let next = stream.take().map(TokioIo::new);
        async { next.ok_or(io::Error::from(io::ErrorKind::NotConnected)) }
    });
    let endpoint = Endpoint::from_static("http://localhost").timeout(PATIENCE);
    let channel =
        endpoint.connect_with_connector(connector).await.map_err(|error| format!("{error:?}"))?;
    Ok(Client::on(channel))
}

/// The result of one call. By TLS 1.3 a client is rejected only after it believes that it is
/// connected.
async fn ask(server: &TestServer, config: ClientConfig) -> Result<Code, String> {
    let answer = client(server, config).await?.call(request("d", &[&[("k", "")]])).await;
    answer.map(|answer| answer.overall_code()).map_err(|error| format!("{error:?}"))
}

/// Waits until so many handshakes have failed for this reason.
async fn fails(server: &TestServer, reason: &str, times: f64) {
    let series = format!("tollgate_tls_handshakes_failed_total{{reason=\"{reason}\"}}");
    server.metric_becomes(&series, times).await;
}

/// The certificate that a new connection is shown.
async fn shown(server: &TestServer, ca: &Path) -> CertificateDer<'static> {
    let stream = connect(server, any_version(ca, None)).await.expect("it is accepted");
    stream.get_ref().1.peer_certificates().expect("there is one")[0].clone().into_owned()
}

fn read(cert: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(cert).expect("it is a certificate")
}

#[tokio::test]
async fn tls_1_2_and_1_3_accept_every_key_format() {
    let authority = Authority::new();
    for (file, form) in
        [("pkcs1", KeyForm::Pkcs1), ("pkcs8", KeyForm::Pkcs8), ("sec1", KeyForm::Sec1)]
    {
        let identity = authority.sign(file, NAMES, form);
        // Envoy Gateway sets it everywhere, and Envoys without a certificate are accepted all the
        // same.
        let server = tls_server(&identity.cert, &identity.key)
            .with_env("GRPC_SERVER_TLS_CA_CERT", "/no/ca.crt")
            .start();
        server.assert_announced("  TLS\n");
        for versions in [&[&version::TLS12], &[&version::TLS13]] {
            assert_eq!(
                ask(&server, config(&authority.cacert(), None, versions)).await,
                Ok(Code::Ok),
                "{form:?} {versions:?}"
            );
        }
        let stream =
            connect(&server, any_version(&authority.cacert(), None)).await.expect("it is accepted");
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        server.assert_not_logged("GRPC_SERVER_TLS_CA_CERT");
        server.assert_metric(EXPIRY, EXPIRES_AT_S);
    }
}

#[tokio::test]
async fn plain_text_client_is_rejected_and_counted() {
    let authority = Authority::new();
    let identity = authority.sign("server", NAMES, KeyForm::Pkcs8);
    let server = tls_server(&identity.cert, &identity.key).start();
    let mut plain = Connection::open(server.grpc);
    plain.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").expect("the port is open");
    fails(&server, "not_tls", 1.0).await;
    let stranger = Authority::new();
    assert!(
        connect(&server, any_version(&stranger.cacert(), None)).await.is_err(),
        "the client does not trust it"
    );
    fails(&server, "refused_by_client", 1.0).await;
    assert_eq!(ask(&server, any_version(&authority.cacert(), None)).await, Ok(Code::Ok));
}

#[tokio::test]
async fn only_client_certificates_with_authority_and_name_are_accepted() {
    let servers = Authority::new();
    let clients = Authority::new();
    let others = Authority::new();
    let identity = servers.sign("server", NAMES, KeyForm::Pkcs8);
    let right = clients.sign("right", "DNS:envoy.mesh,DNS:other.mesh", KeyForm::Pkcs1);
    let misnamed = clients.sign("misnamed", "DNS:intruder.mesh", KeyForm::Pkcs8);
    let stranger = others.sign("stranger", "DNS:envoy.mesh", KeyForm::Pkcs8);
    let client_ca = clients.cacert();
    let other_ca = others.cacert();
    let server = tls_server(&identity.cert, &identity.key);
    // The system's authorities, and so those that everybody trusts, are another file here.
    let server =
        with_files(server, &[("GRPC_CLIENT_TLS_CACERT", &client_ca), ("SSL_CERT_FILE", &other_ca)]);
    let server = server.with_env("GRPC_CLIENT_TLS_SAN", "envoy.mesh").start();
    server.assert_announced("  TLS, client certificates required\n");

    for (round, versions) in [(1.0, [&version::TLS12]), (2.0, [&version::TLS13])] {
        let rejected = [
            (None, "no_certificate"),
            (Some(&stranger), "untrusted"),
            (Some(&misnamed), "wrong_name"),
        ];
        for (shown, reason) in rejected {
            let answer = ask(&server, config(&servers.cacert(), shown, &versions)).await;
            assert!(answer.is_err(), "{reason} {versions:?}: {answer:?}");
            fails(&server, reason, round).await;
        }
        let right = config(&servers.cacert(), Some(&right), &versions);
        assert_eq!(ask(&server, right.clone()).await, Ok(Code::Ok), "{versions:?}");
        let again = connect(&server, right).await.expect("it is accepted");
        assert_eq!(
            again.get_ref().1.handshake_kind(),
            Some(HandshakeKind::Full),
            "certificates are looked at each time"
        );
    }
}

#[tokio::test]
async fn a_self_signed_client_is_accepted_where_it_is_trusted() {
    let servers = Authority::new();
    let identity = servers.sign("server", NAMES, KeyForm::Pkcs8);
    let [(_files, trusted), (_others, stranger)] =
        [(); 2].map(|()| Authority::self_signed("DNS:envoy.mesh"));
    let server = tls_server(&identity.cert, &identity.key);
    let server = with_files(server, &[("GRPC_CLIENT_TLS_CACERT", &trusted.cert)]);
    let server = server.with_env("GRPC_CLIENT_TLS_SAN", "envoy.mesh").start();
    let showing = |shown| any_version(&servers.cacert(), Some(shown));
    assert_eq!(ask(&server, showing(&trusted)).await, Ok(Code::Ok));
    assert!(ask(&server, showing(&stranger)).await.is_err());
    fails(&server, "untrusted", 1.0).await;
}

#[tokio::test]
async fn replaced_secret_is_used_for_new_connections_and_keeps_open_ones() {
    let authority = Authority::new();
    let [first, second, third] =
        ["first", "second", "third"].map(|file| authority.sign(file, NAMES, KeyForm::Pkcs1));
    let text = |path: &Path| fs::read_to_string(path).expect("it is PEM");
    let pem = |of: &Identity| [text(&of.cert), text(&of.key)];
    let [cert, key] = pem(&first);
    let home = TempDir::new().expect("a temporary directory can be made");
    let secret = Volume::new(home.path().to_owned(), &[("tls.crt", &cert), ("tls.key", &key)]);
    let server = tls_server(&home.path().join("tls.crt"), &home.path().join("tls.key")).start();
    assert_eq!(shown(&server, &authority.cacert()).await, read(&first.cert));

    let (stop, stopped) = tokio::sync::watch::channel(());
    let mut callers = JoinSet::new();
    for _ in 0..4 {
        let mut client =
            client(&server, any_version(&authority.cacert(), None)).await.expect("it is accepted");
        let stopped = stopped.clone();
        callers.spawn(async move {
            let mut calls = 0;
            while stopped.has_changed().is_ok() {
                assert_eq!(client.ask("d", &[("k", "")]).await, Code::Ok);
                calls += 1;
            }
            calls
        });
    }
    for identity in [&second, &third] {
        let [cert, key] = pem(identity);
        secret.replace(&[("tls.crt", &cert), ("tls.key", &key)]);
        let expected = read(&identity.cert);
        eventually("the new certificate is shown", async || {
            shown(&server, &authority.cacert()).await == expected
        })
        .await;
    }
    drop(stop);
    let calls: Vec<usize> = callers.join_all().await;
    assert!(calls.iter().all(|calls| *calls > 0), "{calls:?}");
    let loads = "tollgate_tls_loads_total{result=\"success\"}";
    server.metric_becomes(loads, 3.0).await;
    server.assert_metric("tollgate_tls_loads_total{result=\"error\"}", 0.0);
}

#[tokio::test]
async fn invalid_pair_keeps_the_previous_one_until_a_valid_one() {
    let authority = Authority::new();
    let [first, second] =
        ["first", "second"].map(|file| authority.sign(file, NAMES, KeyForm::Pkcs8));
    let home = TempDir::new().expect("a temporary directory can be made");
    let cert = home.path().join("tls.crt");
    let key = home.path().join("tls.key");
    fs::copy(&first.cert, &cert).expect("a file can be copied");
    fs::copy(&first.key, &key).expect("a file can be copied");
    let server = tls_server(&cert, &key).start();
    let rejected = "tollgate_tls_rejected";
    server.assert_metric(rejected, 0.0);
    let mut old =
        client(&server, any_version(&authority.cacert(), None)).await.expect("it is accepted");

    copy(&second.cert, &cert);
    // The certificate without its key.
    server.metric_becomes(rejected, 1.0).await;
    assert_eq!(shown(&server, &authority.cacert()).await, read(&first.cert));
    let said =
        "reload of the certificates of the gRPC port rejected; the previous content stays in use";
    server.assert_logged_once(said);
    server.assert_logged("GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY");
    server.assert_metric("tollgate_tls_loads_total{result=\"error\"}", 1.0);

    copy(&second.key, &key);
    server.metric_becomes(rejected, 0.0).await;
    server.assert_logged_once(" INFO certificates of the gRPC port valid again");
    assert_eq!(shown(&server, &authority.cacert()).await, read(&second.cert));
    assert_eq!(old.ask("d", &[("k", "")]).await, Code::Ok, "who was connected stays so");

    fs::remove_file(&key).expect("it exists");
    server.metric_becomes(rejected, 1.0).await;
    copy(&second.key, &key);
    server.metric_becomes(rejected, 0.0).await;
    assert_eq!(ask(&server, any_version(&authority.cacert(), None)).await, Ok(Code::Ok));
}

#[tokio::test]
async fn client_authority_is_reloaded() {
    let servers = Authority::new();
    let before = Authority::new();
    let after = Authority::new();
    let identity = servers.sign("server", NAMES, KeyForm::Pkcs8);
    let [old, new] = [&before, &after]
        .map(|authority| authority.sign("client", "DNS:envoy.mesh", KeyForm::Pkcs8));
    let home = TempDir::new().expect("a temporary directory can be made");
    let ca = home.path().join("ca.crt");
    fs::copy(before.cacert(), &ca).expect("a file can be copied");
    let server =
        with_files(tls_server(&identity.cert, &identity.key), &[("GRPC_CLIENT_TLS_CACERT", &ca)])
            .start();
    let [old, new] = [&old, &new].map(|shown| any_version(&servers.cacert(), Some(shown)));
    let is_accepted = async |shown: &ClientConfig| ask(&server, shown.clone()).await.is_ok();
    let connecting = client(&server, old.clone()).await;
    let mut connected = connecting.expect("it is accepted");
    assert_eq!(connected.ask("d", &[("k", "")]).await, Code::Ok);
    assert!(!is_accepted(&new).await);

    // As a rotation goes: both for a while, then the new one alone.
    let both = [&before, &after].map(|authority| fs::read(authority.cacert()).expect("it exists"));
    write(&ca, &both.concat());
    eventually("the new one is accepted", async || is_accepted(&new).await).await;
    assert!(is_accepted(&old).await);
    copy(&after.cacert(), &ca);
    eventually("the old one is rejected", async || !is_accepted(&old).await).await;
    assert!(is_accepted(&new).await);
    let stays = connected.ask("d", &[("k", "")]).await;
    assert_eq!(stays, Code::Ok, "who was connected stays so");
}

#[tokio::test]
async fn drain_and_connection_age_apply_to_tls() {
    let authority = Authority::new();
    let identity = authority.sign("server", NAMES, KeyForm::Pkcs8);
    let server =
        tls_server(&identity.cert, &identity.key).with_env("GRPC_MAX_CONNECTION_AGE", "1s").start();
    let stream =
        connect(&server, any_version(&authority.cacert(), None)).await.expect("it is accepted");
    let mut connection = raw_grpc::Connection::over(stream, server.grpc).await;
    let whole = raw_grpc::frame(&request("d", &[&[("k", "")]]));
    let (head, rest) = whole.split_at(7);
    let mut begun = connection.begin().await;
    begun.send(head);
    eventually("it gets a GOAWAY", async || connection.is_told_to_go().await).await;
    assert_eq!(begun.finish(rest).await.status, tonic::Code::Ok);
    server.metric_becomes("tollgate_connections", 0.0).await;
}
