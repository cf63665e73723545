//! The body of a gRPC request on its way to tonic: charges its bytes to the call as they arrive,
//! and fails when they are late.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;

use crate::api::budget::{BYTES_REASON, CallInFlight};
use crate::api::request_size::MESSAGE_BYTES_MAX;

/// Time for a gRPC request to arrive, from its head to the end of its stream. Envoy sends a call at
/// once, and waits 20 ms.
// bound message_timeout: DEADLINE_EXCEEDED; tollgate_calls_rejected_total{cause="message_timeout"}
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes that gzip makes of one at most.
const GZIP_RATIO: usize = 1_032;

/// Whether a message takes more memory than bytes on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    /// tonic decompresses a message of at most [`MESSAGE_BYTES_MAX`].
    Gzip,
}

pub(crate) struct RequestBody {
    body: Incoming,
    pub(crate) call: Arc<CallInFlight>,
    compression: Compression,
    received: usize,
    /// Set when the body is pending for the first time.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl RequestBody {
    pub(crate) fn new(body: Incoming, call: Arc<CallInFlight>, compression: Compression) -> Self {
        Self { body, call, compression, received: 0, deadline: None }
    }

    /// Charges bytes that have arrived. `false` if there are not enough.
    fn charge(&mut self, arrived: usize) -> bool {
        let before = self.compression.memory_of(self.received);
        self.received += arrived;
        let memory = self.compression.memory_of(self.received);
        self.call.hold(memory - before)
    }
}

impl Compression {
    /// Memory of a message of which this many bytes were received.
    fn memory_of(self, received: usize) -> usize {
        match self {
            Self::None => received,
            Self::Gzip => {
                let decompressed = received.saturating_mul(GZIP_RATIO);
                received + decompressed.min(MESSAGE_BYTES_MAX)
            }
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
            let deadline = this.deadline.get_or_insert_with(|| Box::pin(sleep(MESSAGE_TIMEOUT)));
            ready!(deadline.as_mut().poll(context));
            this.call.count_late();
            let late = "the request did not arrive in time (message_timeout)";
            return Poll::Ready(Some(Err(Status::deadline_exceeded(late).into())));
        };
        if this.body.is_end_stream() {
            // A stream keeps its body until it is answered, and the timer would wake it.
            this.deadline = None;
            this.call.arrive();
        }
        let arrived =
            frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()).map_or(0, Bytes::len);
        Poll::Ready(if this.charge(arrived) {
            frame.map(|frame| frame.map_err(Into::into))
        } else {
            Some(Err(Status::resource_exhausted(BYTES_REASON).into()))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
