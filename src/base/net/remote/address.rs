//! Addresses of gRPC servers, in the forms that gRPC clients take.

use std::fmt;
use std::path::PathBuf;

/// gRPC's default.
const PORT_DEFAULT: u16 = 443;

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A name or an IP address, without the brackets of IPv6, and a port.
    Tcp {
        /// Resolved for each connection.
        host: String,
        /// The port.
        port: u16,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

impl Address {
    /// Parses `host:port`, `dns:///host:port`, `unix:/path` and similar forms.
    ///
    /// # Errors
    /// The text has another form; the error says what to write.
    pub fn read(text: &str) -> Result<Self, String> {
        const WANTED: &str = "write host:port, dns:///host:port or unix:/path";
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.starts_with('/') {
                Ok(Self::Unix(path.into()))
            } else {
                Err(format!("not an absolute path; {WANTED}"))
            };
        }
        let target = ["dns:///", "passthrough:///", "dns:", "ipv4:", "ipv6:"]
            .into_iter()
            .find_map(|scheme| text.strip_prefix(scheme));
        let target = target.unwrap_or(text);
        if target.contains(['/', ',', ' ', '@']) {
            return Err(format!("not the address of one server; {WANTED}"));
        }
        let (host, port) =
            split(target).ok_or_else(|| format!("an IPv6 address needs brackets; {WANTED}"))?;
        let port = match port {
            Some(port) => port
                .parse()
                .ok()
                .filter(|port| *port > 0)
                .ok_or_else(|| format!("not a port from 1 to 65535; {WANTED}"))?,
            None => PORT_DEFAULT,
        };
        // As in Go, a port without a host is on this machine.
        let host = if host.is_empty() { "localhost" } else { host };
        Ok(Self::Tcp { host: host.to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(formatter, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(formatter, "{host}:{port}"),
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

/// The host, without brackets, and the port if there is one; `None` if a colon is ambiguous.
fn split(target: &str) -> Option<(&str, Option<&str>)> {
    if let Some((host, rest)) = target.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return if rest.is_empty() {
            Some((host, None))
        } else {
            Some((host, Some(rest.strip_prefix(':')?)))
        };
    }
    match target.split_once(':') {
        Some((_, port)) if port.contains(':') => None,
        Some((host, port)) => Some((host, Some(port))),
        None => Some((target, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_the_forms_of_grpc() {
        let read = |text: &str| Address::read(text).map(|address| address.to_string());
        for (text, address) in [
            ("envoy-gateway:18001", "envoy-gateway:18001"),
            ("dns:///envoy-gateway:18001", "envoy-gateway:18001"),
            ("dns:envoy-gateway:18001", "envoy-gateway:18001"),
            ("passthrough:///127.0.0.1:18001", "127.0.0.1:18001"),
            ("[::1]:18001", "[::1]:18001"),
            ("[::1]", "[::1]:443"),
            ("control-plane", "control-plane:443"),
            (":18001", "localhost:18001"),
            ("unix:/run/xds.sock", "unix:/run/xds.sock"),
            ("unix:///run/xds.sock", "unix:/run/xds.sock"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(address), "{text}");
        }
        for text in [
            "http://host:1",
            "dns://8.8.8.8/host:1",
            "host:port",
            "host:0",
            "host:70000",
            "::1",
            "a:1,b:2",
            "unix:xds.sock",
        ] {
            let refused = read(text).expect_err(text);
            assert!(
                refused.ends_with("write host:port, dns:///host:port or unix:/path"),
                "{refused}"
            );
        }
    }
}
