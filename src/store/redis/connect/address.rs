//! Where one Redis server or sentinel is, and how to be let in: every form of REDIS_URL that is out
//! there, and REDIS_AUTH.
//!
//! The reference takes `host:port`, the path of a socket and `redis://` URLs, and Redis' own tools
//! a few more; none of the crates at hand reads them all. Whatever is wrong with an address is told
//! in words about it, and never by quoting it: half of a broken URL may be half of a password.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{
    ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo as _, RedisConnectionInfo,
    RedisError,
};

use crate::settings::parse::Secret;
use crate::store::redis::connect::credentials::Reloadable;
use crate::store::redis::connect::tls::TlsClient;

/// Where Redis listens unless it is told otherwise.
const PORT_DEFAULT: u16 = 6379;
/// Where a sentinel does.
const SENTINEL_PORT_DEFAULT: u16 = 26379;
/// How long a connection is silent before it is asked whether it still is one: what the reference's
/// driver does.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(10);
/// How often it is asked again, and how often in vain: a peer that is gone is noticed within half a
/// minute, calls or no calls.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_TRIES: u32 = 3;

/// One Redis server: where it is, and how to be let in. Shown without credentials.
///
/// Clones know the same credentials and certificates, also when these are exchanged.
#[derive(Clone)]
pub struct Address {
    /// As it was written; `auth` and `tls` win over it.
    info: ConnectionInfo,
    auth: Option<Reloadable<Secret>>,
    tls: Option<Reloadable<TlsClient>>,
    settings: AddressSettings,
}

/// The settings that an operator can mend an address by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressSettings {
    /// Which has the address.
    pub url: &'static str,
    /// Which has user and password, or names a file with them.
    pub auth: &'static str,
}

/// What listens at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerKind {
    /// A server of Redis, on port 6379 if no other is said.
    Server,
    /// A sentinel, on port 26379 if no other is said.
    Sentinel,
}

/// An address as it was read, and what of it has no effect.
#[derive(Debug, Clone)]
pub struct ParsedAddress {
    /// The address.
    pub address: Address,
    /// Whole sentences.
    pub warnings: Vec<&'static str>,
}

/// What is wrong with an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Several servers.
    #[error("is a list of addresses")]
    List,
    /// A scheme of something else.
    #[error(
        "has a scheme that is not Redis'; write redis://, rediss:// (with TLS), unix:///path or host:port"
    )]
    Scheme,
    /// `@` where no URL has one.
    #[error(
        "has an @ behind its host; in a user or a password write / as %2F, ? as %3F, # as %23 and @ as %40"
    )]
    Unescaped,
    /// `password@host:port`.
    #[error("has a user or a password, and no scheme; write redis://user:password@host:port")]
    NoScheme,
    /// Percent-encoding that is no text.
    #[error("is not UTF-8 where it is percent-encoded")]
    Encoding,
    /// No host.
    #[error("has no host; write host:port, such as 10.0.0.5:6379")]
    NoHost,
    /// Letters that no host has.
    #[error("has a host with letters that no host has; write host:port, such as 10.0.0.5:6379")]
    Host,
    /// `[` and something else than an address of IPv6.
    #[error("has no address of IPv6 between its brackets; write [::1]:6379")]
    Brackets,
    /// `2001:db8::1:6379`.
    #[error(
        "can be read as an address of IPv6 with and without a port; write [::1]:6379, or [::1] for the usual port"
    )]
    Ambiguous,
    /// No such port.
    #[error("has a port that is no number from 1 to 65535; write host:port, such as 10.0.0.5:6379")]
    Port,
    /// No such database.
    #[error(
        "has a database that is no whole number; write its number behind the host, such as redis://10.0.0.5:6379/3"
    )]
    Database,
    /// A socket elsewhere than at an absolute path.
    #[error("has no absolute path of a socket; write unix:///run/redis/redis.sock")]
    Path,
}

/// Whether a URL asks for TLS.
#[derive(Clone, Copy)]
enum Security {
    Plain,
    Tls,
}

