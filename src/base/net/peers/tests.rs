//! Handshakes in memory, with certificates as operators make them.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, date_time_ymd,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ServerConfig, SupportedProtocolVersion, version};
use tempfile::TempDir;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;
use crate::base::net::tls::{Identity, PemFile};

/// Made with `openssl x509 -req -signkey`, for the key beside it.
const VERSION_1_PEM: &str = "tests/suite/support/version-1-for-tests-only.pem";
const RSA_KEY: &str = "tests/suite/support/rsa-key-for-tests-only.pem";
const VERSIONS: [&SupportedProtocolVersion; 2] = [&version::TLS12, &version::TLS13];

/// A certificate, its key, and what its peer trusts.
struct Peer {
    cert: PathBuf,
    key: PathBuf,
    trusted: PathBuf,
}

struct Files(TempDir);

impl Files {
    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, text).expect("it is writable");
        path
    }

    /// A certificate that signs itself, and its peer trusts.
    fn self_signed(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Peer {
        let key = KeyPair::generate().expect("P-256");
        let mut params = params();
        change(&mut params);
        let cert = params.self_signed(&key).expect("valid parameters");
        let cert = self.write(&format!("{name}.pem"), &cert.pem());
        Peer {
            trusted: cert.clone(),
            key: self.write(&format!("{name}.key"), &key.serialize_pem()),
            cert,
        }
    }

    /// A certificate of an authority, which its peer trusts.
    fn signed(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Peer {
        let key = KeyPair::generate().expect("P-256");
        let mut own = params();
        let mut authority = params();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.distinguished_name.push(DnType::CommonName, "authority");
        let issuer_key = KeyPair::generate().expect("P-256");
        let issuer = CertifiedIssuer::self_signed(authority, issuer_key).expect("valid parameters");
        change(&mut own);
        let cert = own.signed_by(&key, &issuer).expect("valid parameters");
        Peer {
            cert: self.write(&format!("{name}.pem"), &cert.pem()),
            key: self.write(&format!("{name}.key"), &key.serialize_pem()),
            trusted: self.write(&format!("{name}-ca.pem"), &issuer.pem()),
        }
    }
}

fn params() -> CertificateParams {
    let names = ["localhost".to_owned()];
    let mut params = CertificateParams::new(names).expect("ASCII");
    params.distinguished_name.push(DnType::CommonName, "localhost");
    params.not_after = date_time_ymd(2100, 1, 1);
    params.is_ca = IsCa::ExplicitNoCa;
    params
}

fn as_openssl_does(params: &mut CertificateParams) {
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
}

fn version_1() -> Peer {
    Peer { cert: VERSION_1_PEM.into(), key: RSA_KEY.into(), trusted: VERSION_1_PEM.into() }
}

fn trusted(path: &PathBuf) -> Trusted {
    let file = PemFile::new("TRUSTED", path);
    file.trusted().expect("it has certificates")
}

impl Peer {
    fn trusting(mut self, other: &Self) -> Self {
        self.trusted.clone_from(&other.trusted);
        self
    }

    /// Also with a key that is not that of the certificate.
    fn resolver(&self) -> Arc<SingleCertAndKey> {
        let chain = vec![CertificateDer::from_pem_file(&self.cert).expect("a certificate")];
        let key = PrivateKeyDer::from_pem_file(&self.key).expect("a key");
        let key = provider().key_provider.load_private_key(key);
        let certified = CertifiedKey::new(chain, key.expect("a known kind"));
        Arc::new(SingleCertAndKey::from(certified))
    }

    /// What a client says of this server, by TLS 1.2 and 1.3 alike.
    async fn as_server(&self, names: Names) -> Result<(), String> {
        let server = |version| {
            let config = ServerConfig::builder_with_provider(provider())
                .with_protocol_versions(&[version])
                .expect("a known version");
            let config = config.with_no_client_auth();
            config.with_cert_resolver(self.resolver())
        };
        let client = |version| {
            let config = ClientConfig::builder_with_provider(provider())
                .with_protocol_versions(&[version])
                .expect("a known version");
            config
                .dangerous()
                .with_custom_certificate_verifier(trusted(&self.trusted).servers(names))
                .with_no_client_auth()
        };
        let results = [
            handshake(client(VERSIONS[0]), server(VERSIONS[0])).await.0,
            handshake(client(VERSIONS[1]), server(VERSIONS[1])).await.0,
        ];
        agreed(results)
    }

    /// What a server says of this client.
    async fn as_client(&self, name: Option<&'static str>) -> Result<(), String> {
        let files = Files(TempDir::new().expect("a temporary directory"));
        let own = files.self_signed("server", |_| ());
        let server = |version| {
            let name = name.map(|name| ServerName::try_from(name).expect("a name"));
            let config = ServerConfig::builder_with_provider(provider())
                .with_protocol_versions(&[version])
                .expect("a known version");
            config
                .with_client_cert_verifier(trusted(&self.trusted).clients(name))
                .with_cert_resolver(own.resolver())
        };
        let client = |version| {
            let config = ClientConfig::builder_with_provider(provider())
                .with_protocol_versions(&[version])
                .expect("a known version");
            config
                .dangerous()
                .with_custom_certificate_verifier(trusted(&own.trusted).servers(Names::Own))
                .with_client_cert_resolver(self.resolver())
        };
        let results = [
            handshake(client(VERSIONS[0]), server(VERSIONS[0])).await.1,
            handshake(client(VERSIONS[1]), server(VERSIONS[1])).await.1,
        ];
        agreed(results)
    }
}

/// How a handshake ends for both.
async fn handshake(
    client: ClientConfig,
    server: ServerConfig,
) -> (Result<(), String>, Result<(), String>) {
    let (here, there) = tokio::io::duplex(1 << 16);
    let name = ServerName::try_from("localhost").expect("a name");
    let connecting = TlsConnector::from(Arc::new(client)).connect(name, here);
    let accepting = TlsAcceptor::from(Arc::new(server)).accept(there);
    let (connected, accepted) = tokio::join!(connecting, accepting);
    let explained = |error| explain(error).to_string();
    (connected.map(drop).map_err(explained), accepted.map(drop).map_err(explained))
}

fn agreed([one, other]: [Result<(), String>; 2]) -> Result<(), String> {
    assert_eq!(one, other, "TLS 1.2 and 1.3");
    other
}

fn files() -> Files {
    Files(TempDir::new().expect("a temporary directory"))
}

#[tokio::test]
async fn a_certificate_that_is_itself_trusted_is_accepted() {
    let files = files();
    let server_only = |params: &mut CertificateParams| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    };
    let of_authority = files.signed("one", |_| ());
    let of_another = files.signed("two", |_| ());
    let alone = Peer { trusted: of_another.cert.clone(), ..of_another };
    for (what, peer) in [
        ("req -x509", files.self_signed("ca", as_openssl_does)),
        ("CA:FALSE", files.self_signed("leaf", |_| ())),
        ("signed", of_authority),
        ("signed, trusted without its authority", alone),
    ] {
        assert_eq!(peer.as_server(Names::Own).await, Ok(()), "{what}");
        assert_eq!(peer.as_server(Names::Any).await, Ok(()), "{what}");
        assert_eq!(peer.as_client(None).await, Ok(()), "{what}");
        assert_eq!(peer.as_client(Some("localhost")).await, Ok(()), "{what}");
    }
    let server = files.self_signed("server", server_only);
    assert_eq!(server.as_server(Names::Own).await, Ok(()));
}

