//! One request to a server of HTTP/1, on a connection of its own.

use axum::body::{Body, Bytes, to_bytes};
use http::{Request, StatusCode};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, ToSocketAddrs};

/// Sends a request, whose target is a path, and returns status and body of the response.
///
/// # Errors
/// The server is unreachable, it speaks another protocol, or the body is longer than `bytes_max`.
pub(crate) async fn exchange(
    address: impl ToSocketAddrs,
    request: Request<Body>,
    bytes_max: usize,
) -> anyhow::Result<(StatusCode, Bytes)> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let body = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = to_bytes(Body::new(response.into_body()), bytes_max).await?;
        anyhow::Ok((status, body))
    };
    let mut body = std::pin::pin!(body);
    tokio::select! {
        body = &mut body => body,
        // The last bytes may still be unread.
        _ = connection => body.await,
    }
}
