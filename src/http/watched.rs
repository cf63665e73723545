//! Tells the [`Activity`] of a connection when it waits for its client, and closes one whose client
//! does not read.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::http::budget::Activity;
use crate::telemetry::metric::Counter;

/// How long a client may take to read responses that do not fit into the socket's buffer.
/// Prometheus gives up on a scrape after 10 s, too.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// What a connection is doing: shared by its socket, its requests and their bodies.
#[derive(Debug, Clone)]
pub struct Watch {
    activity: Arc<Activity>,
    /// A request is being answered.
    answering: Arc<AtomicBool>,
}

/// A socket.
#[derive(Debug)]
pub struct WatchedSocket<S> {
    socket: S,
    watch: Watch,
    /// From the first write that had to wait until everything is written.
    write_deadline: Option<Pin<Box<Sleep>>>,
    write_timeouts: Counter,
}

/// The body of a request.
struct WatchedBody {
    body: Incoming,
    watch: Watch,
}

impl Watch {
    /// Nothing was requested yet.
    pub fn new(activity: Arc<Activity>) -> Self {
        Self {
            activity,
            answering: Arc::default(),
        }
    }

    /// Begins to answer a request. Its body is watched as well.
    pub fn begin(&self, request: http::Request<Incoming>) -> http::Request<Body> {
        self.answering.store(true, Relaxed);
        self.activity.work();
        request.map(|body| {
            Body::new(WatchedBody {
                body,
                watch: self.clone(),
            })
        })
    }

    /// The response is about to be written.
    pub fn end(&self) {
        self.answering.store(false, Relaxed);
    }

    fn waits_for_client(&self) {
        if !self.answering.load(Relaxed) {
            self.activity.wait();
        }
    }
}

impl<S> WatchedSocket<S> {
    /// Watches a socket; `write_timeouts` counts the clients that do not read.
    pub fn new(socket: S, watch: Watch, write_timeouts: Counter) -> Self {
        Self {
            socket,
            watch,
            write_deadline: None,
            write_timeouts,
        }
    }

    /// The same result, unless the client has had time enough to read.
    fn written<T>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if result.is_pending() {
            self.watch.waits_for_client();
            let deadline = self
                .write_deadline
                .get_or_insert_with(|| Box::pin(sleep(WRITE_TIMEOUT)));
            ready!(deadline.as_mut().poll(context));
            self.write_timeouts.inc();
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        result
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.socket).poll_read(context, buffer);
        if result.is_pending() {
            self.watch.waits_for_client();
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedSocket<S> {
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
            self.watch.activity.work();
        }
        result
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

impl HttpBody for WatchedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let result = Pin::new(&mut self.body).poll_frame(context);
        match result {
            Poll::Pending => self.watch.activity.wait(),
            // A part of it is not enough: a client could send bytes one by one, and would always
            // have been active lately.
            Poll::Ready(Some(Ok(_))) if !self.body.is_end_stream() => {}
            Poll::Ready(_) => self.watch.activity.work(),
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
