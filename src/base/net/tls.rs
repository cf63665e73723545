//! TLS: certificates, keys and authorities in PEM files, and connections of clients. Errors name
//! the setting of a file.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CertificateError, ClientConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use crate::base::net::peers::{self, Names, Trusted};
use crate::base::regular_file;

pub use crate::base::net::peers::provider;

/// A PEM file, and the setting that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PemFile {
    /// The name of the setting.
    pub setting: String,
    /// The path.
    pub path: PathBuf,
}

/// A certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate, followed by those that lead to its authority.
    pub cert: PemFile,
    /// The key, in PKCS#1, PKCS#8 or SEC1.
    pub key: PemFile,
}

/// Why PEM files cannot be used: names their settings and paths.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct PemError(String);

/// TLS of a client. The files are read for each connection, so that replaced certificates are used.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientTls {
    /// The only trusted authority; `None` for those of the system.
    pub authority: Option<PemFile>,
    /// The certificate for servers that request one.
    pub identity: Option<Identity>,
    /// The name in the server's certificate, if it is not the host.
    pub name: Option<String>,
}

/// When the first certificate of a chain expires, in seconds since the epoch; `None` if it is
/// unknown.
///
/// rustls returns the time only with the error about an expired certificate, so this verifies the
/// chain at a time when all have expired.
pub fn chain_expires_at(chain: &[CertificateDer<'_>]) -> Option<u64> {
    let after_all = UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX));
    let expires_at = |certificate| {
        let parsed = ParsedCertificate::try_from(certificate).ok()?;
        let verified = peers::verify_without_authority(&parsed, after_all);
        let Err(rustls::Error::InvalidCertificate(error)) = verified else { return None };
        let CertificateError::ExpiredContext { not_after, .. } = error else { return None };
        Some(not_after.as_secs())
    };
    chain.iter().filter_map(expires_at).min()
}

impl ClientTls {
    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn config(&self) -> Result<ClientConfig, PemError> {
        self.config_for(Names::Own)
    }

    /// The configuration for servers with these names.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(crate) fn config_for(&self, names: Names) -> Result<ClientConfig, PemError> {
        let builder =
            ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let builder = builder
            .expect("the provider has what both versions need")
            .dangerous()
            .with_custom_certificate_verifier(self.trusted()?.servers(names));
        Ok(match &self.identity {
            Some(identity) => builder
                .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity.load()?))),
            None => builder.with_no_client_auth(),
        })
    }

    fn trusted(&self) -> Result<Trusted, PemError> {
        // Invalid certificates of the system are ignored.
        let of_system = || Trusted::new(rustls_native_certs::load_native_certs().certs);
        let authority = self.authority.as_ref();
        authority.map_or_else(|| Ok(of_system()), PemFile::trusted)
    }
}

/// Encrypts what `plain` connects to, if there is TLS. `protocol` is its ALPN name.
///
/// # Errors
/// Invalid files, with which `plain` is not polled; or a server that is unreachable or has an
/// untrusted certificate.
pub(crate) async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
    tls: Option<&ClientTls>,
    host: &str,
    protocol: &[u8],
    plain: impl Future<Output = anyhow::Result<S>>,
) -> anyhow::Result<TokioIo<Either<S, TlsStream<S>>>> {
    let Some(tls) = tls else {
        return Ok(TokioIo::new(Either::Left(plain.await?)));
    };
    let name = tls.name.as_deref().unwrap_or(host);
    let name = ServerName::try_from(name.to_owned())
        .with_context(|| format!("{name} is not a name that a certificate can have"))?;
    let mut config = tls.config()?;
    config.alpn_protocols = vec![protocol.to_vec()];
    let plain = plain.await?;
    let encrypted = TlsConnector::from(Arc::new(config)).connect(name, plain);
    let encrypted = encrypted.await.map_err(peers::explain).context("TLS")?;
    Ok(TokioIo::new(Either::Right(encrypted)))
}

impl PemFile {
    /// The file that `setting` names.
    pub fn new(setting: impl Into<String>, path: impl AsRef<Path>) -> Self {
        Self { setting: setting.into(), path: path.as_ref().to_owned() }
    }

    /// Reads the file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn bytes(&self) -> Result<Vec<u8>, PemError> {
        regular_file::read(&self.path).map_err(|error| PemError(format!("{self}: {error}")))
    }

    /// Reads the trusted certificates in the file.
    ///
    /// # Errors
    /// The file cannot be read, or one of them.
    pub(crate) fn trusted(&self) -> Result<Trusted, PemError> {
        Some(Trusted::new(self.certificates()?))
            .filter(Trusted::are_valid)
            .ok_or_else(|| self.missing("authority's certificate"))
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, PemError> {
        let read = CertificateDer::pem_slice_iter(&self.bytes()?)
            .collect::<Result<Vec<_>, _>>()
            .unwrap_or_default();
        if read.is_empty() { Err(self.missing("certificate")) } else { Ok(read) }
    }

    fn private_key(&self) -> Result<PrivateKeyDer<'static>, PemError> {
        PrivateKeyDer::from_pem_slice(&self.bytes()?).map_err(|_| self.missing("private key"))
    }

    fn missing(&self, wanted: &str) -> PemError {
        PemError(format!("{self} has no {wanted} in PEM"))
    }
}

impl fmt::Display for PemFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.setting, self.path.display())
    }
}

impl Identity {
    /// The certificate and key of two settings, each with its path; `None` if neither is set.
    ///
    /// # Errors
    /// Only one of them is set.
    pub(crate) fn of_settings(
        cert: (&str, Option<impl AsRef<Path>>),
        key: (&str, Option<impl AsRef<Path>>),
    ) -> Result<Option<Self>, String> {
        match (cert, key) {
            ((cert, Some(cert_path)), (key, Some(key_path))) => Ok(Some(Self {
                cert: PemFile::new(cert, cert_path),
                key: PemFile::new(key, key_path),
            })),
            ((_, None), (_, None)) => Ok(None),
            ((set, Some(_)), (unset, None)) | ((unset, None), (set, Some(_))) => {
                Err(format!("{set} is set and {unset} is not; set both or none"))
            }
        }
    }

    /// Reads both files.
    ///
    /// # Errors
    /// A file cannot be read or has other content, or the key is of another certificate.
    pub fn load(&self) -> Result<CertifiedKey, PemError> {
        let chain = self.cert.certificates()?;
        let key = self.key.private_key()?;
        let first = peers::readable(&chain[0]).into_owned().into_owned();
        let certified = CertifiedKey::from_der(vec![first], key, &provider());
        let certified = certified.map(|certified| CertifiedKey { cert: chain, ..certified });
        certified.map_err(|error| {
            let Self { cert, key } = self;
            let error = match error {
                rustls::Error::InvalidCertificate(error) => peers::reason(&error),
                error => error.to_string(),
            };
            PemError(format!(
                "{} and {}: {} and {} cannot be used together: {error}",
                cert.setting,
                key.setting,
                cert.path.display(),
                key.path.display()
            ))
        })
    }
}