/// What a URL says besides the place.
#[derive(Default)]
struct UrlParts {
    user: Option<String>,
    password: Option<String>,
    database: Option<String>,
    /// Something behind `?` or `#` that is none of these.
    has_more: bool,
}

impl Address {
    /// Reads the address of a server, as REDIS_URL has it.
    ///
    /// What begins with `/`, `unix:` or `redis+unix:` is a socket, `rediss:` is TLS, and anything
    /// else is TCP.
    ///
    /// # Errors
    /// What is wrong with it, never quoting it.
    pub fn parse(text: &str) -> Result<ParsedAddress, AddressError> {
        Self::parse_as(ServerKind::Server, text)
    }

    /// Reads the address of a server or a sentinel.
    ///
    /// # Errors
    /// What is wrong with it, never quoting it.
    pub fn parse_as(kind: ServerKind, text: &str) -> Result<ParsedAddress, AddressError> {
        // CredentialFiles are kept in files, and files end with a line break.
        let text = text.trim();
        if text.starts_with('/') {
            return Ok(ParsedAddress::new(
                ConnectionAddr::Unix(text.into()),
                RedisConnectionInfo::default(),
            ));
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return match text.strip_prefix("unix:") {
                Some(rest) => socket(rest),
                None => place_alone(kind, text),
            };
        };
        match scheme.to_ascii_lowercase().as_str() {
            "redis" | "valkey" => server(kind, rest, Security::Plain),
            "rediss" | "valkeys" => server(kind, rest, Security::Tls),
            "unix" | "redis+unix" | "valkey+unix" => socket(rest),
            // `host:1,redis://…`
            _ if scheme.contains(',') => Err(AddressError::List),
            _ => Err(AddressError::Scheme),
        }
    }

    /// A server whose place is told later, by [`at`](Self::at), and that nobody has to be let into
    /// so far.
    pub fn unresolved() -> Self {
        ParsedAddress::new(
            ConnectionAddr::Tcp(String::new(), 0),
            RedisConnectionInfo::default(),
        )
        .address
    }

    /// The same server, entered with REDIS_AUTH: a password, or a user and a password with a colon
    /// between them. Either of the two wins over the URL's, as it does in the reference.
    #[must_use]
    pub fn with_credentials(self, auth: Reloadable<Secret>) -> Self {
        Self {
            auth: Some(auth),
            ..self
        }
    }

    /// The same server, reached by TLS. It changes nothing about a Unix socket, which has none.
    #[must_use]
    pub fn with_tls(self, tls: Reloadable<TlsClient>) -> Self {
        if self.is_socket() {
            self
        } else {
            Self {
                tls: Some(tls),
                ..self
            }
        }
    }

    /// The same server, with the settings that say where it is and how to be let in.
    #[must_use]
    pub fn with_settings(self, settings: AddressSettings) -> Self {
        Self { settings, ..self }
    }

    /// Another server that one is let into in the same way.
    #[must_use]
    pub fn at(&self, host: &str, port: u16) -> Self {
        let addr = match self.info.addr() {
            ConnectionAddr::TcpTls { insecure, .. } => ConnectionAddr::TcpTls {
                host: host.to_owned(),
                port,
                insecure: *insecure,
                tls_params: None,
            },
            _ => ConnectionAddr::Tcp(host.to_owned(), port),
        };
        Self {
            info: self.info.clone().set_addr(addr),
            ..self.clone()
        }
    }

    /// Its host, unless it is a socket.
    pub fn host(&self) -> Option<&str> {
        self.endpoint().map(|(host, _)| host)
    }

