//! The address of one Redis server or sentinel, with its credentials and certificates.

use std::fmt;
use std::sync::Arc;

use bb8_redis::redis::{ConnectionAddr, ErrorKind, RedisConnectionInfo, RedisError};
use rustls::ClientConfig;

use crate::base::parse::Secret;
use crate::base::text::prefix;
use crate::store::redis::connect::credentials::Reloadable;
use crate::store::redis::connect::tls::Tls;

/// Bytes of an error of Redis that are kept and logged. Its own texts have less than 200.
const ERROR_BYTES_MAX: usize = 512;

/// Displayed without credentials. Clones share credentials and certificates, also reloaded ones.
#[derive(Clone)]
pub struct Address {
    pub(crate) addr: ConnectionAddr,
    settings: RedisConnectionInfo,
    /// `password` or `user:password`; each part takes precedence over that of the URL, as in
    /// envoyproxy/ratelimit.
    pub auth: Option<Reloadable<Secret>>,
    /// Not for a Unix socket.
    pub(crate) tls: Option<Reloadable<ClientConfig>>,
    /// The setting that has this address or the addresses of its sentinels.
    pub(crate) url_setting: String,
    /// The setting that has the credentials, or names their file.
    pub(crate) auth_setting: String,
}

impl Address {
    pub(crate) fn new(addr: ConnectionAddr, settings: RedisConnectionInfo) -> Self {
        Self {
            addr,
            settings,
            auth: None,
            tls: None,
            url_setting: "REDIS_URL".to_owned(),
            auth_setting: "REDIS_AUTH".to_owned(),
        }
    }

    /// An address whose endpoint follows with [`at`](Self::at), without credentials.
    pub fn unresolved() -> Self {
        Self::new(ConnectionAddr::Tcp(String::new(), 0), RedisConnectionInfo::default())
    }

    /// Another server with the same credentials.
    #[must_use]
    pub fn at(&self, host: &str, port: u16) -> Self {
        let host = host.to_owned();
        let addr = match self.addr {
            ConnectionAddr::TcpTls { insecure, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure, tls_params: None }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        Self { addr, ..self.clone() }
    }

    /// Host and port; `None` for a socket.
    pub fn endpoint(&self) -> Option<(&str, u16)> {
        match &self.addr {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Some((host, *port))
            }
            _ => None,
        }
    }

    /// TLS of a new connection, with the current certificates; `None` without TLS.
    ///
    /// # Errors
    /// The authorities of the system cannot be used.
    pub(crate) fn tls_config(&self) -> Result<Option<Arc<ClientConfig>>, String> {
        match &self.tls {
            Some(tls) => Ok(Some(tls.load_full())),
            None if self.is_tls() => Ok(Some(Arc::new(Tls::default().load()?))),
            None => Ok(None),
        }
    }

    /// The start of a new connection: the current credentials and the database, without CLIENT
    /// SETINFO, at which a proxy may close the connection. Not to be kept.
    pub fn session(&self) -> RedisConnectionInfo {
        // RESP2, which all servers with this protocol speak; RESP3 has no advantage here.
        let settings = self.redis_settings().set_skip_set_lib_name();
        if self.has_only_user() {
            // As envoyproxy/ratelimit's driver does: there are users with `nopass`.
            settings.set_password("")
        } else {
            settings
        }
    }

    fn redis_settings(&self) -> RedisConnectionInfo {
        let mut settings = self.settings.clone();
        let Some(auth) = self.auth.as_ref().map(|auth| auth.load()) else {
            return settings;
        };
        let (user, password) = auth.reveal().split_once(':').unwrap_or(("", auth.reveal()));
        if !user.is_empty() {
            settings = settings.set_username(user);
        }
        if !password.is_empty() {
            settings = settings.set_password(password);
        }
        settings
    }

    /// An error of a connection, for the log: with the address and the settings to check.
    pub fn explain(&self, error: &RedisError) -> String {
        let url = &self.url_setting;
        let auth = &self.auth_setting;
        if error.kind() == ErrorKind::AuthenticationFailed {
            return format!(
                "{self} rejects the user or password (WRONGPASS), or has none; check {auth} and {url}"
            );
        }
        match error.code() {
            Some("NOAUTH") => format!("{self} requires a password (NOAUTH); set {auth}"),
            None if error.is_connection_refusal() => {
                format!("{self}: {error}; check that it runs, and {url}")
            }
            // In Redis' own words.
            Some(code) => {
                let text = format!("{code} {}", error.detail().unwrap_or_default());
                format!("{self}: {}", short(&text))
            }
            None => format!("{self}: {}", short(&error.to_string())),
        }
    }

    pub(crate) fn is_socket(&self) -> bool {
        matches!(self.addr, ConnectionAddr::Unix(_))
    }

    /// Whether there is a user and no password.
    pub(crate) fn has_only_user(&self) -> bool {
        let settings = self.redis_settings();
        settings.username().is_some() && settings.password().is_none()
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.tls.is_some() || matches!(self.addr, ConnectionAddr::TcpTls { .. })
    }

    pub(crate) fn database(&self) -> i64 {
        self.settings.db()
    }

    /// Whether the URL has credentials, and others than that of `other`.
    pub(crate) fn contradicts(&self, other: &Self) -> bool {
        let own = &self.settings;
        let other = &other.settings;
        let own = (own.username(), own.password());
        own != (None, None) && own != (other.username(), other.password())
    }
}

/// The part of an error of Redis that is kept.
pub(crate) fn short(error: &str) -> &str {
    prefix(error, ERROR_BYTES_MAX)
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls() { "rediss" } else { "redis" };
        let mut database_prefix = "/";
        match (&self.addr, self.endpoint()) {
            (ConnectionAddr::Unix(path), _) => {
                database_prefix = "?db=";
                write!(formatter, "unix://{}", path.display())?;
            }
            (_, Some((host, port))) if host.contains(':') => {
                write!(formatter, "{scheme}://[{host}]:{port}")?;
            }
            (_, Some((host, port))) => write!(formatter, "{scheme}://{host}:{port}")?,
            // The enum is non-exhaustive.
            (other, None) => write!(formatter, "{other}")?,
        }
        match self.database() {
            0 => Ok(()),
            database => write!(formatter, "{database_prefix}{database}"),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self}")
    }
}
