//! Reads request bodies of HTTP endpoints within a size, a time and a budget; responses for those
//! that are invalid.

use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use prost::bytes::BytesMut;
use tokio_stream::StreamExt as _;

use crate::base::text::{Escaped, shortened};

/// Time for the body of an HTTP request to arrive. A client that does not send its body would hold
/// its connection.
// bound body_timeout: 408; tollgate_calls_rejected_total{cause="message_timeout"}
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of the reason of an error, which may quote the request.
pub(crate) const REASON_BYTES_MAX: usize = 1_024;

/// Why a body was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyError {
    /// The bound that was exceeded, in bytes.
    #[error("the body has more than {0} bytes")]
    Oversized(usize),
    #[error("timed out reading the request body")]
    Late,
    #[error("the request body ended early or has an invalid encoding")]
    Broken,
    #[error("too many calls, or bytes of calls, are in flight")]
    OverBudget,
}

/// Reads a body of at most `bytes_max` bytes, if `hold` accepts the size of each piece.
///
/// # Errors
/// It is too long, late or broken, or `hold` returned `false`.
pub(crate) async fn read_body(
    body: Body,
    bytes_max: usize,
    hold: impl Fn(usize) -> bool,
) -> Result<Bytes, BodyError> {
    let reading = async {
        // Its `content-length`. Only pages that are written take memory; growing by copies would
        // take twice as much.
        let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        let mut read = BytesMut::with_capacity(announced.min(bytes_max));
        let mut pieces = body.into_data_stream();
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|_| BodyError::Broken)?;
            if read.len() + piece.len() > bytes_max {
                return Err(BodyError::Oversized(bytes_max));
            }
            if !hold(piece.len()) {
                return Err(BodyError::OverBudget);
            }
            read.extend_from_slice(&piece);
        }
        Ok(read.freeze())
    };
    tokio::time::timeout(BODY_TIMEOUT, reading).await.unwrap_or(Err(BodyError::Late))
}

/// 400 with the reason, and with an example of a valid request if there is one.
pub(crate) fn bad_request(reason: &str, example: Option<&str>) -> Response {
    let example = example
        .map(|example| format!("write a RateLimitRequest as JSON, such as {example}\n"))
        .unwrap_or_default();
    let text = format!("{}\n{example}", Escaped(shortened(reason, REASON_BYTES_MAX)));
    (StatusCode::BAD_REQUEST, text).into_response()
}

impl BodyError {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::Oversized(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Late => StatusCode::REQUEST_TIMEOUT,
            Self::Broken => StatusCode::BAD_REQUEST,
            Self::OverBudget => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

impl IntoResponse for BodyError {
    fn into_response(self) -> Response {
        (self.status(), format!("{self}\n")).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn reason_of_a_400_is_truncated() {
        let response = bad_request(&"\u{fc}".repeat(1 << 20), Some("{}"));
        assert_eq!(response.status(), StatusCode::BAD_REQUEST);
        let body = axum::body::to_bytes(response.into_body(), 2_000).await.expect("it is short");
        let body = str::from_utf8(&body).expect("it is text");
        assert!(body.contains("\u{fc}...\nwrite a RateLimitRequest as JSON"), "{body}");
    }
}