    /// What a connection is made from, with the credentials and certificates of this moment: ask
    /// again for the next one.
    pub fn connection_info(&self) -> ConnectionInfo {
        let info = self.info.clone();
        let keepalive = TcpKeepalive::new()
            .with_time(KEEPALIVE_AFTER)
            .with_interval(KEEPALIVE_INTERVAL)
            .with_retries(KEEPALIVE_TRIES);
        let tcp = TcpSettings::default()
            .set_nodelay(true)
            .set_keepalive(keepalive);
        // RESP2, which everything speaks that calls itself Redis; nothing here is better in RESP3.
        let mut settings = self
            .settings()
            .set_lib_name("tollgate", env!("CARGO_PKG_VERSION"));
        if has_user_alone(&settings) {
            // The reference's driver does the same: there are users with `nopass`.
            settings = settings.set_password("");
        }
        let addr = match (&self.tls, self.endpoint()) {
            (Some(tls), Some(place)) => tls.load().at(place),
            _ => info.addr().clone(),
        };
        info.set_addr(addr)
            .set_redis_settings(settings)
            .set_tcp_settings(tcp)
    }

    /// What is said at the beginning of a connection.
    fn settings(&self) -> RedisConnectionInfo {
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

    /// Host and port; `None` for a socket.
    pub fn endpoint(&self) -> Option<(&str, u16)> {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Some((host, *port))
            }
            _ => None,
        }
    }

    /// Why it cannot be connected to, for the log: what the client's words leave out, and what to
    /// look at.
    pub fn explain(&self, error: &RedisError) -> String {
        let AddressSettings { url, auth } = self.settings;
        if error.kind() == ErrorKind::AuthenticationFailed {
            return format!(
                "{self} refuses the user or the password (WRONGPASS), or has none; see {auth} and {url}"
            );
        }
        match error.code() {
            Some("NOAUTH") => format!("{self} wants a password (NOAUTH); set {auth}"),
            _ => format!("{self}: {error}"),
        }
    }

    /// The setting that says where it is, or where one is asked for its place.
    pub fn url_setting(&self) -> &'static str {
        self.settings.url
    }

    /// Whether it is a Unix socket.
    pub fn is_socket(&self) -> bool {
        matches!(self.info.addr(), ConnectionAddr::Unix(_))
    }

    /// Whether there is a user, and no password.
    pub fn has_user_alone(&self) -> bool {
        has_user_alone(&self.settings())
    }

    /// Whether it is reached by TLS.
    pub fn is_tls(&self) -> bool {
        self.tls.is_some() || matches!(self.info.addr(), ConnectionAddr::TcpTls { .. })
    }

    /// Its database; 0 unless another is said.
    pub fn database(&self) -> i64 {
        self.info.redis_settings().db()
    }

    /// Whether the URL has a user or a password, and another one than this one's.
    pub fn contradicts(&self, other: &Self) -> bool {
        let credentials = |address: &Self| {
            let settings = address.info.redis_settings();
            (
                settings.username().map(str::to_owned),
                settings.password().map(str::to_owned),
            )
        };
        credentials(self) != (None, None) && credentials(self) != credentials(other)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let database = self.database();
        match (self.info.addr(), self.endpoint()) {
            (ConnectionAddr::Unix(path), _) => {
                write!(formatter, "unix://{}", path.display())?;
                return if database == 0 {
                    Ok(())
                } else {
                    write!(formatter, "?db={database}")
                };
            }
            (_, Some((host, port))) => write_place(
                formatter,
                if self.is_tls() { "rediss" } else { "redis" },
                host,
                port,
            )?,
            // The enum may grow; this is how the crate shows what it knows.
            (other, None) => write!(formatter, "{other}")?,
        }
        if database == 0 {
            Ok(())
        } else {
            write!(formatter, "/{database}")
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self}")
    }
}

impl AddressSettings {
    /// The one Redis, if there is no other.
    pub const MAIN: Self = Self {
        url: "REDIS_URL",
        auth: "REDIS_AUTH",
    };
}

impl ServerKind {
    const fn port(self) -> u16 {
        match self {
            Self::Server => PORT_DEFAULT,
            Self::Sentinel => SENTINEL_PORT_DEFAULT,
        }
    }
}

impl ParsedAddress {
    fn new(place: ConnectionAddr, settings: RedisConnectionInfo) -> Self {
        let info = place
            .into_connection_info()
            .expect("a place is all it needs")
            .set_redis_settings(settings);
        Self {
            address: Address {
                info,
                auth: None,
                tls: None,
                settings: AddressSettings::MAIN,
            },
            warnings: Vec::new(),
        }
    }
}