#[tokio::test]
async fn version_1_is_accepted_if_it_is_trusted_and_names_do_not_count() {
    let peer = version_1();
    assert_eq!(peer.as_server(Names::Any).await, Ok(()));
    assert_eq!(peer.as_client(None).await, Ok(()));
    let version_1 = "invalid peer certificate: it is of X.509 version 1, which has no names; make it with -addext subjectAltName=DNS:HOST";
    let refused = Err(version_1.to_owned());
    assert_eq!(peer.as_server(Names::Own).await, refused);
    assert_eq!(peer.as_client(Some("localhost")).await, refused);
    let files = files();
    let distrusting = peer.trusting(&files.self_signed("other", as_openssl_does));
    assert_eq!(distrusting.as_server(Names::Any).await, refused);
}

#[tokio::test]
async fn a_certificate_with_the_names_of_a_trusted_one_is_not_that_one() {
    let files = files();
    let trusted = files.self_signed("trusted", as_openssl_does);
    let other = files.self_signed("other", as_openssl_does).trusting(&trusted);
    let error = other.as_server(Names::Any).await.expect_err("it is another");
    assert!(error.contains("(CA:TRUE), and not itself trusted; trust it"), "{error}");
    let leaf = files.self_signed("leaf", |_| ()).trusting(&trusted);
    let error = leaf.as_server(Names::Any).await.expect_err("it is another");
    assert!(error.contains("the trusted authority of that name did not sign it"), "{error}");
}

