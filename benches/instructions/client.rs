//! A gRPC client on a socket, driven by hand: it sends and receives when it is called.

use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Waker};

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::FutureExt as _;
use h2::client::{self, Connection, ResponseFuture, SendRequest};
use http::Request;
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tollgate::base::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate::base::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tollgate::base::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tollgate::base::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

use crate::socket::Socket;

const URI: &str = "http://ratelimit/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// More than a round sends or receives.
const WIRE_BYTES: usize = 1 << 18;
/// So that the server never waits for a WINDOW_UPDATE, and the client never sends one.
const WINDOW_BYTES: u32 = (1 << 31) - 1;

/// A connection with calls in flight.
pub(crate) struct Client {
    pub(crate) socket: Socket,
    requests: SendRequest<Bytes>,
    connection: Connection<DuplexStream>,
    /// What `connection` reads and writes.
    wire: DuplexStream,
    calls: Vec<Pin<Box<dyn Future<Output = Code>>>>,
}

impl Client {
    pub(crate) fn new(socket: Socket) -> Self {
        let (stream, wire) = tokio::io::duplex(WIRE_BYTES);
        let mut builder = client::Builder::new();
        builder.initial_connection_window_size(WINDOW_BYTES);
        let (requests, connection) = builder
            .handshake(stream)
            .now_or_never()
            .expect("a client does not wait for the server's preface")
            .expect("the stream is open");
        Self { socket, requests, connection, wire, calls: Vec::new() }
    }

    /// Begins a call with a descriptor for each number.
    pub(crate) fn call(&mut self, key: &str, numbers: Range<usize>) {
        let descriptor = |number: usize| RateLimitDescriptor {
            entries: vec![Entry { key: key.into(), value: format!("u{number:05}").into() }],
            ..RateLimitDescriptor::default()
        };
        let message = RateLimitRequest {
            domain: "bench".into(),
            descriptors: numbers.map(descriptor).collect(),
            hits_addend: 0,
        }
        .encode_to_vec();
        let mut frame = BytesMut::new();
        frame.put_u8(0);
        frame.put_u32(u32::try_from(message.len()).expect("a short message"));
        frame.put(&*message);

        let head = Request::post(URI)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            // As Envoy sends it by default.
            .header("grpc-timeout", "20m")
            .body(())
            .expect("a request");
        let (response, mut body) =
            self.requests.send_request(head, false).expect("fewer streams than the server allows");
        body.send_data(frame.freeze(), true).expect("the stream is open");
        self.calls.push(Box::pin(code_of(response)));
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.calls.len()
    }

    /// Sends all calls in one write.
    pub(crate) fn send(&mut self) {
        self.drive();
        let mut bytes = Vec::new();
        while self.wire.read_buf(&mut bytes).now_or_never().is_some() {}
        self.socket.write(&bytes);
    }

    /// The codes of the responses that have arrived.
    pub(crate) fn receive(&mut self) -> Vec<Code> {
        let bytes = self.socket.read();
        self.wire
            .write_all(&bytes)
            .now_or_never()
            .expect("the buffer has space")
            .expect("the stream is open");
        self.drive();
        let mut codes = Vec::new();
        self.calls.retain_mut(|call| {
            let code = call.as_mut().now_or_never();
            codes.extend(code);
            code.is_none()
        });
        codes
    }

    fn drive(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        let driven = Pin::new(&mut self.connection).poll(&mut context);
        assert!(driven.is_pending(), "the connection ended: {driven:?}");
    }
}

/// The overall code of a response.
async fn code_of(response: ResponseFuture) -> Code {
    let mut body = response.await.expect("a response").into_body();
    let mut frame = BytesMut::new();
    while let Some(data) = body.data().await {
        frame.extend_from_slice(&data.expect("the message of the response"));
    }
    let trailers = body.trailers().await.expect("trailers");
    let status = trailers.as_ref().and_then(|all| all.get("grpc-status"));
    assert_eq!(status.map(http::HeaderValue::as_bytes), Some(&b"0"[..]));
    RateLimitResponse::decode(&frame[5..]).expect("a RateLimitResponse").overall_code()
}
