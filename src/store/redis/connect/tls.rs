//! TLS to Redis: trusted authorities and the client certificate.

use std::fmt;
use std::path::PathBuf;

use redis::{Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo as _, TlsCertificates};
use rustls::crypto::ring;

use crate::tls::{Identity, PemError, PemFile};

/// The values of REDIS_TLS_*.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Tls {
    /// The only trusted authorities; `None` for those of the system.
    pub(crate) ca: Option<PemFile>,
    pub(crate) client: Option<Identity>,
    /// Whether a server's certificate may have any name, not only the host of the address.
    pub(crate) accepts_any_name: bool,
}

/// What is made of the files.
#[derive(Clone)]
pub struct TlsClient {
    /// Without an endpoint. The Redis client keeps certificates in addresses only.
    addr: ConnectionAddr,
}

impl Tls {
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let client = self.client.iter();
        let client = client.flat_map(|identity| [&identity.cert, &identity.key]);
        let files = self.ca.iter().chain(client);
        files.map(|file| file.path.clone()).collect()
    }

    /// Reads the files.
    ///
    /// # Errors
    /// One of them cannot be used.
    pub(crate) fn load(&self) -> Result<TlsClient, String> {
        // The Redis client uses the process' provider. An error says that one is installed.
        let _ = ring::default_provider().install_default();
        let certificates = self.certificates().map_err(|error| error.to_string())?;
        let unresolved = ConnectionAddr::TcpTls {
            host: String::new(),
            port: 0,
            insecure: false,
            tls_params: None,
        };
        let client = unresolved
            .into_connection_info()
            .and_then(|info| Client::build_with_tls(info, certificates))
            .map_err(|error| format!("REDIS_TLS: {error}"))?;
        let mut addr = client.get_connection_info().addr().clone();
        addr.set_danger_accept_invalid_hostnames(self.accepts_any_name);
        Ok(TlsClient { addr })
    }

    fn certificates(&self) -> Result<TlsCertificates, PemError> {
        let (mut client_tls, mut root_cert) = (None, None);
        if let Some(identity) = &self.client {
            // Fails if they do not match, which otherwise only the first connection would.
            identity.load()?;
            client_tls = Some(ClientTlsConfig {
                client_cert: identity.cert.bytes()?,
                client_key: identity.key.bytes()?,
            });
        }
        if let Some(file) = &self.ca {
            file.authorities()?;
            root_cert = Some(file.bytes()?);
        }
        Ok(TlsCertificates {
            client_tls,
            root_cert,
        })
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
