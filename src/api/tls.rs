//! TLS of the gRPC port: its certificates, which are read again when their files change, and the
//! handshake.
//!
//! What is swapped is the whole configuration, certificate, key and authority at once, so a
//! handshake never sees a part of each. Those who are connected stay so: a certificate is looked at
//! once, when its connection begins.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use arc_swap::ArcSwap;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{Acceptor, NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use crate::file_watch::{FileSet, FileStat, RecursiveMode, Watched};
use crate::telemetry::metric::{Counter, Gauge, Metrics};
use crate::tls::{self, Identity, PemError, PemFile};

/// How long a client may take to send its ClientHello, which every client sends at once.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the rest of a handshake may take.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// What is spoken inside.
const ALPN: &[u8] = b"h2";

/// Which files TLS is made of, and who may connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// Who we are.
    pub identity: Identity,
    /// Who may connect; `None` for everybody.
    pub clients: Option<Clients>,
}

/// Which clients may connect: those with a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clients {
    /// By this authority, and no other: the system's are for servers that anybody may ask.
    pub ca: PemFile,
    /// For this name, if there is one.
    pub name: Option<ServerName<'static>>,
}

/// What handshakes are made with. Clones are the same, and change together.
#[derive(Debug, Clone)]
pub struct Tls {
    live: Arc<ArcSwap<ServerConfig>>,
    failed: Arc<[Counter; FAILURES.len()]>,
}

/// Reads the files, again and again.
#[derive(Debug)]
pub struct CertificateSource {
    files: Files,
    looked_at: FileSet,
    live: Arc<ArcSwap<ServerConfig>>,
    metrics: SourceMetrics,
}

/// Why a handshake failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// It took too long.
    Timeout,
    /// It was closed to make room for another.
    Evicted,
    /// The client went away.
    HungUp,
    /// What came was no TLS.
    NotTls,
    /// The client knows no version or cipher of ours.
    Incompatible,
    /// The client does not trust us, or has another complaint.
    RefusedByClient,
    /// The client showed no certificate.
    NoCertificate,
    /// It has run out, or is not valid yet.
    Expired,
    /// It is for another name.
    WrongName,
    /// Another authority has signed it, or it is broken.
    Untrusted,
    /// What is left.
    Other,
}

/// Every failure, with the word that its metric has for it.
const FAILURES: [(Failure, &str); 11] = [
    (Failure::Timeout, "timeout"),
    (Failure::Evicted, "evicted"),
    (Failure::HungUp, "hung_up"),
    (Failure::NotTls, "not_tls"),
    (Failure::Incompatible, "incompatible"),
    (Failure::RefusedByClient, "refused_by_client"),
    (Failure::NoCertificate, "no_certificate"),
    (Failure::Expired, "expired"),
    (Failure::WrongName, "wrong_name"),
    (Failure::Untrusted, "untrusted"),
    (Failure::Other, "other"),
];

/// What is made of the files.
#[derive(Debug)]
struct Loaded {
    config: ServerConfig,
    ends_at: Option<u64>,
}

/// Checks a certificate, and the name it is for.
#[derive(Debug)]
struct NamedClients {
    any: Arc<dyn ClientCertVerifier>,
    name: ServerName<'static>,
}

#[derive(Debug)]
struct SourceMetrics {
    loaded: Counter,
    failed: Counter,
    refused: Gauge,
    ends_at: Gauge,
}

impl Files {
    /// Whether they can be used.
    ///
    /// # Errors
    /// Why one of them cannot.
    pub fn check(&self) -> Result<(), PemError> {
        self.load().map(|_| ())
    }

    fn load(&self) -> Result<Loaded, PemError> {
        let identity = self.identity.load()?;
        let ends_at = tls::chain_ends_at(&identity.cert);
        let versions = ServerConfig::builder_with_provider(tls::provider())
            .with_safe_default_protocol_versions();
        let builder = versions.expect("the provider has ciphers of TLS 1.2 and 1.3");
        let builder = match &self.clients {
            Some(clients) => builder.with_client_cert_verifier(clients.verifier()?),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(identity)));
        config.alpn_protocols = vec![ALPN.to_vec()];
        // Nobody resumes a session, and so escapes that its certificate is looked at; connections
        // are few and long, and gain little by it.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Loaded { config, ends_at })
    }

    fn all(&self) -> impl Iterator<Item = &PemFile> {
        [&self.identity.cert, &self.identity.key]
            .into_iter()
            .chain(self.clients.as_ref().map(|clients| &clients.ca))
    }
}

