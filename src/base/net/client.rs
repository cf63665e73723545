//! Requests to a server of HTTP/1, on a connection of their own.

use axum::body::{Body, Bytes, to_bytes};
use http::{Request, StatusCode};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, ToSocketAddrs};

/// For callers of another port.
pub(crate) const ADMIN_PORT: &str = "the admin port is DEBUG_PORT, 6070 by default";

/// A connection to a server.
pub(crate) struct Connection(SendRequest<Body>);

impl Connection {
    /// Sends a request, whose target is a path, and returns status and body of the response.
    ///
    /// # Errors
    /// The connection has ended, or the body is longer than `bytes_max`.
    pub(crate) async fn send(
        &mut self,
        request: Request<Body>,
        bytes_max: usize,
    ) -> anyhow::Result<(StatusCode, Bytes)> {
        self.0.ready().await?;
        let response = self.0.send_request(request).await?;
        let status = response.status();
        let body = to_bytes(Body::new(response.into_body()), bytes_max).await?;
        Ok((status, body))
    }
}

/// Connects, and lets `talk` send requests.
///
/// # Errors
/// The server is unreachable or speaks another protocol, or the error of `talk`.
pub(crate) async fn connected<T>(
    address: impl ToSocketAddrs,
    talk: impl AsyncFnOnce(&mut Connection) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let stream = TcpStream::connect(address).await?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let mut sender = Connection(sender);
    let mut talking = std::pin::pin!(talk(&mut sender));
    tokio::select! {
        result = &mut talking => result,
        // The last bytes may still be unread.
        _ = connection => talking.await,
    }
}

/// Sends one request, whose target is a path, and returns status and body of the response.
///
/// # Errors
/// As of [`connected`] and [`Connection::send`].
pub(crate) async fn exchange(
    address: impl ToSocketAddrs,
    request: Request<Body>,
    bytes_max: usize,
) -> anyhow::Result<(StatusCode, Bytes)> {
    connected(address, async |connection| connection.send(request, bytes_max).await).await
}
