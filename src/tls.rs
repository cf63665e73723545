//! Certificates, keys and authorities in PEM files. Errors name the setting of a file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CertificateError, ClientConfig, RootCertStore};

/// A PEM file, and the setting that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PemFile {
    /// The name of the setting.
    pub setting: &'static str,
    /// Its path.
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

/// Why PEM files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    /// A file cannot be read.
    #[error("{setting}: {}: {error}", path.display())]
    Read {
        /// The name of its setting.
        setting: &'static str,
        /// Its path.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// A file does not contain what it should.
    #[error("{setting}: {} has no {wanted} in PEM", path.display())]
    Missing {
        /// The name of its setting.
        setting: &'static str,
        /// Its path.
        path: PathBuf,
        /// What it should contain.
        wanted: &'static str,
    },
    /// The key does not belong to the certificate.
    #[error("{} and {}: {} and {} cannot be used together: {error}", of.cert.setting, of.key.setting, of.cert.path.display(), of.key.path.display())]
    Pair {
        /// The files.
        of: Box<Identity>,
        /// The cause.
        error: rustls::Error,
    },
}

/// The cryptography of all TLS connections.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The configuration of a TLS client: the trusted authority, by default those of the system, and the
/// certificate for servers that request one.
///
/// # Errors
/// A file cannot be used.
pub fn client(
    authority: Option<&PemFile>,
    identity: Option<&Identity>,
) -> Result<ClientConfig, PemError> {
    let roots = authority.map_or_else(|| Ok(system_authorities()), PemFile::authorities)?;
    let builder =
        ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let builder = builder
        .expect("the provider has what both versions need")
        .with_root_certificates(roots);
    Ok(match identity {
        Some(identity) => {
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity.load()?)))
        }
        None => builder.with_no_client_auth(),
    })
}

/// Invalid certificates of the system are ignored.
fn system_authorities() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
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
        match verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &RootCertStore::empty(),
            &[],
            after_all,
            &[],
        ) {
            Err(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext {
                not_after,
                ..
            })) => Some(not_after.as_secs()),
            _ => None,
        }
    };
    chain.iter().filter_map(expires_at).min()
}

impl PemFile {
    /// The file that `setting` names.
    pub fn new(setting: &'static str, path: impl AsRef<Path>) -> Self {
        Self {
            setting,
            path: path.as_ref().to_owned(),
        }
    }

    /// Reads the file.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn bytes(&self) -> Result<Vec<u8>, PemError> {
        fs::read(&self.path).map_err(|error| PemError::Read {
            setting: self.setting,
            path: self.path.clone(),
            error,
        })
    }

    /// Reads the authorities in the file.
    ///
    /// # Errors
    /// It cannot be read, or contains none.
    pub fn authorities(&self) -> Result<RootCertStore, PemError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates()? {
            roots
                .add(certificate)
                .map_err(|_| self.missing("authority's certificate"))?;
        }
        Ok(roots)
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, PemError> {
        let read = CertificateDer::pem_slice_iter(&self.bytes()?)
            .collect::<Result<Vec<_>, _>>()
            .unwrap_or_default();
        if read.is_empty() {
            Err(self.missing("certificate"))
        } else {
            Ok(read)
        }
    }

    fn private_key(&self) -> Result<PrivateKeyDer<'static>, PemError> {
        PrivateKeyDer::from_pem_slice(&self.bytes()?).map_err(|_| self.missing("private key"))
    }

    fn missing(&self, wanted: &'static str) -> PemError {
        PemError::Missing {
            setting: self.setting,
            path: self.path.clone(),
            wanted,
        }
    }
}

impl Identity {
    /// Reads both files.
    ///
    /// # Errors
    /// One of them cannot be read or has other content, or the key is of another certificate.
    pub fn load(&self) -> Result<CertifiedKey, PemError> {
        let (chain, key) = (self.cert.certificates()?, self.key.private_key()?);
        CertifiedKey::from_der(chain, key, &provider()).map_err(|error| PemError::Pair {
            of: Box::new(self.clone()),
            error,
        })
    }
}
