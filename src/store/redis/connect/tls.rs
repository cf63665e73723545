//! TLS to Redis: trusted authorities and the client certificate.

use std::path::PathBuf;

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
    pub(crate) fn load(&self) -> Result<ClientConfig, String> {
        let client =
            ClientTls { authority: self.ca.clone(), identity: self.client.clone(), name: None };
        let names = if self.accepts_any_name { Names::Any } else { Names::Own };
        client.config_for(names).map_err(|error| error.to_string())
    }
}
