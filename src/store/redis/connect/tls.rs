//! TLS to Redis: trusted authorities and the client certificate.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::ClientConfig;

use crate::base::net::peers::Names;
use crate::base::net::tls::{ClientTls, Identity, PemFile};

/// The values of REDIS_TLS_*.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Tls {
    /// The only trusted authorities; `None` for those of the system.
    pub(crate) ca: Option<PemFile>,
    pub(crate) client: Option<Identity>,
    /// Whether a server's certificate may have any name, not only the host of the address.
    pub(crate) accepts_any_name: bool,
}

/// TLS configuration of a client, from its files.
#[derive(Clone)]
pub struct TlsClient(pub(crate) Arc<ClientConfig>);

impl Tls {
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let client = self.client.iter().flat_map(|identity| [&identity.cert, &identity.key]);
        let files = self.ca.iter().chain(client);
        files.map(|file| file.path.clone()).collect()
    }

    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(crate) fn load(&self) -> Result<TlsClient, String> {
        let client =
            ClientTls { authority: self.ca.clone(), identity: self.client.clone(), name: None };
        let names = if self.accepts_any_name { Names::Any } else { Names::Own };
        let config = client.config_for(names);
        let config = config.map_err(|error| error.to_string())?;
        Ok(TlsClient(Arc::new(config)))
    }
}

impl fmt::Debug for TlsClient {
    /// Without the key.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("TlsClient")
    }
}
