//! The certificates of the gRPC port, reloaded when their files change.
//!
//! Certificate, key and client authority are replaced at once, so a handshake never mixes old and
//! new ones. Open connections stay: a certificate is checked once, when its connection begins.

use std::sync::Arc;

use anyhow::Context as _;
use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::pki_types::ServerName;
use rustls::server::NoServerSessionStorage;
use rustls::sign::SingleCertAndKey;

use crate::api::tls::Tls;
use crate::base::file_watch::{FileSet, Loads, Reloaded};
use crate::base::net::tls::{self, Identity, PemError, PemFile};
use crate::telemetry::metric::Metrics;

/// The protocol that is negotiated.
const ALPN: &[u8] = b"h2";

/// The files of the gRPC port's TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Files {
    /// The server's certificate and key.
    pub(crate) identity: Identity,
    /// Which clients may connect; `None` for all.
    pub(crate) clients: Option<Clients>,
}

/// Which client certificates are accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Clients {
    /// Their authority. The system's authorities are not trusted: they certify servers for anybody.
    pub(crate) ca: PemFile,
    /// The name they must have, if any.
    pub(crate) name: Option<ServerName<'static>>,
}

/// A configuration of handshakes.
#[derive(Debug)]
pub(crate) struct Loaded {
    config: ServerConfig,
    /// When its first certificate expires, in seconds since the epoch; 0 if that is not known.
    expires_at: i64,
}

impl Files {
    /// Loads the files, at startup also to check them with the other settings.
    ///
    /// # Errors
    /// One of them is invalid.
    pub(crate) fn load(&self) -> Result<Loaded, PemError> {
        let identity = self.identity.load()?;
        let expires_at = tls::chain_expires_at(&identity.cert);
        let expires_at = expires_at.and_then(|seconds| i64::try_from(seconds).ok());
        let versions = ServerConfig::builder_with_provider(tls::provider())
            .with_safe_default_protocol_versions();
        let builder = versions.expect("the provider has ciphers of TLS 1.2 and 1.3");
        let builder = match &self.clients {
            Some(clients) => {
                let trusted = clients.ca.trusted()?;
                builder.with_client_cert_verifier(trusted.clients(clients.name.clone()))
            }
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(identity)));
        config.alpn_protocols = vec![ALPN.to_vec()];
        // A resumed session would skip the check of its certificate; connections are few and long,
        // and gain little by it.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Loaded { config, expires_at: expires_at.unwrap_or(0) })
    }

    fn all(&self) -> impl Iterator<Item = &PemFile> {
        [&self.identity.cert, &self.identity.key]
            .into_iter()
            .chain(self.clients.as_ref().map(|clients| &clients.ca))
    }
}

/// Loads the files for the first time, and replaces the configuration of handshakes when they
/// change.
///
/// # Errors
/// A file is invalid.
pub(crate) fn open(files: Files, metrics: &Metrics) -> anyhow::Result<(Tls, Reloaded)> {
    let watched = FileSet::new(files.all().map(|file| file.path.clone()).collect());
    let first = files.load().context("load the certificates of the gRPC port")?;
    let loads = [
        "tollgate_tls_loads_total",
        "Loads of the gRPC port's certificates, by result; after a failed one the previous certificates serve.",
    ];
    let rejected = [
        "tollgate_tls_rejected",
        "1 while the newest certificate, key or client authority of the gRPC port is invalid and the previous ones serve.",
    ];
    let loads = Loads::new(loads, rejected, metrics);
    let expires_at = metrics.gauge(
        "tollgate_tls_certificate_expiry_timestamp_seconds",
        "When the first certificate in the gRPC port's chain expires, in seconds since the epoch.",
    );
    let live = Arc::new(ArcSwap::from_pointee(first.config));
    expires_at.set(first.expires_at);
    loads.loaded.inc();
    let tls = Tls::new(live.clone(), metrics);
    let replace = move |loaded: Loaded| {
        live.store(Arc::new(loaded.config));
        expires_at.set(loaded.expires_at);
    };
    let read = move || files.load().map_err(|error| error.to_string());
    let mut reloaded = Reloaded::new("certificates", "certificates of the gRPC port");
    reloaded.add(watched, read, replace);
    Ok((tls, reloaded.counted(loads)))
}
