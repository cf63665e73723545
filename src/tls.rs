//! Certificates, keys and authorities, as files in PEM hold them. Each file is known by the setting
//! that names it, since that is where an operator can mend it.

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

/// A file, and the setting that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PemFile {
    /// Which names it.
    pub setting: &'static str,
    /// The file.
    pub path: PathBuf,
}

/// Who somebody is: a chain of certificates, the own one first, and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The chain.
    pub cert: PemFile,
    /// The key, in PKCS#1, PKCS#8 or SEC1.
    pub key: PemFile,
}

/// Why files are of no use.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    /// A file that cannot be read.
    #[error("{setting}: {}: {error}", path.display())]
    Read {
        /// Which names it.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A file with something else.
    #[error("{setting}: {} has no {wanted} in PEM", path.display())]
    Missing {
        /// Which names it.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// What was looked for.
        wanted: &'static str,
    },
    /// A certificate and the key of another.
    #[error("{} and {}: {} and {} cannot be used together: {error}", of.cert.setting, of.key.setting, of.cert.path.display(), of.key.path.display())]
    Pair {
        /// The two.
        of: Box<Identity>,
        /// Why.
        error: rustls::Error,
    },
}

/// The cryptography that is used wherever TLS is spoken.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// How to speak TLS to a server: whom to trust, by default the system's authorities, and who we
/// are, if it asks.
///
/// # Errors
/// Files of no use.
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

/// What cannot be read is not trusted; where there are none, nobody is.
fn system_authorities() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// When the first certificate of a chain runs out, in seconds since the epoch; `None` if nobody can
/// tell.
///
/// The library tells it only of one that has run out. So it is asked about a time by which every
/// one has.
pub fn chain_ends_at(chain: &[CertificateDer<'_>]) -> Option<u64> {
    let at_last = UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX));
    let ends_at = |certificate| {
        let parsed = ParsedCertificate::try_from(certificate).ok()?;
        match verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &RootCertStore::empty(),
            &[],
            at_last,
            &[],
        ) {
            Err(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext {
                not_after,
                ..
            })) => Some(not_after.as_secs()),
            _ => None,
        }
    };
    chain.iter().filter_map(ends_at).min()
}

impl PemFile {
    /// A file, and the setting that names it.
    pub fn new(setting: &'static str, path: impl AsRef<Path>) -> Self {
        Self {
            setting,
            path: path.as_ref().to_owned(),
        }
    }

    /// Its bytes.
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

    /// The authorities in it.
    ///
    /// # Errors
    /// It cannot be read, or has none.
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
    /// One of them cannot be read or has something else, or they do not belong together.
    pub fn load(&self) -> Result<CertifiedKey, PemError> {
        let (chain, key) = (self.cert.certificates()?, self.key.private_key()?);
        CertifiedKey::from_der(chain, key, &provider()).map_err(|error| PemError::Pair {
            of: Box::new(self.clone()),
            error,
        })
    }
}
