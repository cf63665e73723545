//! A connection to a collector: TCP, with or without TLS.
//!
//! Files of TLS are read for each connection, so that certificates which are replaced while the
//! service runs are taken.

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

/// Where a collector is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Of which only http and https are known here; with a host.
    uri: Uri,
    port: u16,
}

/// Whom to trust, and who we are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tls {
    /// The only authority that is trusted. Without it, those of the system are.
    pub authority: Option<PemFile>,
    /// Who we are.
    pub identity: Option<Identity>,
}

/// Bytes both ways.
pub type Connection = TokioIo<Pin<Box<dyn Duplex>>>;

/// What is read and written.
pub trait Duplex: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}

impl Endpoint {
    /// Of a URL without a user; without a port, the one of its scheme.
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
                "{WANTED}, and what lets us in into OTEL_EXPORTER_OTLP_HEADERS"
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

    /// The same with this behind its path.
    #[must_use]
    pub fn below(&self, path: &'static str) -> Self {
        let whole = format!("{}{path}", self.uri.path().trim_end_matches('/'));
        let mut parts = self.uri.clone().into_parts();
        parts.path_and_query = Some(
            whole
                .parse()
                .expect("a path with letters behind it is a path"),
        );
        Self {
            uri: Uri::from_parts(parts).expect("scheme and host are as they were"),
            port: self.port,
        }
    }

    /// All of it.
    pub const fn uri(&self) -> &Uri {
        &self.uri
    }

    /// Whether TLS is spoken.
    pub fn is_encrypted(&self) -> bool {
        self.uri.scheme() == Some(&Scheme::HTTPS)
    }

    /// Makes a connection that speaks this protocol, as ALPN calls it.
    ///
    /// # Errors
    /// Files of no use, a collector that is not there, or not who it should be.
    pub async fn connect(self, tls: Tls, protocol: &'static [u8]) -> anyhow::Result<Connection> {
        let host = self.uri.host().unwrap_or_default().trim_matches(['[', ']']);
        if !self.is_encrypted() {
            return Ok(TokioIo::new(Box::pin(open(host, self.port).await?)));
        }
        let mut config = tls::client(tls.authority.as_ref(), tls.identity.as_ref())?;
        config.alpn_protocols = vec![protocol.to_vec()];
        let name = ServerName::try_from(host.to_owned())
            .with_context(|| format!("{host} is no name that a certificate can have"))?;
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
    fn an_endpoint_is_a_url_without_a_user() {
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
