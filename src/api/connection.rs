//! A connection: by TCP or a Unix socket, in plain text or not, and counted for as long as it is
//! open.
//!
//! In plain text little lies between the server and the socket but a `match`. What TLS runs over is
//! boxed: encrypting costs more.
//!
//! Reading is charged to the budget that tokio gives each task for a turn. A client that sends
//! faster than it can be served, such as one that opens and resets streams without end, gets
//! [`TURN_BYTES`] at a time, and then the other connections of the worker have their turns.

use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::os::unix::net;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::task::coop;
use tokio::time::{Sleep, sleep};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use crate::api::tls::Tls;
use crate::http::Peer;
use crate::telemetry::metric::{Counter, Gauge};

/// How long a client may take to send the preface of HTTP/2, which every client sends at once.
pub const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);
/// "PRI * HTTP/2.0" and what follows.
const PREFACE_BYTES: usize = 24;
/// What is read of a connection before others have their turn, and once more what one read gives.
/// Some 300 calls, so 3 ms.
pub const TURN_BYTES: usize = 32 << 10;
/// What one unit of a task's budget reads; tokio gives it 128 for a turn.
const READ_UNIT_BYTES: usize = TURN_BYTES / 128;
/// A peer that does not even acknowledge is gone after 30 s and nine probes (Linux's default), so
/// 75 s: conntrack tables forget an idle connection after minutes at the earliest.
const TCP_KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(30))
    .with_interval(Duration::from_secs(5));

/// A connection on its way to a worker.
#[derive(Debug)]
pub struct Accepted {
    socket: Socket,
    open: Open,
}

/// What was accepted.
#[derive(Debug)]
pub enum Socket {
    /// On a port.
    Tcp(std::net::TcpStream),
    /// On a path.
    Unix(net::UnixStream),
}

/// A connection on its worker.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    preface: Option<Box<Preface>>,
    /// Dropped with the connection, which tells whoever waits for its end.
    ended: Option<oneshot::Sender<()>>,
    _open: Open,
}

/// What TLS can run over.
pub trait Plain: AsyncRead + AsyncWrite + std::fmt::Debug + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + std::fmt::Debug + Send + Unpin> Plain for S {}

/// Counts an open connection for as long as it lives.
#[derive(Debug)]
pub struct Open {
    of_worker: Arc<AtomicUsize>,
    all: Gauge,
}

/// What is missing of a preface, and until when it is waited for.
#[derive(Debug)]
struct Preface {
    missing: usize,
    deadline: Pin<Box<Sleep>>,
    late: Counter,
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<Box<dyn Plain>>>),
}

impl Accepted {
    /// A connection that counts.
    pub fn new(socket: Socket, open: Open) -> Self {
        Self { socket, open }
    }
}

impl Open {
    /// Counts one more, of a worker and of all.
    pub fn new(of_worker: Arc<AtomicUsize>, all: Gauge) -> Self {
        of_worker.fetch_add(1, Relaxed);
        all.inc();
        Self { of_worker, all }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.of_worker.fetch_sub(1, Relaxed);
        self.all.dec();
    }
}

impl Connection {
    /// Takes a connection over to the runtime of this thread; `None` if it has ended meanwhile.
    pub fn take_over(accepted: Accepted) -> Option<Self> {
        let stream = match accepted.socket {
            Socket::Tcp(stream) => {
                let stream = TcpStream::from_std(stream).ok()?;
                // Answers are small, and none of them waits for another.
                stream.set_nodelay(true).ok()?;
                SockRef::from(&stream)
                    .set_tcp_keepalive(&TCP_KEEPALIVE)
                    .ok()?;
                Stream::Tcp(stream)
            }
            Socket::Unix(stream) => Stream::Unix(UnixStream::from_std(stream).ok()?),
        };
        Some(Self {
            stream,
            preface: None,
            ended: None,
            _open: accepted.open,
        })
    }

    /// The same connection by TLS; `None` if the handshake fails, which closes it. `on_hello` is
    /// called when the client began it.
    pub async fn secured(self, tls: &Tls, on_hello: impl FnOnce()) -> Option<Self> {
        let plain: Box<dyn Plain> = match self.stream {
            Stream::Tcp(stream) => Box::new(stream),
            Stream::Unix(stream) => Box::new(stream),
            Stream::Tls(stream) => stream,
        };
        Some(Self {
            stream: Stream::Tls(Box::new(tls.accept(plain, on_hello).await.ok()?)),
            ..self
        })
    }