#[tokio::test]
async fn a_trusted_certificate_without_its_key_is_refused() {
    let files = files();
    let other_key = files.self_signed("other", |_| ()).key;
    for mut peer in [files.self_signed("ca", as_openssl_does), version_1()] {
        peer.key.clone_from(&other_key);
        assert!(peer.as_server(Names::Any).await.is_err());
        assert!(peer.as_client(None).await.is_err());
    }
}

#[tokio::test]
async fn refusals_name_what_is_wrong_and_the_cure() {
    let files = files();
    let expired = |params: &mut CertificateParams| {
        as_openssl_does(params);
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
    };
    let early = |params: &mut CertificateParams| {
        as_openssl_does(params);
        params.not_before = date_time_ymd(2099, 1, 1);
    };
    let misnamed = |params: &mut CertificateParams| {
        *params = CertificateParams::new(["redis.example".to_owned()]).expect("ASCII");
        as_openssl_does(params);
    };
    let nameless = |params: &mut CertificateParams| {
        *params = CertificateParams::default();
        as_openssl_does(params);
    };
    let for_clients = |params: &mut CertificateParams| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    };
    let other = files.signed("other", |_| ());
    for (peer, expected) in [
        (files.self_signed("expired", expired), "ago; renew it"),
        (files.self_signed("early", early), "; compare the clocks"),
        (
            files.self_signed("misnamed", misnamed),
            r#"not valid for name "localhost"; certificate is only valid for DnsName("redis.example"); make it with -addext subjectAltName=DNS:HOST"#,
        ),
        (
            files.self_signed("nameless", nameless),
            "it has no subjectAltName; make it with -addext subjectAltName=DNS:HOST",
        ),
        (
            files.signed("clients", for_clients),
            "its extendedKeyUsage forbids this use; servers need serverAuth, clients clientAuth",
        ),
        (
            files.signed("unknown", |_| ()).trusting(&version_1()),
            "its authority is not trusted; trust its certificate",
        ),
        (
            files.self_signed("renewed", |_| ()).trusting(&version_1()),
            "the trusted authority of that name did not sign it; trust its current certificate",
        ),
        (
            files.self_signed("ca", as_openssl_does).trusting(&other),
            "it is an authority's (CA:TRUE), and not itself trusted; trust it, or make it with CA:FALSE",
        ),
    ] {
        let error = peer.as_server(Names::Own).await.expect_err(expected);
        assert!(error.starts_with("invalid peer certificate: "), "{error}");
        assert!(error.contains(expected), "{error}, not {expected}");
    }
}

#[test]
fn an_own_certificate_of_version_1_is_loaded_with_its_key_only() {
    let peer = version_1();
    let load = |key: &PathBuf| {
        let [cert, key] = [&peer.cert, key].map(|path| PemFile::new("FILE", path));
        Identity { cert, key }.load()
    };
    let loaded = load(&peer.key).expect("they belong together");
    let shown = CertificateDer::from_pem_file(&peer.cert).expect("a certificate");
    assert_eq!(loaded.cert, [shown]);
    let other = files();
    assert!(load(&other.self_signed("other", |_| ()).key).is_err());
}

#[test]
fn only_version_1_is_rewritten() {
    let of_version_1 = CertificateDer::from_pem_file(VERSION_1_PEM).expect("a certificate");
    assert!(ParsedCertificate::try_from(&of_version_1).is_err());
    assert!(ParsedCertificate::try_from(&*readable(&of_version_1)).is_ok());
    let of_version_3 = params().self_signed(&KeyPair::generate().expect("P-256"));
    let of_version_3 = of_version_3.expect("valid parameters").der().clone();
    assert_eq!(*readable(&of_version_3), of_version_3);
    for len in 0..of_version_1.len() {
        let cut = CertificateDer::from(&of_version_1[..len]);
        assert_eq!(*readable(&cut), cut, "{len} bytes");
    }
}
