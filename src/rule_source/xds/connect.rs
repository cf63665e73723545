//! A connection to a control plane: TCP or a Unix socket, with or without TLS.
//!
//! Files of TLS are read for each connection, so that certificates which are replaced while the
//! service runs are taken.

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

/// A peer that vanished is found by the kernel: after so long without a word it is asked, and given
/// up after so many silent answers.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TRIES: u32 = 3;
/// What gRPC speaks. Its servers insist on being asked.
const ALPN: &[u8] = b"h2";

/// A control plane, and how to reach it.
#[derive(Debug, Clone)]
pub struct Server {
    /// Where it is.
    pub address: Address,
    /// Whom to trust and who we are; `None` for plain text.
    pub tls: Option<Tls>,
}

/// TLS, as CONFIG_GRPC_XDS_* say it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tls {
    /// The only authority that is trusted. Without it, those of the system are.
    pub authority: Option<PemFile>,
    /// Who we are.
    pub identity: Option<Identity>,
    /// The name to look for in the server's certificate, if it is not the host's.
    pub name: Option<String>,
}

/// Bytes both ways.
pub type Connection = TokioIo<Pin<Box<dyn Duplex>>>;

/// What is read and written.
pub trait Duplex: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}

impl Server {
    /// Makes a connection.
    ///
    /// # Errors
    /// Files that are of no use, a server that is not there, or not who it should be.
    pub async fn connect(self) -> anyhow::Result<Connection> {
        // Before anything is sent: without them it would be in vain.
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
            .context("this is no host")?;
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
            .with_context(|| format!("{name} is no name that a certificate can have"))?;
        let mut config = tls::client(self.authority.as_ref(), self.identity.as_ref())?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok((TlsConnector::from(Arc::new(config)), name))
    }
}
