//! Opens byte streams over the network: TCP, TLS, and Unix sockets.
//!
//! The client library could do so by itself, but it reads such streams without a bound.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bb8_redis::redis::ConnectionAddr;
use bb8_redis::redis::aio::AsyncStream;
use futures_util::FutureExt as _;
use futures_util::future::select_ok;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio_rustls::TlsConnector;

use crate::base::net::peers;
use crate::store::redis::connect::address::Address;

/// The time of silence before the first keepalive probe: that of envoyproxy/ratelimit's driver.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(10);
/// With this interval and number of probes, a dead peer is noticed within 25 s without any calls.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_TRIES: u32 = 3;

/// An open stream.
pub type Stream = Pin<Box<dyn AsyncStream + Send + Sync>>;

/// Connects to the first address of a host that accepts. The caller bounds the time.
///
/// # Errors
/// The name has no address, or none of its addresses accepts.
pub(crate) async fn open(address: &Address) -> io::Result<Stream> {
    let (host, port) = match &address.addr {
        ConnectionAddr::Unix(path) => return Ok(Box::pin(UnixStream::connect(path).await?)),
        _ => address.endpoint().ok_or(io::ErrorKind::Unsupported)?,
    };
    let tls = address.tls_config().map_err(io::Error::other)?;
    let addresses: Vec<SocketAddr> = lookup_host((host, port)).await?.collect();
    if addresses.is_empty() {
        let error = "the name has no address";
        return Err(io::Error::new(io::ErrorKind::NotFound, error));
    }
    let attempts = addresses.into_iter().map(|at| {
        let tls = tls.clone();
        async move {
            match tls {
                None => Ok(Box::pin(tcp(at).await?) as Stream),
                Some(config) => encrypted(config, host, at).await,
            }
        }
        .boxed()
    });
    select_ok(attempts).await.map(|(stream, _)| stream)
}

async fn tcp(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_AFTER)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_TRIES);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    Ok(stream)
}

async fn encrypted(
    config: Arc<ClientConfig>,
    host: &str,
    address: SocketAddr,
) -> io::Result<Stream> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let stream = tcp(address).await?;
    let stream = TlsConnector::from(config).connect(name, stream).await;
    Ok(Box::pin(stream.map_err(peers::explain)?))
}
