//! Requests to a server of HTTP/1, on a connection of their own.

use std::pin::pin;

use axum::body::{Body, Bytes, to_bytes};
use http::{Request, StatusCode};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, ToSocketAddrs};

/// For callers of another port.
pub(crate) const ADMIN_PORT: &str = "the admin port is DEBUG_PORT, 6070 by default";

/// Sends one request, whose target is a path, and returns status and body of the response.
///
/// # Errors
/// The server is unreachable or speaks another protocol, the connection has ended, or the body is
/// longer than `bytes_max`.
pub(crate) async fn exchange(
    address: impl ToSocketAddrs,
    request: Request<Body>,
    bytes_max: usize,
) -> anyhow::Result<(StatusCode, Bytes)> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let mut exchanging = pin!(async {
        sender.ready().await?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = to_bytes(Body::new(response.into_body()), bytes_max).await?;
        Ok((status, body))
    });
    tokio::select! {
        result = &mut exchanging => result,
        // The last bytes may still be unread.
        _ = connection => exchanging.await,
    }
}
