//! Connections to an xDS server: TCP or a Unix socket, with or without TLS.
//!
//! TLS files are read for each connection, so that replaced certificates are used.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio_rustls::TlsConnector;
use tower::Service as _;

use crate::rule_source::xds::address::Address;
use crate::tls::{self, Identity, PemFile};

/// TCP keepalive detects a peer that vanished: idle time before the first probe, time between probes,
/// and probes without an answer.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TRIES: u32 = 3;
/// The protocol to negotiate. gRPC servers require it.
const ALPN: &[u8] = b"h2";

/// An xDS server, and how to connect to it.
#[derive(Debug, Clone)]
pub struct Server {
    pub(crate) address: Address,
    /// `None` for plain text.
    pub(crate) tls: Option<Tls>,
}

/// The TLS settings, CONFIG_GRPC_XDS_*.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tls {
    /// The only trusted authority; `None` for those of the system.
    pub authority: Option<PemFile>,
    /// The client certificate.
    pub identity: Option<Identity>,
    /// The name in the server's certificate, if it is not the host.
    pub name: Option<String>,
}

pub(crate) type Connection = TokioIo<Pin<Box<dyn Duplex>>>;

/// A transport of bytes.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}

impl Server {
    /// Connects.
    ///
    /// # Errors
    /// A TLS file is invalid, the server is unreachable, or its certificate is not trusted.
    pub async fn connect(self) -> anyhow::Result<Connection> {
        // First: without valid files there is no need to connect.
        let tls = self
            .tls
            .as_ref()
            .map(|tls| tls.connector(self.address.host()))
            .transpose()?;
        let plain: Pin<Box<dyn Duplex>> = match &self.address {
            Address::Tcp { .. } => Box::pin(self.tcp().await?),
            Address::Unix(path) => Box::pin(UnixStream::connect(path).await.context("connect")?),
        };
        let Some((connector, name)) = tls else {
            return Ok(TokioIo::new(plain));
        };
        let encrypted = connector.connect(name, plain).await.context("TLS")?;
        Ok(TokioIo::new(Box::pin(encrypted)))
    }

    async fn tcp(&self) -> anyhow::Result<tokio::net::TcpStream> {
        let uri: Uri = format!("http://{}", self.address)
            .parse()
            .context("invalid host")?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_keepalive(Some(KEEPALIVE_AFTER));
        connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
        connector.set_keepalive_retries(Some(KEEPALIVE_TRIES));
        Ok(connector.call(uri).await.context("connect")?.into_inner())
    }
}

impl Tls {
    fn connector(&self, host: &str) -> anyhow::Result<(TlsConnector, ServerName<'static>)> {
        let name = self.name.as_deref().unwrap_or(host);
        let name = ServerName::try_from(name.to_owned())
            .with_context(|| format!("{name} is not a name that a certificate can have"))?;
        let mut config = tls::client(self.authority.as_ref(), self.identity.as_ref())?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok((TlsConnector::from(Arc::new(config)), name))
    }
}
