//! TLS to Redis: who is trusted, and who we are.
//!
//! Files are read once, when the store is put together, so that what is wrong with them is said at the start and not at the first call.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use redis::{Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, TlsCertificates};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// Settings of TLS, as REDIS_TLS_* say them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tls {
    /// REDIS_TLS_CACERT: the only authority that is trusted. Without it, those of the system are.
    pub ca: Option<PathBuf>,
    /// REDIS_TLS_CLIENT_CERT and REDIS_TLS_CLIENT_KEY.
    pub client: Option<(PathBuf, PathBuf)>,
    /// REDIS_TLS_SKIP_HOSTNAME_VERIFICATION.
    pub names: Names,
}

/// Which names a server's certificate may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Names {
    /// The one that was connected to.
    #[default]
    Host,
    /// Any, as long as a trusted authority has signed it.
    Any,
}

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
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
    Pem {
        /// Which names it.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// What was looked for.
        wanted: &'static str,
    },
    /// A certificate and the key of another.
    #[error("REDIS_TLS_CLIENT_CERT and REDIS_TLS_CLIENT_KEY: {} and {} cannot be used together: {error}", cert.display(), key.display())]
    Client {
        /// The certificate.
        cert: PathBuf,
        /// The key.
        key: PathBuf,
        /// Why.
        error: rustls::Error,
    },
    /// TLS on a Unix socket.
    #[error("REDIS_TLS: there is no TLS on a Unix socket; set it to false, or write the server's host:port into REDIS_URL")]
    Socket,
    /// What is left.
    #[error("REDIS_TLS: {0}")]
    Other(#[from] redis::RedisError),
}

const CACERT: &str = "REDIS_TLS_CACERT";
const CLIENT_CERT: &str = "REDIS_TLS_CLIENT_CERT";
const CLIENT_KEY: &str = "REDIS_TLS_CLIENT_KEY";

impl Tls {
    /// The same server by TLS.
    ///
    /// # Errors
    /// What is wrong with the files, or that it is a Unix socket.
    pub fn wrap(&self, info: ConnectionInfo) -> Result<ConnectionInfo, TlsError> {
        // The Redis client asks for the process' provider. An error says that there is one already.
        let _ = ring::default_provider().install_default();
        let (host, port) = match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => (host.clone(), *port),
            _ => return Err(TlsError::Socket),
        };
        let certificates = TlsCertificates { client_tls: self.client()?, root_cert: self.ca.as_deref().map(authorities).transpose()? };
        let info = info.set_addr(ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None });
        let info = Client::build_with_tls(info, certificates)?.get_connection_info().clone();
        let mut addr = info.addr().clone();
        addr.set_danger_accept_invalid_hostnames(self.names == Names::Any);
        Ok(info.set_addr(addr))
    }

    fn client(&self) -> Result<Option<ClientTlsConfig>, TlsError> {
        let Some((cert_path, key_path)) = &self.client else { return Ok(None) };
        let (cert_pem, key_pem) = (read(CLIENT_CERT, cert_path)?, read(CLIENT_KEY, key_path)?);
        let chain = certificates(CLIENT_CERT, cert_path, &cert_pem)?;
        let key = PrivateKeyDer::from_pem_slice(&key_pem);
        let key = key.map_err(|_| TlsError::Pem { setting: CLIENT_KEY, path: key_path.clone(), wanted: "private key" })?;
        // Whether they belong together would else be seen at the first connection.
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider())).with_safe_default_protocol_versions();
        let config = config.expect("ring has the default versions of TLS").with_root_certificates(RootCertStore::empty());
        match config.with_client_auth_cert(chain, key) {
            Ok(_) => Ok(Some(ClientTlsConfig { client_cert: cert_pem, client_key: key_pem })),
            Err(error) => Err(TlsError::Client { cert: cert_path.clone(), key: key_path.clone(), error }),
        }
    }
}

/// The file of REDIS_TLS_CACERT, if it has certificates of authorities.
fn authorities(path: &Path) -> Result<Vec<u8>, TlsError> {
    let pem = read(CACERT, path)?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates(CACERT, path, &pem)? {
        roots.add(certificate).map_err(|_| TlsError::Pem { setting: CACERT, path: path.to_owned(), wanted: "authority's certificate" })?;
    }
    Ok(pem)
}

fn certificates(setting: &'static str, path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().unwrap_or_default();
    if read.is_empty() { Err(TlsError::Pem { setting, path: path.to_owned(), wanted: "certificate" }) } else { Ok(read) }
}

fn read(setting: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|error| TlsError::Read { setting, path: path.to_owned(), error })
}
