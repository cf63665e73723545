//! TLS handshakes of the gRPC port, and why they fail.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::server::Acceptor;
use rustls::{CertificateError, Error, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use crate::base::net::peers;
use crate::telemetry::metric::{Counter, Metrics};

/// Time for a client to send its ClientHello, which every client sends at once.
// bound hello_timeout: closed; tollgate_tls_handshakes_failed_total{reason="timeout"}
pub(crate) const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for the rest of a TLS handshake.
// bound handshake_timeout: closed; tollgate_tls_handshakes_failed_total{reason="timeout"}
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Makes handshakes with the current configuration. Clones share it.
#[derive(Debug, Clone)]
pub struct Tls {
    live: Arc<ArcSwap<ServerConfig>>,
    failed: Arc<HashMap<&'static str, Counter>>,
}

/// A handshake that was closed for another one.
pub(crate) const EVICTED: &str = "evicted";
/// Why handshakes fail: the labels of the metric.
const REASONS: [&str; 11] = [
    // The client was too slow.
    "timeout",
    EVICTED,
    // The client disconnected.
    "hung_up",
    "not_tls",
    // There is no common version or cipher.
    "incompatible",
    // The client does not trust the server, or sent another alert.
    "refused_by_client",
    "no_certificate",
    // The client's certificate has expired, or is not yet valid.
    "expired",
    // The client's certificate has another name.
    "wrong_name",
    // The client's certificate is of another authority, or invalid.
    "untrusted",
    "other",
];

impl Tls {
    /// Registers the metrics.
    pub(crate) fn new(live: Arc<ArcSwap<ServerConfig>>, metrics: &Metrics) -> Self {
        let counter = |reason| {
            let help = "Failed TLS handshakes on the gRPC port, by reason.";
            let name = "tollgate_tls_handshakes_failed_total";
            (reason, metrics.counter_with(name, help, &[("reason", reason)]))
        };
        Self { live, failed: Arc::new(REASONS.map(counter).into()) }
    }

    /// Makes the server's part of the handshake. `on_hello` is called when the ClientHello was
    /// received. `None` if it fails, which is counted; the client got an alert, if it speaks TLS.
    pub(crate) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        on_hello: impl FnOnce(),
    ) -> Option<TlsStream<S>> {
        let handshake: Result<_, io::Error> = async {
            let acceptor = LazyConfigAcceptor::new(Acceptor::default(), stream);
            let begun = timeout(HELLO_TIMEOUT, acceptor).await??;
            on_hello();
            let config = self.live.load_full();
            timeout(HANDSHAKE_TIMEOUT, begun.into_stream(config)).await?
        }
        .await;
        let error = match handshake {
            Ok(stream) => return Some(stream),
            Err(error) => error,
        };
        let reason = reason_of(&error);
        self.count(reason);
        let error = peers::explain(error);
        tracing::debug!(reason, %error, "a TLS handshake failed");
        None
    }

    /// Counts a failed handshake by one of [`REASONS`].
    pub(crate) fn count(&self, reason: &str) {
        self.failed[reason].inc();
    }
}

fn reason_of(error: &io::Error) -> &'static str {
    let source = error.get_ref().and_then(|error| error.downcast_ref());
    let Some(error) = source else {
        // rustls reports its own errors, and so does a timeout.
        return if error.kind() == io::ErrorKind::TimedOut { "timeout" } else { "hung_up" };
    };
    match error {
        Error::InvalidMessage(_) => "not_tls",
        Error::PeerIncompatible(_) | Error::NoApplicationProtocol => "incompatible",
        Error::AlertReceived(_) => "refused_by_client",
        Error::NoCertificatesPresented => "no_certificate",
        Error::InvalidCertificate(error) => match error {
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => "expired",
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "wrong_name"
            }
            _ => "untrusted",
        },
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use rustls::server::ResolvesServerCertUsingSni;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silent_client_is_closed_after_the_hello_timeout() {
        let config = ServerConfig::builder_with_provider(crate::base::net::tls::provider())
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
        assert!(tls.accept(here, || ()).await.is_none(), "nothing is sent");
        assert_eq!(began.elapsed(), HELLO_TIMEOUT);
        assert_eq!(tls.failed["timeout"].get(), 1);

        let (gone, here) = tokio::io::duplex(64);
        drop(gone);
        assert!(tls.accept(here, || ()).await.is_none(), "it is closed");
        assert_eq!(tls.failed["hung_up"].get(), 1);
    }
}
