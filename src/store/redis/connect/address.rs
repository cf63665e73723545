//! The address of one Redis server or sentinel, with its credentials and certificates.

use std::fmt;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{
    ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo as _, RedisConnectionInfo,
    RedisError,
};

use crate::settings::parse::Secret;
use crate::store::redis::connect::credentials::Reloadable;
use crate::store::redis::connect::tls::TlsClient;

/// The time of silence before the first keepalive probe: that of envoyproxy/ratelimit's driver.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(10);
/// With this interval and number of probes, a dead peer is noticed within 25 s without any calls.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_TRIES: u32 = 3;

/// Displayed without credentials. Clones share credentials and certificates, also reloaded ones.
#[derive(Clone)]
pub struct Address {
    /// As configured; `auth` and `tls` take precedence.
    info: ConnectionInfo,
    pub(crate) auth: Option<Reloadable<Secret>>,
    /// Not for a Unix socket.
    pub(crate) tls: Option<Reloadable<TlsClient>>,
    /// The setting that has this address or the addresses of its sentinels.
    pub(crate) url_setting: String,
    /// The setting that has the credentials, or names their file.
    pub(crate) auth_setting: String,
}

impl Address {
    pub(crate) fn new(addr: ConnectionAddr, settings: RedisConnectionInfo) -> Self {
        let info = addr
            .into_connection_info()
            .expect("the conversion of an address cannot fail")
            .set_redis_settings(settings);
        Self {
            info,
            auth: None,
            tls: None,
            url_setting: "REDIS_URL".to_owned(),
            auth_setting: "REDIS_AUTH".to_owned(),
        }
    }

    /// An address whose endpoint follows with [`at`](Self::at), without credentials.
    pub fn unresolved() -> Self {
        Self::new(
            ConnectionAddr::Tcp(String::new(), 0),
            RedisConnectionInfo::default(),
        )
    }

    /// Authenticates with `password` or `user:password`; each part takes precedence over that of
    /// the URL, as in envoyproxy/ratelimit.
    #[must_use]
    pub fn with_credentials(self, auth: Reloadable<Secret>) -> Self {
        Self {
            auth: Some(auth),
            ..self
        }
    }

    /// Another server with the same credentials.
    #[must_use]
    pub fn at(&self, host: &str, port: u16) -> Self {
        let host = host.to_owned();
        let addr = match self.info.addr() {
            ConnectionAddr::TcpTls { insecure, .. } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: None,
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        Self {
            info: self.info.clone().set_addr(addr),
            ..self.clone()
        }
    }

    /// `None` for a socket.
    pub(crate) fn host(&self) -> Option<&str> {
        self.endpoint().map(|(host, _)| host)
    }

    /// Host and port; `None` for a socket.
    pub fn endpoint(&self) -> Option<(&str, u16)> {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Some((host, *port))
            }
            _ => None,
        }
    }

    /// The parameters of a new connection, with the current credentials and certificates. Not to be
    /// kept.
    pub fn connection_info(&self) -> ConnectionInfo {
        let keepalive = TcpKeepalive::new()
            .with_time(KEEPALIVE_AFTER)
            .with_interval(KEEPALIVE_INTERVAL)
            .with_retries(KEEPALIVE_TRIES);
        let tcp = TcpSettings::default()
            .set_nodelay(true)
            .set_keepalive(keepalive);
        // RESP2, which all servers with this protocol speak; RESP3 has no advantage here.
        let mut settings = self
            .redis_settings()
            .set_lib_name("tollgate", env!("CARGO_PKG_VERSION"));
        if self.has_only_user() {
            // As envoyproxy/ratelimit's driver does: there are users with `nopass`.
            settings = settings.set_password("");
        }
        let addr = match (&self.tls, self.endpoint()) {
            (Some(tls), Some(endpoint)) => tls.load().at(endpoint),
            _ => self.info.addr().clone(),
        };
        let info = self.info.clone().set_addr(addr);
        info.set_redis_settings(settings).set_tcp_settings(tcp)
    }

    fn redis_settings(&self) -> RedisConnectionInfo {
        let mut settings = self.info.redis_settings().clone();
        let Some(auth) = self.auth.as_ref().map(Reloadable::load) else {
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
        let (url, auth) = (&self.url_setting, &self.auth_setting);
        if error.kind() == ErrorKind::AuthenticationFailed {
            return format!(
                "{self} rejects the user or password (WRONGPASS), or has none; check {auth} and {url}"
            );
        }
        match error.code() {
            Some("NOAUTH") => format!("{self} requires a password (NOAUTH); set {auth}"),
            _ => format!("{self}: {error}"),
        }
    }

    pub(crate) fn is_socket(&self) -> bool {
        matches!(self.info.addr(), ConnectionAddr::Unix(_))
    }

    /// Whether there is a user and no password.
    pub(crate) fn has_only_user(&self) -> bool {
        let settings = self.redis_settings();
        settings.username().is_some() && settings.password().is_none()
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.tls.is_some() || matches!(self.info.addr(), ConnectionAddr::TcpTls { .. })
    }

    pub(crate) fn database(&self) -> i64 {
        self.info.redis_settings().db()
    }

    /// Whether the URL has credentials, and others than that of `other`.
    pub(crate) fn contradicts(&self, other: &Self) -> bool {
        let (own, other) = (self.info.redis_settings(), other.info.redis_settings());
        let own = (own.username(), own.password());
        own != (None, None) && own != (other.username(), other.password())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls() { "rediss" } else { "redis" };
        let mut database_prefix = "/";
        match (self.info.addr(), self.endpoint()) {
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