impl UrlParts {
    /// Reads what stands before the host, as `user:password`, and behind it. What is set there
    /// twice is taken from where most would look for it, as in the reference: before the host,
    /// and in the path.
    fn read(credentials: Option<&str>, behind: &str) -> Result<Self, AddressError> {
        let (behind, fragment) = behind.split_once('#').unwrap_or((behind, ""));
        let (path, query) = behind.split_once('?').unwrap_or((behind, ""));
        let mut parts = Self {
            has_more: !fragment.is_empty(),
            ..Self::default()
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = Some(decoded(value)?).filter(|value| !value.is_empty());
            match key {
                "db" => parts.database = value,
                "username" | "user" => parts.user = value,
                "password" | "pass" => parts.password = value,
                _ => parts.has_more = true,
            }
        }
        if path.contains('@') || parts.has_more && (query.contains('@') || fragment.contains('@')) {
            return Err(AddressError::Unescaped);
        }
        if let Some(credentials) = credentials {
            let (user, password) = credentials
                .split_once(':')
                .map_or((credentials, None), |(user, password)| {
                    (user, Some(password))
                });
            parts.user = Some(decoded(user)?)
                .filter(|user| !user.is_empty())
                .or(parts.user);
            parts.password = password.map(decoded).transpose()?.or(parts.password);
        }
        let path = path.trim_matches('/');
        if !path.is_empty() {
            parts.database = Some(path.to_owned());
        }
        Ok(parts)
    }

    fn into_parsed(self, place: ConnectionAddr) -> Result<ParsedAddress, AddressError> {
        let mut settings = RedisConnectionInfo::default();
        let mut warnings = Vec::new();
        if let Some(database) = &self.database {
            let database: u32 = database.parse().map_err(|_| AddressError::Database)?;
            settings = settings.set_db(database.into());
        }
        if let Some(user) = &self.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &self.password {
            settings = settings.set_password(password);
        }
        if self.has_more {
            warnings.push(
                "of what stands behind ? and #, only db, username and password have an effect",
            );
        }
        let mut parsed = ParsedAddress::new(place, settings);
        parsed.warnings = warnings;
        Ok(parsed)
    }
}

/// What follows `redis://`.
fn server(kind: ServerKind, rest: &str, security: Security) -> Result<ParsedAddress, AddressError> {
    let (authority, behind) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (credentials, place) = authority
        .rsplit_once('@')
        .map_or((None, authority), |(credentials, place)| {
            (Some(credentials), place)
        });
    let (host, port) = match host_and_port(kind, place) {
        // The first letters of a password were taken for the place.
        Err(error) if error != AddressError::List && behind.contains('@') => {
            return Err(AddressError::Unescaped);
        }
        place => place?,
    };
    UrlParts::read(credentials, behind)?.into_parsed(match security {
        Security::Plain => ConnectionAddr::Tcp(host, port),
        Security::Tls => ConnectionAddr::TcpTls {
            host,
            port,
            insecure: false,
            tls_params: None,
        },
    })
}

/// What follows `unix://`, or `unix:`: a path, and perhaps a query.
fn socket(rest: &str) -> Result<ParsedAddress, AddressError> {
    let (path, behind) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
    let path = PathBuf::from(decoded(path)?);
    if !path.is_absolute() {
        return Err(AddressError::Path);
    }
    UrlParts::read(None, behind)?.into_parsed(ConnectionAddr::Unix(path))
}

/// A host, perhaps with a port, and nothing else.
fn place_alone(kind: ServerKind, text: &str) -> Result<ParsedAddress, AddressError> {
    if text.contains('@') {
        return Err(AddressError::NoScheme);
    }
    let (host, port) = host_and_port(kind, text)?;
    Ok(ParsedAddress::new(
        ConnectionAddr::Tcp(host, port),
        RedisConnectionInfo::default(),
    ))
}