impl Clients {
    fn verifier(&self) -> Result<Arc<dyn ClientCertVerifier>, PemError> {
        let authorities = Arc::new(self.ca.authorities()?);
        let built =
            WebPkiClientVerifier::builder_with_provider(authorities, tls::provider()).build();
        let any = built.expect("there are authorities, and no lists of revoked certificates");
        Ok(match &self.name {
            Some(name) => Arc::new(NamedClients {
                any,
                name: name.clone(),
            }),
            None => any,
        })
    }
}

impl ClientCertVerifier for NamedClients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.any.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self
            .any
            .verify_client_cert(end_entity, intermediates, now)?;
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, &self.name)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.any.verify_tls12_signature(message, cert, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.any.verify_tls13_signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.any.supported_verify_schemes()
    }
}

impl CertificateSource {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// They cannot be used.
    pub fn new(files: Files, metrics: &Metrics) -> anyhow::Result<Self> {
        let looked_at = FileSet::new(files.all().map(|file| file.path.clone()).collect());
        let first = files
            .load()
            .context("load the certificates of the gRPC port")?;
        let loads = |result| {
            let help = "Loads of the gRPC port's certificates, by result; with a failed one those before go on serving.";
            metrics.counter_with("tollgate_tls_loads_total", help, &[("result", result)])
        };
        let metrics = SourceMetrics {
            loaded: loads("success"),
            failed: loads("error"),
            refused: metrics.gauge(
                "tollgate_tls_rejected",
                "1 while the newest certificate, key or client authority of the gRPC port is refused and older ones serve.",
            ),
            ends_at: metrics.gauge(
                "tollgate_tls_certificate_expiry_timestamp_seconds",
                "When the gRPC port's certificate runs out, or the first that comes with it: seconds since the epoch.",
            ),
        };
        metrics.took(first.ends_at);
        Ok(Self {
            files,
            looked_at,
            live: Arc::new(ArcSwap::from_pointee(first.config)),
            metrics,
        })
    }

    /// What handshakes are made with, now and after every load.
    pub fn tls(&self, metrics: &Metrics) -> Tls {
        let help = "TLS handshakes on the gRPC port that failed, by reason.";
        let counter = |(_, reason)| {
            metrics.counter_with(
                "tollgate_tls_handshakes_failed_total",
                help,
                &[("reason", reason)],
            )
        };
        Tls {
            live: self.live.clone(),
            failed: Arc::new(FAILURES.map(counter)),
        }
    }
}

impl Watched for CertificateSource {
    type Signature = Vec<Option<FileStat>>;

    const NAME: &'static str = "certificates";

    fn directories(&self) -> Vec<(PathBuf, RecursiveMode)> {
        self.looked_at.directories().collect()
    }

    fn signature(&self) -> Self::Signature {
        self.looked_at.signature().collect()
    }

    fn needs_retry(&self) -> bool {
        self.looked_at.needs_retry()
    }

    fn load(&mut self) {
        match self
            .looked_at
            .load(|| self.files.load().map_err(|error| error.to_string()))
        {
            None => {}
            Some(Ok(Loaded { config, ends_at })) => {
                self.live.store(Arc::new(config));
                let event = if self.metrics.refused.get() == 1 {
                    "valid again"
                } else {
                    "reloaded"
                };
                tracing::info!("certificates of the gRPC port {event}");
                self.metrics.took(ends_at);
            }
            Some(Err(error)) => {
                tracing::error!(
                    "reload of the gRPC port's certificates rejected; the previous ones stay in use: {error}"
                );
                self.metrics.failed.inc();
                self.metrics.refused.set(1);
            }
        }
    }
}

