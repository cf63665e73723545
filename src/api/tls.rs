//! TLS handshakes of the gRPC port, and why they fail.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::server::Acceptor;
use rustls::{CertificateError, Error, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use crate::telemetry::metric::{Counter, Metrics};

/// Time for a client to send its ClientHello, which every client sends at once.
pub(crate) const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for the rest of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Makes handshakes with the current configuration. Clones share it.
#[derive(Debug, Clone)]
pub struct Tls {
    live: Arc<ArcSwap<ServerConfig>>,
    failed: Arc<[Counter; REASONS.len()]>,
}

/// Why a handshake failed, in the order of [`REASONS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandshakeFailure {
    /// The client was too slow.
    Timeout,
    /// It was closed for another handshake.
    Evicted,
    /// The client disconnected.
    HungUp,
    /// The client does not speak TLS.
    NotTls,
    /// There is no common version or cipher.
    Incompatible,
    /// The client does not trust the server, or sent another alert.
    RejectedByClient,
    /// The client sent no certificate.
    NoCertificate,
    /// The client's certificate has expired, or is not yet valid.
    Expired,
    /// The client's certificate has another name.
    WrongName,
    /// The client's certificate is of another authority, or invalid.
    Untrusted,
    /// Any other error.
    Other,
}

/// The labels of the metric.
const REASONS: [&str; 11] = [
    "timeout",
    "evicted",
    "hung_up",
    "not_tls",
    "incompatible",
    "refused_by_client",
    "no_certificate",
    "expired",
    "wrong_name",
    "untrusted",
    "other",
];

impl Tls {
    /// Registers the metrics.
    pub(crate) fn new(live: Arc<ArcSwap<ServerConfig>>, metrics: &Metrics) -> Self {
        let counter = |reason| {
            metrics.counter_with(
                "tollgate_tls_handshakes_failed_total",
                "Failed TLS handshakes on the gRPC port, by reason.",
                &[("reason", reason)],
            )
        };
        Self {
            live,
            failed: Arc::new(REASONS.map(counter)),
        }
    }

    /// Makes the server's part of the handshake. `on_hello` is called when the ClientHello was
    /// received.
    ///
    /// # Errors
    /// Why it failed, which is counted. The client got an alert, if it speaks TLS.
    pub(crate) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        on_hello: impl FnOnce(),
    ) -> Result<TlsStream<S>, HandshakeFailure> {
        let error = match self.handshake(stream, on_hello).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => Some(error),
            Err(_) => None,
        };
        let failure = error
            .as_ref()
            .map_or(HandshakeFailure::Timeout, HandshakeFailure::of);
        self.count(failure);
        let error = error.map(|error| error.to_string());
        tracing::debug!(
            reason = REASONS[failure as usize],
            error,
            "a TLS handshake failed"
        );
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
        let acceptor = LazyConfigAcceptor::new(Acceptor::default(), stream);
        let begun = match timeout(HELLO_TIMEOUT, acceptor).await? {
            Ok(begun) => begun,
            Err(error) => return Ok(Err(error)),
        };
        on_hello();
        timeout(HANDSHAKE_TIMEOUT, begun.into_stream(self.live.load_full())).await
    }

    /// Counts a failed handshake.
    pub(crate) fn count(&self, failure: HandshakeFailure) {
        self.failed[failure as usize].inc();
    }
}

impl HandshakeFailure {
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
            Error::AlertReceived(_) => Self::RejectedByClient,
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
    use rustls::server::ResolvesServerCertUsingSni;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silent_client_is_closed_after_the_hello_timeout() {
        let config = ServerConfig::builder_with_provider(crate::tls::provider())
            .with_safe_default_protocol_versions();
        // No handshake gets as far as to need a certificate.
        let config = config
            .expect("it has ciphers")
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(ResolvesServerCertUsingSni::new()));
        let metrics = Metrics::new();
        let tls = Tls::new(Arc::new(ArcSwap::from_pointee(config)), &metrics);

        let (_silent, here) = tokio::io::duplex(64);
        let began = tokio::time::Instant::now();
        let failure = tls.accept(here, || ()).await.expect_err("nothing is sent");
        assert_eq!(failure, HandshakeFailure::Timeout);
        assert_eq!(began.elapsed(), HELLO_TIMEOUT);
        let line = "tollgate_tls_handshakes_failed_total{reason=\"timeout\"} 1";
        assert!(metrics.page().contains(line), "{}", metrics.page());

        let (gone, here) = tokio::io::duplex(64);
        drop(gone);
        let failure = tls.accept(here, || ()).await.expect_err("it is closed");
        assert_eq!(failure, HandshakeFailure::HungUp);
    }
}
