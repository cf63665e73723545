//! A connection: by TCP or a Unix socket, in plain text or not, and counted for as long as it is open.
//!
//! In plain text nothing lies between the server and the socket but a `match`. What TLS runs over is boxed: encrypting costs more.

use std::io;
use std::net::IpAddr;
use std::os::unix::net;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use crate::api::tls::Tls;
use crate::http::Peer;
use crate::telemetry::metric::Gauge;

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
                Stream::Tcp(stream)
            }
            Socket::Unix(stream) => Stream::Unix(UnixStream::from_std(stream).ok()?),
        };
        Some(Self { stream, ended: None, _open: accepted.open })
    }

    /// The same connection by TLS; `None` if the handshake fails, which closes it.
    pub async fn secured(self, tls: &Tls) -> Option<Self> {
        let plain: Box<dyn Plain> = match self.stream {
            Stream::Tcp(stream) => Box::new(stream),
            Stream::Unix(stream) => Box::new(stream),
            Stream::Tls(stream) => stream,
        };
        Some(Self { stream: Stream::Tls(Box::new(tls.accept(plain).await.ok()?)), ..self })
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
        if let Stream::Tcp(stream) = &self.stream { stream.peer() } else { None }
    }
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

/// The same call on whatever it is.
macro_rules! on_stream {
    ($connection:expr, $stream:ident => $call:expr) => {
        match &mut $connection.get_mut().stream {
            Stream::Tcp($stream) => $call,
            Stream::Unix($stream) => $call,
            Stream::Tls($stream) => $call,
        }
    };
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, stream => Pin::new(stream).poll_read(context, buffer))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        on_stream!(self, stream => Pin::new(stream).poll_write(context, bytes))
    }

    fn poll_write_vectored(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        on_stream!(self, stream => Pin::new(stream).poll_write_vectored(context, bytes))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Tcp(stream) => stream.is_write_vectored(),
            Stream::Unix(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, stream => Pin::new(stream).poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, stream => Pin::new(stream).poll_shutdown(context))
    }
}
