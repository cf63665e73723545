//! Closes a connection to Redis whose replies exceed their bound, and notices a peer's close of an
//! idle one.
//!
//! The client library buffers bytes until a reply is complete, and replies until all of a pipeline
//! have arrived. Neither has a bound, so what is read is counted here, from one call to the next:
//! a reply that never ends and many unrequested replies look alike.
//!
//! ```text
//!   call ---> bytes of all its replies ---> next call
//!             at most REPLY_BYTES_MAX
//! ```

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use memchr::{memchr_iter, memrchr};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::store::redis::connect::network::Stream;
use crate::telemetry::metric::Counter;

/// Bytes of the replies to one call, and of messages that are received and not read yet. Batches
/// get 130 KB at most; an all-or-nothing request of 1,000 descriptors with 100 sub-windows each
/// gets 0.8 MB.
// bound redis_reply_bytes_max: the connection is closed; tollgate_store_replies_oversized_total
pub(crate) const REPLY_BYTES_MAX: usize = 1 << 20;
/// Bytes of the replies to one discovery. CLUSTER SLOTS has about 170 for each range and node: of
/// 1,000 nodes 0.2 MB, and 1.7 MB if resharding has left ten ranges to each master of two replicas.
// bound discovery_bytes_max: the connection is closed, and the previous topology stays;
// tollgate_store_replies_oversized_total
pub(crate) const DISCOVERY_BYTES_MAX: usize = 4 << 20;
/// Lines of the replies to one call: each may be a value, which takes up to 60 times the bytes that
/// it is sent in.
// bound redis_reply_lines_max: the connection is closed; tollgate_store_replies_oversized_total
const REPLY_LINES_MAX: usize = 1 << 17;
/// Bytes of one line, which the client library reads again from its start whenever more of it
/// arrives. No reply in use has a longer one: texts of errors have less than 1 KB.
// bound redis_line_bytes_max: the connection is closed; tollgate_store_replies_oversized_total
const LINE_BYTES_MAX: usize = 64 << 10;
/// Bytes whose lines are not counted: the replies to nearly all calls are shorter.
const UNCOUNTED_BYTES: usize = 16 << 10;

/// The replies of one server beyond a bound. Clones share the record.
#[derive(Debug, Clone)]
pub(crate) struct OversizedReplies {
    total: Counter,
    /// The last one, until it is logged.
    last: Arc<Mutex<Option<String>>>,
}

/// Bytes received on a connection since its last call, and bytes sent. The calls and the stream of
/// the connection share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Transferred(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    bytes: AtomicUsize,
    lines: AtomicUsize,
    /// Since the last line began.
    line_bytes: AtomicUsize,
    /// Bytes sent since the connection was opened.
    sent: AtomicU64,
    /// Those of them whose replies have all arrived.
    replied: AtomicU64,
}

/// A stream that fails beyond the bound.
pub(crate) struct BoundedStream {
    pub(crate) stream: Stream,
    pub(crate) transferred: Transferred,
    pub(crate) bytes_max: usize,
    pub(crate) oversized: OversizedReplies,
    /// Counts the connection if its peer closes it while no reply is due.
    pub(crate) closed_idle: Option<Counter>,
}

impl OversizedReplies {
    /// Counts oversized replies of a server; `total` counts those of all.
    pub(crate) fn new(total: Counter) -> Self {
        Self { total, last: Arc::default() }
    }

    pub(crate) fn record(&self, what: &str) {
        self.total.inc();
        *self.last.lock() = Some(what.to_owned());
    }

    /// The last one since the previous call.
    pub(crate) fn take(&self) -> Option<String> {
        self.last.lock().take()
    }
}

impl Transferred {
    /// Bytes sent since the connection was opened. If a call fails and this has not changed, the
    /// server has received no part of it.
    pub(crate) fn sent(&self) -> u64 {
        self.0.sent.load(Relaxed)
    }

    /// All replies have arrived.
    pub(crate) fn mark_replied(&self) {
        self.0.replied.store(self.sent(), Relaxed);
    }

    fn is_idle(&self) -> bool {
        self.sent() == self.0.replied.load(Relaxed)
    }

    /// A new call begins.
    pub(crate) fn reset(&self) {
        self.0.bytes.store(0, Relaxed);
        self.0.lines.store(0, Relaxed);
        self.0.line_bytes.store(0, Relaxed);
    }

    /// Counts bytes that were read. `false` if there are too many.
    fn add(&self, read: &[u8], bytes_max: usize) -> bool {
        let bytes = self.0.bytes.fetch_add(read.len(), Relaxed) + read.len();
        if bytes <= UNCOUNTED_BYTES {
            return true;
        }
        let new = memchr_iter(b'\n', read).count();
        let lines = self.0.lines.fetch_add(new, Relaxed) + new;
        let line_bytes = match memrchr(b'\n', read) {
            Some(end) => read.len() - end,
            None => self.0.line_bytes.load(Relaxed) + read.len(),
        };
        self.0.line_bytes.store(line_bytes, Relaxed);
        bytes <= bytes_max && lines <= REPLY_LINES_MAX && line_bytes <= LINE_BYTES_MAX
    }
}

impl AsyncRead for BoundedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(self.stream.as_mut().poll_read(context, buffer));
        if (read.is_err() || buffer.filled().len() == before)
            && self.transferred.is_idle()
            && let Some(closed_idle) = self.closed_idle.take()
        {
            closed_idle.inc();
        }
        read?;
        if self.transferred.add(&buffer.filled()[before..], self.bytes_max) {
            return Poll::Ready(Ok(()));
        }
        let error = format!(
            "replies of more than {} bytes, {REPLY_LINES_MAX} lines or {LINE_BYTES_MAX} bytes in a line",
            self.bytes_max
        );
        self.oversized.record(&error);
        Poll::Ready(Err(io::Error::other(error)))
    }
}

impl AsyncWrite for BoundedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(self.stream.as_mut().poll_write(context, bytes))?;
        let sent = &self.transferred.0.sent;
        // The stream has one writer.
        sent.store(sent.load(Relaxed) + written as u64, Relaxed);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_shutdown(context)
    }
}
