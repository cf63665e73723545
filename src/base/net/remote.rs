//! gRPC servers that this process calls: their addresses, and connections by TCP or a Unix socket,
//! with or without TLS.

use std::time::Duration;

use anyhow::Context as _;
use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;
use tower::Service as _;

use crate::base::net::remote::address::Address;
use crate::base::net::tls::{self, ClientTls};

pub(crate) mod address;

/// Time to resolve the host of a control plane, a collector or a trial's upstream, connect, and
/// make the TLS handshake.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// TCP keepalive detects a peer that vanished: idle time before the first probe, time between
/// probes, and probes without an answer.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TRIES: u32 = 3;
/// Time for bytes to such a host to be acknowledged.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(20);
/// The protocol to negotiate. gRPC servers require it.
const ALPN: &[u8] = b"h2";

/// A connection to a server without TLS.
pub(crate) type Socket = Either<TcpStream, UnixStream>;
/// A connection to a server.
pub(crate) type Connection = TokioIo<Either<Socket, TlsStream<Socket>>>;

/// A server, and how to connect to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) address: Address,
    /// `None` for plain text.
    pub(crate) tls: Option<ClientTls>,
}

impl Server {
    /// The authority of requests.
    pub(crate) fn authority(&self) -> String {
        match &self.address {
            address @ Address::Tcp { .. } => address.to_string(),
            Address::Unix(_) => "localhost".to_owned(),
        }
    }

    /// # Errors
    /// A TLS file is invalid, the server is unreachable, or its certificate is not trusted.
    pub(crate) async fn connect(&self) -> anyhow::Result<Connection> {
        let host = match &self.address {
            Address::Tcp { host, .. } => host,
            Address::Unix(_) => "localhost",
        };
        let plain = async {
            anyhow::Ok(match &self.address {
                Address::Tcp { .. } => Either::Left(self.tcp().await?),
                Address::Unix(path) => {
                    Either::Right(UnixStream::connect(path).await.context("connect")?)
                }
            })
        };
        tls::connect(self.tls.as_ref(), host, ALPN, plain).await
    }

    async fn tcp(&self) -> anyhow::Result<TcpStream> {
        let uri: Uri = format!("http://{}", self.address).parse().context("invalid host")?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_keepalive(Some(KEEPALIVE_AFTER));
        connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
        connector.set_keepalive_retries(Some(KEEPALIVE_TRIES));
        connector.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX));
        Ok(connector.call(uri).await.context("connect")?.into_inner())
    }
}
