//! TLS to Redis: trusted authorities and the client certificate.

use std::fmt;
use std::path::PathBuf;

use redis::{Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo as _, TlsCertificates};
use rustls::crypto::ring;

use crate::tls::{Identity, PemError, PemFile};

const CACERT: &str = "REDIS_TLS_CACERT";
const CLIENT_CERT: &str = "REDIS_TLS_CLIENT_CERT";
const CLIENT_KEY: &str = "REDIS_TLS_CLIENT_KEY";

/// The values of REDIS_TLS_*.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Tls {
    /// The only trusted authorities; `None` for those of the system.
    pub(crate) ca: Option<PathBuf>,
    /// Certificate and key.
    pub(crate) client: Option<(PathBuf, PathBuf)>,
    pub(crate) names: Names,
}

/// What is made of the files.
#[derive(Clone)]
pub struct TlsClient {
    /// Without an endpoint. The Redis client keeps certificates in addresses only.
    addr: ConnectionAddr,
}

/// The names that a server's certificate may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Names {
    /// The host of the address.
    #[default]
    Host,
    Any,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error(transparent)]
    File(#[from] PemError),
    #[error("REDIS_TLS: {0}")]
    Other(#[from] redis::RedisError),
}

impl Tls {
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let client = self.client.iter().flat_map(|(cert, key)| [cert, key]);
        self.ca.iter().chain(client).cloned().collect()
    }

    /// Reads the files.
    ///
    /// # Errors
    /// One of them cannot be used.
    pub(crate) fn load(&self) -> Result<TlsClient, TlsError> {
        // The Redis client uses the process' provider. An error says that one is installed.
        let _ = ring::default_provider().install_default();
        let certificates = TlsCertificates {
            client_tls: self.client()?,
            root_cert: self.authorities()?,
        };
        let unresolved = ConnectionAddr::TcpTls {
            host: String::new(),
            port: 0,
            insecure: false,
            tls_params: None,
        };
        let client = Client::build_with_tls(unresolved.into_connection_info()?, certificates)?;
        let mut addr = client.get_connection_info().addr().clone();
        addr.set_danger_accept_invalid_hostnames(self.names == Names::Any);
        Ok(TlsClient { addr })
    }

    fn client(&self) -> Result<Option<ClientTlsConfig>, TlsError> {
        let Some((cert, key)) = &self.client else {
            return Ok(None);
        };
        let identity = Identity {
            cert: PemFile::new(CLIENT_CERT, cert),
            key: PemFile::new(CLIENT_KEY, key),
        };
        // Fails if they do not match, which otherwise only the first connection would.
        identity.load()?;
        Ok(Some(ClientTlsConfig {
            client_cert: identity.cert.bytes()?,
            client_key: identity.key.bytes()?,
        }))
    }

    fn authorities(&self) -> Result<Option<Vec<u8>>, TlsError> {
        let Some(path) = &self.ca else {
            return Ok(None);
        };
        let file = PemFile::new(CACERT, path);
        file.authorities()?;
        Ok(Some(file.bytes()?))
    }
}

impl TlsClient {
    /// The address of an endpoint by TLS.
    pub(crate) fn at(&self, endpoint: (&str, u16)) -> ConnectionAddr {
        let mut addr = self.addr.clone();
        if let ConnectionAddr::TcpTls { host, port, .. } = &mut addr {
            (*host, *port) = (endpoint.0.to_owned(), endpoint.1);
        }
        addr
    }
}

impl fmt::Debug for TlsClient {
    /// Without the key.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("TlsClient")
    }
}
