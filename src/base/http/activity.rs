//! Observes a connection's socket and request bodies: records when it waits for its client, and
//! closes it when the client does not read.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::base::http::budget::Activity;
use crate::telemetry::metric::Counter;

/// Time for a client to read HTTP responses that do not fit into the socket's buffer. Prometheus'
/// own scrape timeout is 10 s.
// bound write_timeout: closed; tollgate_http_write_timeouts_total
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct TrackedSocket<S> {
    socket: S,
    activity: Arc<Activity>,
    /// Set from the first write that was pending until all is written.
    write_deadline: Option<Pin<Box<Sleep>>>,
    write_timeouts: Counter,
}

struct TrackedBody {
    body: Incoming,
    activity: Arc<Activity>,
}

/// Observes the body of a request.
pub(crate) fn tracked(
    request: http::Request<Incoming>,
    activity: Arc<Activity>,
) -> http::Request<Body> {
    request.map(|body| Body::new(TrackedBody { body, activity }))
}

impl<S> TrackedSocket<S> {
    /// `write_timeouts` counts the clients that do not read.
    pub(crate) fn new(socket: S, activity: Arc<Activity>, write_timeouts: Counter) -> Self {
        Self { socket, activity, write_deadline: None, write_timeouts }
    }

    /// The result of a write, or a timeout.
    fn written<T>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if result.is_pending() {
            self.activity.socket_waits();
            let deadline =
                self.write_deadline.get_or_insert_with(|| Box::pin(sleep(WRITE_TIMEOUT)));
            ready!(deadline.as_mut().poll(context));
            self.write_timeouts.inc();
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        result
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TrackedSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.socket).poll_read(context, buffer);
        if result.is_pending() {
            self.activity.socket_waits();
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TrackedSocket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.written(context, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.socket).poll_write_vectored(context, bytes);
        self.written(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    /// Called when there is nothing left to write.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.socket).poll_flush(context);
        if result.is_ready() && self.write_deadline.take().is_some() {
            self.activity.work();
        }
        result
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let result = Pin::new(&mut self.body).poll_frame(context);
        match result {
            Poll::Pending => self.activity.wait(),
            // Part of a body does not count as activity: a client could send bytes one by one.
            Poll::Ready(Some(Ok(_))) if !self.body.is_end_stream() => {}
            Poll::Ready(_) => self.activity.work(),
        }
        result
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
