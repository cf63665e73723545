//! TLS to Redis: who is trusted, and who we are.
//!
//! Files are read once, when the store is put together, so that what is wrong with them is said at the start and not at the first call.

use std::path::PathBuf;

use redis::{Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, TlsCertificates};
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
        let certificates = TlsCertificates { client_tls: self.client()?, root_cert: self.authorities()? };
        let info = info.set_addr(ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None });
        let info = Client::build_with_tls(info, certificates)?.get_connection_info().clone();
        let mut addr = info.addr().clone();
        addr.set_danger_accept_invalid_hostnames(self.names == Names::Any);
        Ok(info.set_addr(addr))
    }

    fn client(&self) -> Result<Option<ClientTlsConfig>, TlsError> {
        let Some((cert, key)) = &self.client else { return Ok(None) };
        let identity = Identity { cert: PemFile::new(CLIENT_CERT, cert), key: PemFile::new(CLIENT_KEY, key) };
        // Whether they belong together would else be seen at the first connection.
        identity.load()?;
        Ok(Some(ClientTlsConfig { client_cert: identity.cert.bytes()?, client_key: identity.key.bytes()? }))
    }

    fn authorities(&self) -> Result<Option<Vec<u8>>, TlsError> {
        let Some(path) = &self.ca else { return Ok(None) };
        let file = PemFile::new(CACERT, path);
        file.authorities()?;
        Ok(Some(file.bytes()?))
    }
}
