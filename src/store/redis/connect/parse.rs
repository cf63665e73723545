//! Parses addresses: every form of REDIS_URL in use.
//!
//! envoyproxy/ratelimit accepts `host:port`, socket paths and `redis://` URLs, and Redis' own tools
//! a few more; no available crate parses them all. Errors describe the text and never quote it:
//! half of a broken URL may be half of a password.

use std::net::Ipv6Addr;
use std::path::PathBuf;

use bb8_redis::redis::{ConnectionAddr, RedisConnectionInfo};
use percent_encoding::percent_decode_str;

use crate::store::redis::connect::address::Address;

/// The default port of a server.
pub const SERVER_PORT: u16 = 6379;
/// That of a sentinel.
pub(crate) const SENTINEL_PORT: u16 = 26379;

/// A parsed address.
#[derive(Debug, Clone)]
pub struct ParsedAddress {
    /// The address.
    pub address: Address,
    /// Why part of the text has no effect.
    pub(crate) warning: Option<&'static str>,
}

/// The rest of a sentence that begins with the name of the setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Several servers.
    #[error("is a list of addresses")]
    List,
    /// Another URL scheme.
    #[error("has an unknown scheme; expected redis://, rediss:// (TLS), unix:///path or host:port")]
    Scheme,
    /// `@` after the host.
    #[error(
        "has an @ after its host; in a user or password write / as %2F, ? as %3F, # as %23 and @ as %40"
    )]
    Unescaped,
    /// `password@host:port`.
    #[error("has a user or password but no scheme; expected redis://user:password@host:port")]
    NoScheme,
    /// Percent-encoding of other bytes than text.
    #[error("has percent-encoding that is not UTF-8")]
    Encoding,
    /// No host.
    #[error("has no host; expected host:port, such as 10.0.0.5:6379")]
    NoHost,
    /// Other characters than those of host names.
    #[error("has invalid characters in its host; expected host:port, such as 10.0.0.5:6379")]
    Host,
    /// Brackets around something else.
    #[error("has no IPv6 address between its brackets; expected [::1]:6379")]
    Brackets,
    /// `2001:db8::1:6379`.
    #[error("is an ambiguous IPv6 address; expected [::1]:6379, or [::1] for the default port")]
    Ambiguous,
    /// Not a port.
    #[error("has a port that is not from 1 to 65535; expected host:port, such as 10.0.0.5:6379")]
    Port,
    /// Not a number.
    #[error(
        "has a database that is not a whole number; expected a URL such as redis://10.0.0.5:6379/3"
    )]
    Database,
    /// Not an absolute path.
    #[error("has no absolute path of a socket; expected unix:///run/redis/redis.sock")]
    Path,
}

/// Parts of a URL besides the endpoint.
#[derive(Default)]
struct UrlParts {
    user: Option<String>,
    password: Option<String>,
    database: Option<String>,
    has_unknown: bool,
}

/// Parses the address of a server or a sentinel.
///
/// `/…`, `unix:` and `redis+unix:` are sockets, `rediss:` is TLS, and the rest is TCP.
///
/// # Errors
/// See [`AddressError`].
pub fn address(port_default: u16, text: &str) -> Result<ParsedAddress, AddressError> {
    // Values from files end with a line break.
    let text = text.trim();
    if text.starts_with('/') {
        return UrlParts::default().at(ConnectionAddr::Unix(text.into()));
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        return match text.strip_prefix("unix:") {
            Some(rest) => socket(rest),
            None if text.contains('@') => Err(AddressError::NoScheme),
            None => {
                let (host, port) = host_and_port(port_default, text)?;
                UrlParts::default().at(ConnectionAddr::Tcp(host, port))
            }
        };
    };
    match scheme.to_ascii_lowercase().as_str() {
        "redis" | "valkey" => tcp(port_default, rest, ConnectionAddr::Tcp),
        "rediss" | "valkeys" => tcp(port_default, rest, |host, port| ConnectionAddr::TcpTls {
            host,
            port,
            insecure: false,
            tls_params: None,
        }),
        "unix" | "redis+unix" | "valkey+unix" => socket(rest),
        // `host:1,redis://…`
        _ if scheme.contains(',') => Err(AddressError::List),
        _ => Err(AddressError::Scheme),
    }
}