fn host_and_port(kind: ServerKind, place: &str) -> Result<(String, u16), AddressError> {
    if place.contains(',') {
        return Err(AddressError::List);
    }
    if let Some(rest) = place.strip_prefix('[') {
        let (host, behind) = rest.split_once(']').ok_or(AddressError::Brackets)?;
        // `fe80::1%eth0` is an address on one link.
        if !is_ipv6(host.split('%').next().unwrap_or_default()) {
            return Err(AddressError::Brackets);
        }
        return match behind.strip_prefix(':') {
            Some(port) => Ok((host.to_owned(), port_of(port)?)),
            None if behind.is_empty() => Ok((host.to_owned(), kind.port())),
            None => Err(AddressError::Port),
        };
    }
    if is_ipv6(place) {
        let is_ambiguous = place
            .rsplit_once(':')
            .is_some_and(|(host, port)| is_ipv6(host) && port_of(port).is_ok());
        return if is_ambiguous {
            Err(AddressError::Ambiguous)
        } else {
            Ok((place.to_owned(), kind.port()))
        };
    }
    let (host, port) = match place.rsplit_once(':') {
        Some((host, port)) => (host, port_of(port)?),
        None => (place, kind.port()),
    };
    if host.is_empty() {
        return Err(AddressError::NoHost);
    }
    if !host
        .chars()
        .all(|letter| letter.is_ascii_alphanumeric() || "-._".contains(letter))
    {
        return Err(AddressError::Host);
    }
    Ok((host.to_owned(), port))
}

fn has_user_alone(settings: &RedisConnectionInfo) -> bool {
    settings.username().is_some() && settings.password().is_none()
}

fn is_ipv6(text: &str) -> bool {
    text.parse::<Ipv6Addr>().is_ok()
}

fn port_of(text: &str) -> Result<u16, AddressError> {
    text.parse()
        .ok()
        .filter(|port| *port > 0)
        .ok_or(AddressError::Port)
}

fn decoded(text: &str) -> Result<String, AddressError> {
    percent_decode_str(text)
        .decode_utf8()
        .map(Into::into)
        .map_err(|_| AddressError::Encoding)
}

