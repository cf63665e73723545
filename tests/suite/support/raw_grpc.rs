//! gRPC without a gRPC library: a call of which a test sends any bytes, and only as many as it
//! likes.

use h2::SendStream;
use h2::client::{ResponseFuture, SendRequest};
use http::{Request, request};
use prost::Message;
use prost::bytes::Bytes;
use std::net::SocketAddr;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::PATIENCE;

const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// An HTTP/2 connection.
pub(crate) struct Connection {
    requests: SendRequest<Bytes>,
    addr: SocketAddr,
    _driver: JoinSet<()>,
}

/// A ShouldRateLimit call that has begun.
pub(crate) struct Call {
    body: SendStream<Bytes>,
    response: ResponseFuture,
}

/// How a call ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) status: tonic::Code,
    /// The bytes of its message, without the five before them.
    pub(crate) message: Option<Bytes>,
}

impl Connection {
    /// Connects.
    pub(crate) async fn open(addr: SocketAddr) -> Self {
        Self::over(TcpStream::connect(addr).await.expect("the port is open"), addr).await
    }

    /// On a stream that leads to that address.
    pub(crate) async fn over(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        addr: SocketAddr,
    ) -> Self {
        let (requests, driver) = h2::client::handshake(stream).await.expect("it speaks HTTP/2");
        let mut driving = JoinSet::new();
        driving.spawn(async move {
            // How it ends is seen by the calls.
            let _ = driver.await;
        });
        Self { requests, addr, _driver: driving }
    }

    /// Sends the head of a call.
    pub(crate) async fn begin(&mut self) -> Call {
        self.begin_with(&[]).await
    }

    /// The same with more headers.
    pub(crate) async fn begin_with(&mut self, headers: &[(&str, String)]) -> Call {
        let add =
            |head: request::Builder, (name, value): &(&str, String)| head.header(*name, value);
        let head = headers.iter().fold(self.head(), add);
        self.open_call(head).await.expect("the connection is open")
    }

    /// The same as [`Self::begin`]; `None` if the server takes no more calls.
    pub(crate) async fn try_begin(&mut self) -> Option<Call> {
        self.open_call(self.head()).await
    }

    fn head(&self) -> request::Builder {
        Request::post(format!("http://{}{PATH}", self.addr))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
    }

    async fn open_call(&mut self, head: request::Builder) -> Option<Call> {
        let head = head.body(()).expect("it is a request");
        let mut requests = self.requests.clone().ready().await.ok()?;
        let (response, body) = requests.send_request(head, false).ok()?;
        Some(Call { body, response })
    }

    /// Whether the server has said that it takes no more calls.
    pub(crate) async fn is_told_to_go(&self) -> bool {
        self.requests.clone().ready().await.is_err()
    }
}

impl Call {
    /// Sends some of the body.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.body.send_data(Bytes::copy_from_slice(bytes), false).expect("the stream is open");
    }

    /// Sends the last of the body.
    pub(crate) fn send_last(&mut self, bytes: &[u8]) {
        // It fails where the server has rejected the call already.
        let _ = self.body.send_data(Bytes::copy_from_slice(bytes), true);
    }

    /// Sends the last of the body, and waits for the end.
    pub(crate) async fn finish(self, bytes: &[u8]) -> Ended {
        let ended = self.try_finish(bytes).await;
        ended.expect("the call is answered")
    }

    /// The same; `None` if the server has ended before it answered.
    pub(crate) async fn try_finish(mut self, bytes: &[u8]) -> Option<Ended> {
        self.send_last(bytes);
        self.try_ended().await
    }

    /// Waits for the end, and sends nothing.
    pub(crate) async fn ended(self) -> Ended {
        self.try_ended().await.expect("the call is answered")
    }

    async fn try_ended(self) -> Option<Ended> {
        // The stream of the body is open until the call has ended.
        let Self { body: _body, response } = self;
        let ending = async {
            let response = response.await.ok()?;
            // Without a message the status is in the head.
            let status_of = |headers: &http::HeaderMap| {
                headers.get("grpc-status").map(|status| tonic::Code::from_bytes(status.as_bytes()))
            };
            if let Some(status) = status_of(response.headers()) {
                return Some(Ended { status, message: None });
            }
            let mut body = response.into_body();
            let mut frames = Vec::new();
            while let Some(frame) = body.data().await {
                frames.extend_from_slice(&frame.ok()?);
            }
            let trailers = body.trailers().await.ok()?.expect("there are trailers");
            Some(Ended {
                status: status_of(&trailers).expect("there is a status"),
                message: (frames.len() >= 5).then(|| Bytes::from(frames).slice(5..)),
            })
        };
        tokio::time::timeout(PATIENCE, ending).await.expect("the call ends")
    }
}

/// A message with the five bytes before it.
pub(crate) fn frame(message: &impl Message) -> Vec<u8> {
    frame_of(&message.encode_to_vec())
}

/// Any bytes with the five bytes before them.
pub(crate) fn frame_of(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("it is short").to_be_bytes();
    [&[0], &length[..], bytes].concat()
}