impl SourceMetrics {
    fn took(&self, ends_at: Option<u64>) {
        self.ends_at.set(
            ends_at
                .and_then(|seconds| i64::try_from(seconds).ok())
                .unwrap_or(0),
        );
        self.refused.set(0);
        // Last, so that whoever sees it here finds it so everywhere.
        self.loaded.inc();
    }
}

impl Tls {
    /// Makes the server's part of the handshake. Failures are counted. `on_hello` is called when
    /// the ClientHello has come.
    ///
    /// # Errors
    /// Why it failed. The client was told, if it can be told.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        on_hello: impl FnOnce(),
    ) -> Result<TlsStream<S>, Failure> {
        let error = match self.handshake(stream, on_hello).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => Some(error),
            Err(_) => None,
        };
        let failure = error.as_ref().map_or(Failure::Timeout, Failure::of);
        let reason = self.count(failure);
        let error = error.map(|error| error.to_string());
        tracing::debug!(reason, error, "a TLS handshake failed");
        Err(failure)
    }

    async fn handshake<S>(
        &self,
        stream: S,
        on_hello: impl FnOnce(),
    ) -> Result<io::Result<TlsStream<S>>, Elapsed>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let begun = match timeout(
            HELLO_TIMEOUT,
            LazyConfigAcceptor::new(Acceptor::default(), stream),
        )
        .await?
        {
            Ok(begun) => begun,
            Err(error) => return Ok(Err(error)),
        };
        on_hello();
        timeout(HANDSHAKE_TIMEOUT, begun.into_stream(self.live.load_full())).await
    }

    /// Counts a handshake that failed, and gives the reason as the metric has it.
    pub fn count(&self, failure: Failure) -> &'static str {
        let index = FAILURES
            .iter()
            .position(|(known, _)| *known == failure)
            .expect("the table has every failure");
        self.failed[index].inc();
        FAILURES[index].1
    }
}

impl Failure {
    fn of(error: &io::Error) -> Self {
        let Some(error) = error
            .get_ref()
            .and_then(|error| error.downcast_ref::<Error>())
        else {
            return Self::HungUp;
        };
        match error {
            Error::InvalidMessage(_) => Self::NotTls,
            Error::PeerIncompatible(_) | Error::NoApplicationProtocol => Self::Incompatible,
            Error::AlertReceived(_) => Self::RefusedByClient,
            Error::NoCertificatesPresented => Self::NoCertificate,
            Error::InvalidCertificate(error) => match error {
                CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. } => Self::Expired,
                CertificateError::NotValidForName
                | CertificateError::NotValidForNameContext { .. } => Self::WrongName,
                _ => Self::Untrusted,
            },
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use rustls::server::{ClientHello, ResolvesServerCert};
    use rustls::sign::CertifiedKey;

    use super::*;

    /// Has no certificate to show: nobody gets as far as that here.
    #[derive(Debug)]
    struct Nobody;

    impl ResolvesServerCert for Nobody {
        fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
            None
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_says_nothing_is_cut_off_when_its_time_is_over() {
        let config = ServerConfig::builder_with_provider(tls::provider())
            .with_safe_default_protocol_versions();
        let config = config
            .expect("it has ciphers")
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Nobody));
        let metrics = Metrics::new();
        let counter =
            |(_, reason)| metrics.counter_with("failed", "Failures.", &[("reason", reason)]);
        let tls = Tls {
            live: Arc::new(ArcSwap::from_pointee(config)),
            failed: Arc::new(FAILURES.map(counter)),
        };

        let (_silent, here) = tokio::io::duplex(64);
        let began = tokio::time::Instant::now();
        assert_eq!(
            tls.accept(here, || ()).await.expect_err("nothing comes"),
            Failure::Timeout
        );
        assert_eq!(began.elapsed(), HELLO_TIMEOUT);
        assert!(
            metrics.page().contains("failed{reason=\"timeout\"} 1"),
            "{}",
            metrics.page()
        );

        let (gone, here) = tokio::io::duplex(64);
        drop(gone);
        assert_eq!(
            tls.accept(here, || ()).await.expect_err("nobody is there"),
            Failure::HungUp
        );
    }
}