fn write_place(
    formatter: &mut fmt::Formatter<'_>,
    scheme: &str,
    host: &str,
    port: u16,
) -> fmt::Result {
    if host.contains(':') {
        write!(formatter, "{scheme}://[{host}]:{port}")
    } else {
        write!(formatter, "{scheme}://{host}:{port}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As REDIS_URL has it, how it is shown, and user and password.
    const GOOD: &[(&str, &str, Option<&str>, Option<&str>)] = &[
        ("redis:6379", "redis://redis:6379", None, None),
        ("redis", "redis://redis:6379", None, None),
        (
            "my_redis.cache-1.svc.cluster.local:7000",
            "redis://my_redis.cache-1.svc.cluster.local:7000",
            None,
            None,
        ),
        ("10.0.0.5:6379\n", "redis://10.0.0.5:6379", None, None),
        ("[::1]:7000", "redis://[::1]:7000", None, None),
        ("[fe80::1%eth0]", "redis://[fe80::1%eth0]:6379", None, None),
        ("::1", "redis://[::1]:6379", None, None),
        ("2001:db8::5", "redis://[2001:db8::5]:6379", None, None),
        (
            "/var/run/nutcracker/ratelimit.sock",
            "unix:///var/run/nutcracker/ratelimit.sock",
            None,
            None,
        ),
        ("unix:/run/redis.sock", "unix:///run/redis.sock", None, None),
        (
            "unix:///run/redis.sock",
            "unix:///run/redis.sock",
            None,
            None,
        ),
        (
            "redis+unix:///run/a%20b.sock?db=3",
            "unix:///run/a b.sock?db=3",
            None,
            None,
        ),
        (
            "unix:///run/redis.sock?user=app&pass=p%40ss",
            "unix:///run/redis.sock",
            Some("app"),
            Some("p@ss"),
        ),
        ("redis://10.0.0.5", "redis://10.0.0.5:6379", None, None),
        (
            "redis://10.0.0.5:6379/3",
            "redis://10.0.0.5:6379/3",
            None,
            None,
        ),
        (
            "REDIS://10.0.0.5:6379/",
            "redis://10.0.0.5:6379",
            None,
            None,
        ),
        ("redis://[::1]:7000/3", "redis://[::1]:7000/3", None, None),
        ("redis://h:1?db=4", "redis://h:1/4", None, None),
        ("redis://h:1/3?db=4", "redis://h:1/3", None, None),
        ("redis://:s3cret@h:1", "redis://h:1", None, Some("s3cret")),
        (
            "redis://app:s3cret@h:1/2",
            "redis://h:1/2",
            Some("app"),
            Some("s3cret"),
        ),
        ("redis://app@h:1", "redis://h:1", Some("app"), Some("")),
        (
            "redis://a%3Ap:%40%3A%2F%3F%23%25@h",
            "redis://h:6379",
            Some("a:p"),
            Some("@:/?#%"),
        ),
        (
            "redis://app:p@ss:word,1@h:1",
            "redis://h:1",
            Some("app"),
            Some("p@ss:word,1"),
        ),
        (
            "redis://h:1?username=app&password=p@ss",
            "redis://h:1",
            Some("app"),
            Some("p@ss"),
        ),
        (
            "redis://one:1st@h:1?username=two&password=2nd",
            "redis://h:1",
            Some("one"),
            Some("1st"),
        ),
        (
            "rediss://app:s3cret@h/3",
            "rediss://h:6379/3",
            Some("app"),
            Some("s3cret"),
        ),
        ("valkey://h:1", "redis://h:1", None, None),
    ];

    /// As REDIS_URL has it, and what is wrong.
    const BAD: &[(&str, AddressError)] = &[
        ("h1:6379,h2:6379", AddressError::List),
        ("mymaster,h1:26379,h2:26379", AddressError::List),
        ("redis://h1:6379,h2:6379", AddressError::List),
        (
            "redis://:s3cret@h1:6379,redis://:s3cret@h2:6379",
            AddressError::List,
        ),
        ("h1:6379,redis://:s3cret@h2:6379", AddressError::List),
        ("", AddressError::NoHost),
        (":6379", AddressError::NoHost),
        ("redis://", AddressError::NoHost),
        ("redis://:s3cret@", AddressError::NoHost),
        ("redis://:s3cret@:6379", AddressError::NoHost),
        ("h:", AddressError::Port),
        ("h:0", AddressError::Port),
        ("h:65536", AddressError::Port),
        ("h:s3cret", AddressError::Port),
        ("redis://app:s3cret", AddressError::Port),
        ("redis://:s3cret@h:6379x", AddressError::Port),
        ("[::1]6379", AddressError::Port),
        ("a b:1", AddressError::Host),
        ("ho$t:6379", AddressError::Host),
        ("./redis.sock", AddressError::Host),
        ("[::1", AddressError::Brackets),
        ("[h]:1", AddressError::Brackets),
        ("::1:6379", AddressError::Ambiguous),
        ("2001:db8::1:6379", AddressError::Ambiguous),
        ("http://h:1", AddressError::Scheme),
        ("tcp://10.0.0.5:6379", AddressError::Scheme),
        ("s3cret@h:6379", AddressError::NoScheme),
        ("app:s3cret@h:6379", AddressError::NoScheme),
        ("redis://h:6379/three", AddressError::Database),
        ("redis://h:6379/-1", AddressError::Database),
        ("redis://h:6379/1/2", AddressError::Database),
        ("redis://h:6379?db=s3cret", AddressError::Database),
        ("redis://:s3/cret@h:6379", AddressError::Unescaped),
        ("redis://:s3?cret@h:6379", AddressError::Unescaped),
        ("redis://:s3#cret@h:6379", AddressError::Unescaped),
        ("redis://app:123/s3cret@h:6379", AddressError::Unescaped),
        ("redis://app:123?s3cret@h:6379", AddressError::Unescaped),
        ("redis://app:123#s3cret@h:6379", AddressError::Unescaped),
        ("redis://:s3cret%ff@h:6379", AddressError::Encoding),
        ("unix://run/redis.sock", AddressError::Path),
        ("unix:", AddressError::Path),
    ];

    /// REDIS_URL, REDIS_AUTH, and the user and the password that are sent.
    const AUTH: &[(&str, &str, Option<&str>, Option<&str>)] = &[
        ("h:1", "s3cret", None, Some("s3cret")),
        ("h:1", "app:s3cret", Some("app"), Some("s3cret")),
        ("h:1", "app:s3:cr@et/", Some("app"), Some("s3:cr@et/")),
        ("h:1", ":s3:cret", None, Some("s3:cret")),
        ("h:1", "p%40ss", None, Some("p%40ss")),
        ("/run/redis.sock", "app:s3cret", Some("app"), Some("s3cret")),
        ("redis://one:1st@h:1", "two:2nd", Some("two"), Some("2nd")),
        ("redis://one:1st@h:1", "2nd", Some("one"), Some("2nd")),
        ("redis://one:1st@h:1", "two:", Some("two"), Some("1st")),
    ];

    fn parsed(url: &str) -> Address {
        Address::parse(url)
            .unwrap_or_else(|error| panic!("{url} {error}"))
            .address
    }

    #[test]
    fn every_form_of_an_address_is_understood() {
        for (url, shown, user, password) in GOOD {
            let address = parsed(url);
            let info = address.connection_info();
            assert_eq!(address.to_string(), *shown, "{url}");
            assert_eq!(
                (
                    info.redis_settings().username(),
                    info.redis_settings().password()
                ),
                (*user, *password),
                "{url}"
            );
        }
        assert_eq!(
            *parsed("[::1]:7000").connection_info().addr(),
            ConnectionAddr::Tcp("::1".to_owned(), 7000)
        );
        assert_eq!(
            *parsed("unix:///a%20b").connection_info().addr(),
            ConnectionAddr::Unix("/a b".into())
        );
        assert_eq!(
            parsed("redis://h:1/3")
                .connection_info()
                .redis_settings()
                .db(),
            3
        );
    }

    #[test]
    fn what_is_no_address_is_told_by_its_kind_and_never_quoted() {
        for (url, expected) in BAD {
            let error = Address::parse(url)
                .map(|parsed| parsed.address.to_string())
                .expect_err(url);
            assert_eq!(error, *expected, "{url}");
            assert!(
                !error.to_string().contains("s3") && !error.to_string().contains("cret"),
                "{url}: {error}"
            );
        }
    }

    #[test]
    fn redis_auth_wins_over_the_url_part_by_part() {
        for (url, auth, user, password) in AUTH {
            let address = parsed(url).with_credentials(Reloadable::new(Secret::new(*auth)));
            let info = address.connection_info();
            assert_eq!(
                (
                    info.redis_settings().username(),
                    info.redis_settings().password()
                ),
                (*user, *password),
                "{url} {auth}"
            );
        }
    }

    #[test]
    fn credentials_are_shown_nowhere() {
        for (url, _, user, password) in GOOD {
            let read = Address::parse(url).expect("it is good");
            let shown = format!("{read:?} {}", read.address);
            for secret in [user, password]
                .into_iter()
                .flatten()
                .filter(|secret| secret.len() > 1)
            {
                assert!(!shown.contains(secret), "{url}: {shown}");
            }
        }
    }

    #[test]
    fn what_a_url_says_in_vain_is_warned_about() {
        for url in [
            "redis://h:1?protocol=3",
            "rediss://h:1/#insecure",
            "redis://h:1?ssl=true&db=3",
        ] {
            assert_eq!(
                Address::parse(url).expect("it is good").warnings.len(),
                1,
                "{url}"
            );
        }
        for (url, ..) in GOOD {
            assert!(
                Address::parse(url).expect("it is good").warnings.is_empty(),
                "{url}"
            );
        }
    }
}
