//! A connection to a collector: TCP, with or without TLS.
//!
//! The files of TLS are read for each connection, so replaced certificates take effect.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use anyhow::Context as _;
use http::Uri;
use http::uri::Scheme;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::tls::{self, Identity, PemFile};

/// The address of a collector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// http or https, with a host.
    uri: Uri,
    port: u16,
}

/// TLS of the connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tls {
    /// The only trusted authority; `None` for those of the system.
    pub authority: Option<PemFile>,
    /// The client certificate.
    pub identity: Option<Identity>,
}

/// A byte stream for hyper.
pub type Connection = TokioIo<Pin<Box<dyn Duplex>>>;

/// A readable and writable stream.
pub trait Duplex: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}

impl Endpoint {
    /// Parses a URL without a user; the default port is that of the scheme.
    ///
    /// # Errors
    /// What is wrong with it, and what to write instead.
    pub fn read(text: &str) -> Result<Self, String> {
        let uri: Uri = text.parse().map_err(|error| format!("{error}; {WANTED}"))?;
        let port = match (uri.scheme_str(), uri.host()) {
            (Some("http"), Some(_)) => 80,
            (Some("https"), Some(_)) => 443,
            _ => return Err(WANTED.to_owned()),
        };
        if uri
            .authority()
            .is_some_and(|authority| authority.as_str().contains('@'))
        {
            return Err(format!(
                "{WANTED}, and credentials in OTEL_EXPORTER_OTLP_HEADERS"
            ));
        }
        let has_strange_port = uri.port_u16().is_none()
            && uri.authority().map(http::uri::Authority::as_str) != uri.host();
        if has_strange_port {
            return Err(WANTED.to_owned());
        }
        Ok(Self {
            port: uri.port_u16().unwrap_or(port),
            uri,
        })
    }

    /// This endpoint with `path` appended.
    #[must_use]
    pub fn below(&self, path: &'static str) -> Self {
        let whole = format!("{}{path}", self.uri.path().trim_end_matches('/'));
        let mut parts = self.uri.clone().into_parts();
        parts.path_and_query = Some(whole.parse().expect("a path with a suffix is a path"));
        Self {
            uri: Uri::from_parts(parts).expect("scheme and host are unchanged"),
            port: self.port,
        }
    }

    /// The whole URL.
    pub const fn uri(&self) -> &Uri {
        &self.uri
    }

    /// Whether it is https.
    pub fn is_encrypted(&self) -> bool {
        self.uri.scheme() == Some(&Scheme::HTTPS)
    }

    /// Connects; `protocol` is its ALPN name.
    ///
    /// # Errors
    /// Invalid files, or a collector that is unreachable or has an untrusted certificate.
    pub async fn connect(self, tls: Tls, protocol: &'static [u8]) -> anyhow::Result<Connection> {
        let host = self.uri.host().unwrap_or_default().trim_matches(['[', ']']);
        if !self.is_encrypted() {
            return Ok(TokioIo::new(Box::pin(open(host, self.port).await?)));
        }
        let mut config = tls::client(tls.authority.as_ref(), tls.identity.as_ref())?;
        config.alpn_protocols = vec![protocol.to_vec()];
        let name = ServerName::try_from(host.to_owned())
            .with_context(|| format!("{host} is not a name for a certificate"))?;
        let plain = open(host, self.port).await?;
        let encrypted = TlsConnector::from(Arc::new(config))
            .connect(name, plain)
            .await
            .context("TLS")?;
        Ok(TokioIo::new(Box::pin(encrypted)))
    }
}

const WANTED: &str = "write http://HOST:PORT or https://HOST:PORT";

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_encrypted() { "https" } else { "http" };
        write!(
            formatter,
            "{scheme}://{}:{}{}",
            self.uri.host().unwrap_or_default(),
            self.port,
            self.uri.path()
        )
    }
}

async fn open(host: &str, port: u16) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await.context("connect")?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_urls_without_a_user() {
        let shown = |text: &str| {
            Endpoint::read(text).map(|endpoint| endpoint.below("/v1/traces").to_string())
        };
        assert_eq!(
            shown("http://collector:4318"),
            Ok("http://collector:4318/v1/traces".to_owned())
        );
        assert_eq!(
            shown("https://collector/otlp/"),
            Ok("https://collector:443/otlp/v1/traces".to_owned())
        );
        assert_eq!(
            shown("http://[::1]:4318/"),
            Ok("http://[::1]:4318/v1/traces".to_owned())
        );
        for wrong in [
            "",
            "collector:4318",
            "collector",
            "grpc://collector:4317",
            "http://",
            "/v1/traces",
            "http://collector:port",
            "http://me:secret@collector",
        ] {
            assert!(
                shown(wrong).is_err_and(|error| error.contains("http://HOST:PORT")),
                "{wrong}"
            );
        }
    }
}
