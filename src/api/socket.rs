//! The byte stream of a connection: TCP or a Unix socket, plain or TLS, counted while it is open.
//!
//! Reading spends tokio's cooperative budget. A client that sends faster than it can be served,
//! such as one that opens and resets streams without end, gets [`TURN_BYTES`] at a time; then the
//! other connections of the worker have their turn.

use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{Socket, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Notify;
use tokio::task::coop;

use crate::api::slots::Slot;
use crate::api::tls::Tls;
use crate::telemetry::metric::Gauge;

/// The preface of HTTP/2.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes that a connection reads before others have their turn, and once more what one read
/// returns. Some 300 calls, so 3 ms.
pub(crate) const TURN_BYTES: usize = 32 << 10;
/// Bytes per unit of a task's budget; tokio gives it 128 for a turn.
const READ_UNIT_BYTES: usize = TURN_BYTES / 128;
/// A peer that does not acknowledge is closed after 30 s and nine probes (Linux's default), so 75
/// s: conntrack tables forget an idle connection after minutes at the earliest.
const TCP_KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(Duration::from_secs(5));

/// An accepted connection on its way to a worker.
#[derive(Debug)]
pub struct Accepted {
    /// Nonblocking.
    pub socket: Socket,
    /// The address of its client; `None` on a Unix socket.
    pub peer: Option<IpAddr>,
    /// Counts it.
    pub open: OpenGuard,
}

/// Counts an open connection while it exists.
#[derive(Debug)]
pub struct OpenGuard {
    of_worker: Arc<AtomicUsize>,
    all: Gauge,
    slot: Option<Slot>,
}

/// A connection on the runtime of its worker.
pub(crate) struct ConnectionStream {
    // Encrypted ones cost more than a call through a table.
    bytes: Box<dyn Duplex>,
    /// The address of its client; `None` on a Unix socket.
    pub(crate) peer: Option<IpAddr>,
    /// Bytes that [`Self::read_preface`] has read and HTTP/2 has not.
    unread: Vec<u8>,
    _open: OpenGuard,
}

/// A transport of bytes, below or above TLS.
trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

impl OpenGuard {
    /// Counts one more connection, of a worker and of the process.
    pub fn new(of_worker: Arc<AtomicUsize>, all: Gauge) -> Self {
        of_worker.fetch_add(1, Relaxed);
        all.inc();
        Self { of_worker, all, slot: None }
    }

    /// Has the slot of a gRPC connection, too.
    pub(crate) fn with_slot(mut self, slot: Option<Slot>) -> Self {
        self.slot = slot;
        self
    }

    /// See [`Slot::take_eviction`].
    pub(crate) fn take_eviction(&mut self) -> Option<Arc<Notify>> {
        self.slot.as_mut()?.take_eviction()
    }
}

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.of_worker.fetch_sub(1, Relaxed);
        self.all.dec();
    }
}

impl ConnectionStream {
    /// Registers a socket with the runtime of this thread; `None` if it was closed meanwhile.
    pub(crate) fn open(accepted: Accepted) -> Option<Self> {
        let Accepted { socket, peer, open } = accepted;
        let bytes: Box<dyn Duplex> = if peer.is_some() {
            // Responses are small, and none of them waits for another.
            socket.set_tcp_nodelay(true).ok()?;
            socket.set_tcp_keepalive(&TCP_KEEPALIVE).ok()?;
            Box::new(TcpStream::from_std(socket.into()).ok()?)
        } else {
            Box::new(UnixStream::from_std(socket.into()).ok()?)
        };
        Some(Self { bytes, peer, unread: Vec::new(), _open: open })
    }

    /// Makes the TLS handshake; `None` if it fails. `on_hello` is called when the client has begun
    /// it.
    pub(crate) async fn encrypt(self, tls: &Tls, on_hello: impl FnOnce()) -> Option<Self> {
        Some(Self { bytes: Box::new(tls.accept(self.bytes, on_hello).await?), ..self })
    }

    /// Reads the preface of HTTP/2, or as much as shows that it is none, which HTTP/2 then reports.
    pub(crate) async fn read_preface(&mut self) -> io::Result<()> {
        while self.unread.len() < PREFACE.len() && PREFACE.starts_with(&self.unread) {
            if self.bytes.read_buf(&mut self.unread).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }
}

impl AsyncRead for ConnectionStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        if !stream.unread.is_empty() {
            let count = stream.unread.len().min(buffer.remaining());
            buffer.put_slice(&stream.unread[..count]);
            stream.unread.drain(..count);
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut stream.bytes).poll_read(context, buffer);
        spend(buffer.filled().len() - before, context);
        polled
    }
}

/// Spends the cost of these bytes from the task's budget. When nothing is left, the next read is
/// pending until the task's next turn.
fn spend(read: usize, context: &mut Context<'_>) {
    for _ in 0..read / READ_UNIT_BYTES {
        match coop::poll_proceed(context) {
            Poll::Ready(unit) => unit.made_progress(),
            Poll::Pending => return,
        }
    }
}

/// Writes without spending the budget: what was read must be answered, else a client that never
/// stops sending would get no response.
fn unbudgeted<T>(
    context: &mut Context<'_>,
    write: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Poll<T> {
    pin!(coop::unconstrained(poll_fn(write))).poll(context)
}

impl AsyncWrite for ConnectionStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let stream = &mut self.bytes;
        unbudgeted(context, |context| Pin::new(&mut *stream).poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let stream = &mut self.bytes;
        unbudgeted(context, |context| Pin::new(&mut *stream).poll_write_vectored(context, bytes))
    }

    fn is_write_vectored(&self) -> bool {
        self.bytes.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.bytes).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.bytes).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use tokio::io::AsyncWriteExt as _;

    use super::*;
    use crate::telemetry::metric::Metrics;

    #[tokio::test]
    async fn one_turn_reads_a_bounded_number_of_bytes_and_can_write() {
        let (mut client, server) =
            std::os::unix::net::UnixStream::pair().expect("there are sockets");
        client.write_all(&vec![0; 4 * TURN_BYTES]).expect("the kernel holds them");
        server.set_nonblocking(true).expect("it is a socket");
        let open =
            OpenGuard::new(Arc::default(), Metrics::new().gauge("open", "Open connections."));
        let accepted = Accepted { socket: server.into(), peer: None, open };
        let mut stream = ConnectionStream::open(accepted).expect("it is open");
        // The runtime learns here that it can be read and written.
        stream.write_all(b"hello").await.expect("it is open");
        stream.read_u8().await.expect("it is open");
        for _ in 0..3 {
            let mut turn = 0;
            poll_fn(|context| {
                let mut bytes = [0; 8 << 10];
                let mut buffer = ReadBuf::new(&mut bytes);
                while let Poll::Ready(read) = Pin::new(&mut stream).poll_read(context, &mut buffer)
                {
                    read.expect("it is open");
                    turn += buffer.filled().len();
                    buffer.clear();
                }
                let written = Pin::new(&mut stream).poll_write(context, b"response");
                assert!(written.is_ready());
                Poll::Ready(())
            })
            .await;
            assert!((1..=TURN_BYTES).contains(&turn), "{turn}");
            tokio::task::yield_now().await;
        }
    }
}
