//! TLS to Redis: who is trusted, and who we are.
//!
//! Files are read when the store is put together, so that what is wrong with them is said at the
//! start and not at the first call; and again when they change (see `secrets.rs`).

use std::fmt;
use std::path::PathBuf;

use redis::{Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo as _, TlsCertificates};
use rustls::crypto::ring;

use crate::tls::{Identity, PemError, PemFile};

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

/// What connections by TLS are told: what is made of the files.
#[derive(Clone)]
pub struct TlsClient {
    /// Of no place. The Redis client keeps what it makes of certificates nowhere else.
    addr: ConnectionAddr,
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
    /// A file of no use.
    #[error(transparent)]
    File(#[from] PemError),
    /// What is left.
    #[error("REDIS_TLS: {0}")]
    Other(#[from] redis::RedisError),
}

const CACERT: &str = "REDIS_TLS_CACERT";
const CLIENT_CERT: &str = "REDIS_TLS_CLIENT_CERT";
const CLIENT_KEY: &str = "REDIS_TLS_CLIENT_KEY";

impl Tls {
    /// The files that it is made of.
    pub fn paths(&self) -> Vec<PathBuf> {
        let client = self.client.iter().flat_map(|(cert, key)| [cert, key]);
        self.ca.iter().chain(client).cloned().collect()
    }

    /// Reads the files.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn load(&self) -> Result<TlsClient, TlsError> {
        // The Redis client asks for the process' provider. An error says that there is one already.
        let _ = ring::default_provider().install_default();
        let certificates = TlsCertificates {
            client_tls: self.client()?,
            root_cert: self.authorities()?,
        };
        let nowhere = ConnectionAddr::TcpTls {
            host: String::new(),
            port: 0,
            insecure: false,
            tls_params: None,
        };
        let mut addr = Client::build_with_tls(nowhere.into_connection_info()?, certificates)?
            .get_connection_info()
            .addr()
            .clone();
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
        // Whether they belong together would else be seen at the first connection.
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
    /// A place that is reached by TLS.
    pub fn at(&self, place: (&str, u16)) -> ConnectionAddr {
        let mut addr = self.addr.clone();
        if let ConnectionAddr::TcpTls { host, port, .. } = &mut addr {
            (*host, *port) = (place.0.to_owned(), place.1);
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