    /// From now on the preface of HTTP/2 has to come within [`PREFACE_TIMEOUT`]; else reading
    /// fails, and `late` is incremented.
    pub fn expect_preface(&mut self, late: Counter) {
        self.preface = Some(Box::new(Preface {
            missing: PREFACE_BYTES,
            deadline: Box::pin(sleep(PREFACE_TIMEOUT)),
            late,
        }));
    }

    /// Resolves when the connection has ended.
    pub fn ended(&mut self) -> oneshot::Receiver<()> {
        let (here, there) = oneshot::channel();
        self.ended = Some(here);
        there
    }
}

impl Peer for Connection {
    fn peer(&self) -> Option<IpAddr> {
        if let Stream::Tcp(stream) = &self.stream {
            stream.peer()
        } else {
            None
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

/// The same call on whatever it is.
macro_rules! on_stream {
    ($connection:expr, $stream:ident => $call:expr) => {
        match &mut $connection.stream {
            Stream::Tcp($stream) => $call,
            Stream::Unix($stream) => $call,
            Stream::Tls($stream) => $call,
        }
    };
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let connection = self.get_mut();
        let before = buffer.filled().len();
        let polled = on_stream!(connection, stream => Pin::new(stream).poll_read(context, buffer));
        let read = buffer.filled().len() - before;
        if let Some(preface) = &mut connection.preface {
            if preface.is_late(read, context) {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            if preface.missing == 0 {
                connection.preface = None;
            }
        }
        spend(read, context);
        polled
    }
}

impl Preface {
    /// Whether it is late, after so many bytes more.
    fn is_late(&mut self, read: usize, context: &mut Context<'_>) -> bool {
        self.missing = self.missing.saturating_sub(read);
        let late = self.missing > 0 && read == 0 && self.deadline.as_mut().poll(context).is_ready();
        if late {
            self.late.inc();
        }
        late
    }
}

/// Spends what so many bytes cost of the turn of this task. When nothing is left, the next read is
/// pending until its next turn.
fn spend(read: usize, context: &mut Context<'_>) {
    for _ in 0..read / READ_UNIT_BYTES {
        match coop::poll_proceed(context) {
            Poll::Ready(unit) => unit.made_progress(),
            Poll::Pending => return,
        }
    }
}

/// Does this outside of the task's turn. What was read must be answered, else a client that never
/// stops would get no answer.
fn beyond_turn<T>(
    context: &mut Context<'_>,
    write: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Poll<T> {
    pin!(coop::unconstrained(poll_fn(write))).poll(context)
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let connection = self.get_mut();
        beyond_turn(
            context,
            |context| on_stream!(connection, stream => Pin::new(stream).poll_write(context, bytes)),
        )
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let connection = self.get_mut();
        beyond_turn(
            context,
            |context| on_stream!(connection, stream => Pin::new(stream).poll_write_vectored(context, bytes)),
        )
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Tcp(stream) => stream.is_write_vectored(),
            Stream::Unix(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let connection = self.get_mut();
        on_stream!(connection, stream => Pin::new(stream).poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let connection = self.get_mut();
        on_stream!(connection, stream => Pin::new(stream).poll_shutdown(context))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::telemetry::metric::Metrics;

    #[tokio::test]
    async fn a_turn_reads_a_bounded_part_of_what_has_arrived_and_still_writes() {
        let (mut client, server) = net::UnixStream::pair().expect("there are sockets");
        client
            .write_all(&vec![0; 4 * TURN_BYTES])
            .expect("the kernel holds them");
        server.set_nonblocking(true).expect("it is a socket");
        let open = Open::new(
            Arc::default(),
            Metrics::new().gauge("open", "Open connections."),
        );
        let mut connection =
            Connection::take_over(Accepted::new(Socket::Unix(server), open)).expect("it is open");
        // The runtime learns here that it can be read and written.
        connection.write_all(b"hello").await.expect("it is open");
        connection.read_u8().await.expect("it is open");
        for _ in 0..3 {
            let mut turn = 0;
            poll_fn(|context| {
                let mut bytes = [0; 8 << 10];
                let mut buffer = ReadBuf::new(&mut bytes);
                while let Poll::Ready(read) =
                    Pin::new(&mut connection).poll_read(context, &mut buffer)
                {
                    read.expect("it is open");
                    turn += buffer.filled().len();
                    buffer.clear();
                }
                assert!(
                    Pin::new(&mut connection)
                        .poll_write(context, b"answer")
                        .is_ready()
                );
                Poll::Ready(())
            })
            .await;
            assert!((1..=TURN_BYTES).contains(&turn), "{turn}");
            tokio::task::yield_now().await;
        }
    }
}
