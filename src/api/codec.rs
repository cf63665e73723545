//! The codec of RateLimitService: a request keeps its bytes, from which `decode.rs` borrows texts.
//!
//! prost would allocate for each descriptor, entry, key and value, and tonic's default buffers are
//! 8 KiB for each direction of a call, whose messages have a hundred bytes. Framing, compression
//! and the bound of a message are tonic's.

use futures_util::FutureExt as _;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, Response};
use http_body_util::Full;
use prost::bytes::{Buf as _, Bytes};
use tonic::body::Body;
use tonic::codec::{
    BufferSettings, Codec, CompressionEncoding, DecodeBuf, Decoder, EncodeBody,
    SingleMessageCompressionOverride, Streaming,
};
use tonic::metadata::GRPC_CONTENT_TYPE;
use tonic::{Code, Status};
use tonic_prost::{ProstCodec, ProstEncoder};

use crate::api::request_body::Compression;
use crate::api::request_size::MESSAGE_BYTES_MAX;
use crate::base::proto::envoy::service::ratelimit::v3::RateLimitResponse;

/// Most messages fit; the buffer of a longer one grows.
const BUFFER_BYTES: usize = 256;
/// A stream would send this many bytes at once. A response is one message.
const YIELD_THRESHOLD: usize = 32 << 10;
/// The header that names how messages of a call are compressed.
static ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const UNCOMPRESSED: &str = "identity";
const GZIP: &str = "gzip";
/// How tonic begins the text of a message that is too large when it is decompressed.
const DECOMPRESSED_TOO_LARGE: &str = "Error decompressing: size limit";

/// `build.rs` names it to tonic-prost-build.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RateLimitCodec;

/// Leaves a RateLimitRequest as it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BytesDecoder;

impl Codec for RateLimitCodec {
    type Encode = RateLimitResponse;
    type Decode = Bytes;
    type Encoder = ProstEncoder<RateLimitResponse>;
    type Decoder = BytesDecoder;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<RateLimitResponse, ()>::raw_encoder(buffers())
    }

    fn decoder(&mut self) -> BytesDecoder {
        BytesDecoder
    }
}

impl Decoder for BytesDecoder {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(message.copy_to_bytes(message.remaining())))
    }

    fn buffer_settings(&self) -> BufferSettings {
        buffers()
    }
}

fn buffers() -> BufferSettings {
    BufferSettings::new(BUFFER_BYTES, YIELD_THRESHOLD)
}

/// How messages of a call may be compressed.
pub(crate) fn compression_of(headers: &HeaderMap) -> Compression {
    match headers.get(&ENCODING) {
        Some(encoding) if encoding != UNCOMPRESSED => Compression::Gzip,
        _ => Compression::None,
    }
}

/// The first message of a body that has arrived whole; `None` if it is none, or too large.
pub(crate) fn message_in(headers: &HeaderMap, body: &Bytes) -> Option<Bytes> {
    let encoding = match headers.get(&ENCODING) {
        None => None,
        Some(encoding) if encoding == UNCOMPRESSED => None,
        Some(encoding) if encoding == GZIP => Some(CompressionEncoding::Gzip),
        Some(_) => return None,
    };
    let body = Full::new(body.clone());
    let mut messages =
        Streaming::new_request(BytesDecoder, body, encoding, Some(MESSAGE_BYTES_MAX));
    messages.message().now_or_never()?.ok()?
}

/// The response of a call that the generated server does not serve.
pub(crate) fn respond(answer: Result<RateLimitResponse, Status>) -> Response<Body> {
    let message = match answer {
        Ok(message) => message,
        Err(status) => return status.into_http(),
    };
    let body = EncodeBody::new_server(
        RateLimitCodec.encoder(),
        tokio_stream::once(Ok(message)),
        None,
        SingleMessageCompressionOverride::default(),
        None,
    );
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
    response
}

/// The status of a message that is too large, if this is the response to one.
///
/// tonic's is OUT_OF_RANGE unless it was compressed. No service here uses that;
/// envoyproxy/ratelimit and the documentation of gRPC use RESOURCE_EXHAUSTED.
pub(crate) fn oversized(headers: &HeaderMap) -> Option<Status> {
    let status = Status::from_header_map(headers)?;
    match status.code() {
        Code::OutOfRange => Some(Status::resource_exhausted(status.message())),
        Code::ResourceExhausted if status.message().starts_with(DECOMPRESSED_TOO_LARGE) => {
            Some(status)
        }
        _ => None,
    }
}