impl UrlParts {
    /// Parses `user:password` before the host and what follows the host. Values before the host and
    /// in the path win over those of the query, as in envoyproxy/ratelimit.
    fn parse(credentials: Option<&str>, rest: &str) -> Result<Self, AddressError> {
        let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut parts = Self { has_unknown: !fragment.is_empty(), ..Self::default() };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = Some(decoded(value)?).filter(|value| !value.is_empty());
            match key {
                "db" => parts.database = value,
                "username" | "user" => parts.user = value,
                "password" | "pass" => parts.password = value,
                _ => parts.has_unknown = true,
            }
        }
        if path.contains('@')
            || parts.has_unknown && (query.contains('@') || fragment.contains('@'))
        {
            return Err(AddressError::Unescaped);
        }
        if let Some(credentials) = credentials {
            let (user, password) = match credentials.split_once(':') {
                Some((user, password)) => (user, Some(password)),
                None => (credentials, None),
            };
            let user = Some(decoded(user)?).filter(|user| !user.is_empty());
            parts.user = user.or(parts.user);
            parts.password = password.map(decoded).transpose()?.or(parts.password);
        }
        let path = path.trim_matches('/');
        if !path.is_empty() {
            parts.database = Some(path.to_owned());
        }
        Ok(parts)
    }

    fn at(self, addr: ConnectionAddr) -> Result<ParsedAddress, AddressError> {
        let mut settings = RedisConnectionInfo::default();
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
        Ok(ParsedAddress {
            address: Address::new(addr, settings),
            warning: self
                .has_unknown
                .then_some("after ? and #, only db, username and password have an effect"),
        })
    }
}

/// Parses what follows `redis://`.
fn tcp(
    port_default: u16,
    rest: &str,
    addr: impl Fn(String, u16) -> ConnectionAddr,
) -> Result<ParsedAddress, AddressError> {
    let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (credentials, endpoint) = authority
        .rsplit_once('@')
        .map_or((None, authority), |(before, after)| (Some(before), after));
    let (host, port) = match host_and_port(port_default, endpoint) {
        // The beginning of a password was taken for the endpoint.
        Err(error) if error != AddressError::List && rest.contains('@') => {
            return Err(AddressError::Unescaped);
        }
        endpoint => endpoint?,
    };
    UrlParts::parse(credentials, rest)?.at(addr(host, port))
}

/// Parses what follows `unix://` or `unix:`.
fn socket(rest: &str) -> Result<ParsedAddress, AddressError> {
    let (path, rest) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
    let path = PathBuf::from(decoded(path)?);
    if !path.is_absolute() {
        return Err(AddressError::Path);
    }
    UrlParts::parse(None, rest)?.at(ConnectionAddr::Unix(path))
}

fn host_and_port(port_default: u16, text: &str) -> Result<(String, u16), AddressError> {
    if text.contains(',') {
        return Err(AddressError::List);
    }
    let is_ipv6 = |text: &str| text.parse::<Ipv6Addr>().is_ok();
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or(AddressError::Brackets)?;
        // `fe80::1%eth0` has a zone.
        if !is_ipv6(host.split('%').next().unwrap_or_default()) {
            return Err(AddressError::Brackets);
        }
        return match rest.strip_prefix(':') {
            Some(port) => Ok((host.to_owned(), port_number(port)?)),
            None if rest.is_empty() => Ok((host.to_owned(), port_default)),
            None => Err(AddressError::Port),
        };
    }
    if is_ipv6(text) {
        return match text.rsplit_once(':') {
            Some((host, port)) if is_ipv6(host) && port_number(port).is_ok() => {
                Err(AddressError::Ambiguous)
            }
            _ => Ok((text.to_owned(), port_default)),
        };
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, port_number(port)?),
        None => (text, port_default),
    };
    let is_valid = |char: char| char.is_ascii_alphanumeric() || "-._".contains(char);
    if host.is_empty() {
        Err(AddressError::NoHost)
    } else if !host.chars().all(is_valid) {
        Err(AddressError::Host)
    } else {
        Ok((host.to_owned(), port))
    }
}

fn port_number(text: &str) -> Result<u16, AddressError> {
    let port = text.parse().ok().filter(|port| *port > 0);
    port.ok_or(AddressError::Port)
}

fn decoded(text: &str) -> Result<String, AddressError> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| AddressError::Encoding)
}

#[cfg(test)]
mod tests;
