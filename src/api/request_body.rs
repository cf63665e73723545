//! The body of a gRPC request: charges its bytes to the call as they arrive, and fails when they
//! are late.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;

use crate::api::budget::CallInFlight;

/// Time for a gRPC request to arrive, from its head to the end of its stream. Envoy sends a call at
/// once, and waits 20 ms.
// bound message_timeout: DEADLINE_EXCEEDED; tollgate_calls_rejected_total{cause="message_timeout"}
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);
pub(crate) const BYTES_REASON: &str =
    "too many bytes are in flight (message_bytes_in_flight_max, message_bytes_per_connection_max)";

pub(crate) struct RequestBody {
    body: Incoming,
    pub(crate) call: Arc<CallInFlight>,
    /// Set when the body is pending for the first time.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl RequestBody {
    pub(crate) fn new(body: Incoming, call: Arc<CallInFlight>) -> Self {
        Self {
            body,
            call,
            deadline: None,
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) else {
            let deadline = this
                .deadline
                .get_or_insert_with(|| Box::pin(sleep(MESSAGE_TIMEOUT)));
            ready!(deadline.as_mut().poll(context));
            this.call.count_late();
            let late = "the request did not arrive in time (message_timeout)";
            return Poll::Ready(Some(Err(Status::deadline_exceeded(late).into())));
        };
        if this.body.is_end_stream() {
            // The body is kept until its call is answered, and the timer would wake it.
            this.deadline = None;
            this.call.arrive();
        }
        let arrived = frame
            .as_ref()
            .and_then(|frame| frame.as_ref().ok()?.data_ref())
            .map_or(0, Bytes::len);
        Poll::Ready(if this.call.hold(arrived) {
            frame.map(|frame| frame.map_err(Into::into))
        } else {
            Some(Err(no_bytes_left().into()))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The error of a call that needs more bytes than are left.
pub(crate) fn no_bytes_left() -> Status {
    Status::resource_exhausted(BYTES_REASON)
}
