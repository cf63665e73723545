//! A unary gRPC call on the wire: reads the message of a request and writes that of its response.
//!
//! tonic's codec serves streams, too: for one short message it allocates two buffers and boxes each
//! body several times, which takes more instructions than a decision. Messages, statuses and limits
//! are those of tonic.

use std::pin::Pin;
use std::task::{Context, Poll};

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame};
use prost::Message;
use prost::bytes::{BufMut as _, Bytes, BytesMut};
use tonic::Status;

use crate::api::request_size::MESSAGE_BYTES_MAX;

/// The compression flag and the length before a message.
const PREFIX_BYTES: usize = 5;
const GRPC_ENCODING: &str = "grpc-encoding";
pub(crate) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const OK: HeaderValue = HeaderValue::from_static("0");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// Why there is no message.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// More bytes than [`MESSAGE_BYTES_MAX`].
    Oversized(Status),
    /// An invalid or incomplete message.
    Other(Status),
}

/// The bytes received of a message with its prefix, and possibly bytes that follow it.
enum Received {
    /// In one piece.
    Whole(Bytes),
    /// In several.
    Joined(BytesMut),
}

/// The body of a response: one message and the trailers; empty if the status is in the headers.
#[derive(Debug, Default)]
pub(crate) struct UnaryBody {
    message: Option<Bytes>,
    trailers: Option<HeaderMap>,
}

/// Reads the one message of a request, up to the end of its stream. Data after the message is
/// ignored. The message is copied: it would keep the receive buffer of the connection while the
/// call waits.
///
/// # Errors
/// The message is too large, compressed, incomplete or missing, or the body fails.
pub(crate) async fn read_message<B>(headers: &HeaderMap, mut body: B) -> Result<Vec<u8>, ReadError>
where
    B: Body<Data = Bytes, Error = Box<dyn std::error::Error + Send + Sync>> + Unpin,
{
    reject_encoding(headers)?;
    let mut received = Received::Whole(Bytes::new());
    let mut length = None;
    while !body.is_end_stream() {
        let Some(frame) = body.frame().await else {
            break;
        };
        let frame = frame.map_err(|error| ReadError::Other(Status::from_error(error)))?;
        let Ok(data) = frame.into_data() else { break };
        if length.is_some_and(|length| received.as_slice().len() >= length) {
            continue;
        }
        received.add(data);
        length = whole_length(received.as_slice())?;
    }
    match length {
        Some(length) if received.as_slice().len() >= length => {
            Ok(received.as_slice()[PREFIX_BYTES..length].to_vec())
        }
        None if received.as_slice().is_empty() => {
            Err(Status::internal("Missing request message.").into())
        }
        _ => Err(Status::internal("Unexpected EOF decoding stream.").into()),
    }
}

/// Reads the whole body of a request as it is, up to the size of the largest message.
///
/// # Errors
/// The body is too large, or fails.
pub(crate) async fn read_all<B>(mut body: B) -> Result<Bytes, ReadError>
where
    B: Body<Data = Bytes, Error = Box<dyn std::error::Error + Send + Sync>> + Unpin,
{
    let mut received = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| ReadError::Other(Status::from_error(error)))?;
        let Ok(data) = frame.into_data() else { break };
        if received.len() + data.len() > PREFIX_BYTES + MESSAGE_BYTES_MAX {
            return Err(oversized(received.len() + data.len()));
        }
        received.extend_from_slice(&data);
    }
    Ok(received.freeze())
}

/// The message of a whole body, without a copy.
///
/// # Errors
/// The message is too large, compressed, incomplete or missing.
pub(crate) fn message_in(headers: &HeaderMap, body: &Bytes) -> Result<Bytes, ReadError> {
    reject_encoding(headers)?;
    match whole_length(body)? {
        Some(length) if body.len() >= length => Ok(body.slice(PREFIX_BYTES..length)),
        _ => Err(Status::internal("Unexpected EOF decoding stream.").into()),
    }
}

/// The response of a call: a message with status OK, or another status without a message.
pub(crate) fn respond(answer: Result<impl Message, Status>) -> Response<UnaryBody> {
    let message = match answer {
        Ok(message) => encode(&message),
        Err(status) => return status.into_http(),
    };
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(GRPC_STATUS, OK);
    let mut response = Response::new(UnaryBody {
        message: Some(message),
        trailers: Some(trailers),
    });
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, GRPC);
    response
}

/// A message with its prefix.
fn encode(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut encoded = BytesMut::with_capacity(PREFIX_BYTES + length);
    encoded.put_u8(0);
    encoded.put_u32(u32::try_from(length).expect("a response is shorter than 4 GiB"));
    message
        .encode(&mut encoded)
        .expect("the buffer grows with the message");
    encoded.freeze()
}

/// No compression is supported.
fn reject_encoding(headers: &HeaderMap) -> Result<(), Status> {
    let Some(encoding) = headers.get(GRPC_ENCODING) else {
        return Ok(());
    };
    if encoding == "identity" {
        return Ok(());
    }
    let name = String::from_utf8_lossy(encoding.as_bytes());
    let text = format!("Content is compressed with `{name}` which isn't supported");
    let mut status = Status::unimplemented(text);
    let supported = "identity".parse().expect("a valid header value");
    status
        .metadata_mut()
        .insert("grpc-accept-encoding", supported);
    Err(status)
}

/// The length of the message with its prefix, once the prefix has arrived.
fn whole_length(received: &[u8]) -> Result<Option<usize>, ReadError> {
    let Some((&[flag, length @ ..], _)) = received.split_first_chunk::<PREFIX_BYTES>() else {
        return Ok(None);
    };
    let invalid = match flag {
        0 => None,
        1 => Some(
            "protocol error: received message with compressed-flag but no grpc-encoding was specified"
                .to_owned(),
        ),
        _ => Some(format!(
            "protocol error: received message with invalid compression flag: {flag} (valid flags are 0 and 1), while sending request"
        )),
    };
    if let Some(text) = invalid {
        return Err(Status::internal(text).into());
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > MESSAGE_BYTES_MAX {
        return Err(oversized(length));
    }
    Ok(Some(PREFIX_BYTES + length))
}

fn oversized(length: usize) -> ReadError {
    let text = format!(
        "Error, decoded message length too large: found {length} bytes, the limit is: {MESSAGE_BYTES_MAX} bytes"
    );
    ReadError::Oversized(Status::resource_exhausted(text))
}

impl UnaryBody {
    /// Bytes and trailers as they were received.
    pub(crate) fn raw(bytes: Bytes, trailers: Option<HeaderMap>) -> Self {
        Self {
            message: Some(bytes).filter(|bytes| !bytes.is_empty()),
            trailers,
        }
    }
}

impl Received {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Whole(data) => data,
            Self::Joined(data) => data,
        }
    }

    fn add(&mut self, data: Bytes) {
        match self {
            Self::Whole(first) if first.is_empty() => *first = data,
            Self::Whole(first) => {
                let mut joined = BytesMut::with_capacity(first.len() + data.len());
                joined.extend_from_slice(first);
                joined.extend_from_slice(&data);
                *self = Self::Joined(joined);
            }
            Self::Joined(joined) => joined.extend_from_slice(&data),
        }
    }
}

impl From<Status> for ReadError {
    fn from(status: Status) -> Self {
        Self::Other(status)
    }
}

impl Body for UnaryBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let message = self.message.take().map(Frame::data);
        let frame = message.or_else(|| self.trailers.take().map(Frame::trailers));
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.message.is_none() && self.trailers.is_none()
    }
}
