//! Accepts connections on a thread of its own, and hands each to the worker with the fewest.
//!
//! Envoys keep few connections for a long time. If the kernel spread them by a hash (SO_REUSEPORT), some cores would have most of the
//! work and some none; and a second instance on the same port would share the traffic unnoticed.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tonic::transport::server::Connected;

use crate::shutdown::{Lifecycle, Phase};
use crate::telemetry::metric::{Counter, Gauge, Metrics};

/// How many connections are open at once. An Envoy has one or a few, so this is a large fleet; beyond it connections are closed.
pub const CONNECTIONS_MAX: usize = 16_384;
/// After accept failed for want of something, such as file descriptors, it will not be there in the next microsecond.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Ports that are bound already.
#[derive(Debug)]
pub struct Doors {
    grpc: TcpListener,
    http: TcpListener,
}

/// Where a worker takes its connections from.
#[derive(Debug)]
pub struct Worker {
    grpc: mpsc::Sender<Accepted>,
    http: mpsc::Sender<Accepted>,
    open: Arc<AtomicUsize>,
}

/// A connection on its way to a worker.
#[derive(Debug)]
pub struct Accepted {
    stream: std::net::TcpStream,
    open: Open,
}

/// A connection on its worker.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    _open: Open,
}

/// Accepts.
#[derive(Debug)]
pub struct Acceptor {
    doors: Doors,
    workers: Vec<Worker>,
    metrics: ListenMetrics,
}

/// Counts an open connection for as long as it lives.
#[derive(Debug)]
struct Open {
    of_worker: Arc<AtomicUsize>,
    all: Gauge,
}

#[derive(Debug)]
struct ListenMetrics {
    open: Gauge,
    accepted: Counter,
    refused: Counter,
    failed: Counter,
}

impl Doors {
    /// Binds both ports.
    ///
    /// # Errors
    /// One of them cannot be bound, such as when another process has it.
    pub fn bind(grpc: (&str, u16), http: (&str, u16)) -> anyhow::Result<Self> {
        Ok(Self { grpc: bind(grpc, "GRPC_HOST and GRPC_PORT")?, http: bind(http, "HOST and PORT")? })
    }

    /// Where gRPC is served.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn grpc_addr(&self) -> io::Result<SocketAddr> {
        self.grpc.local_addr()
    }

    /// Where HTTP is served.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn http_addr(&self) -> io::Result<SocketAddr> {
        self.http.local_addr()
    }
}

/// Binds a port; `settings` are the names of what chose it.
///
/// # Errors
/// It cannot be bound.
pub fn bind((host, port): (&str, u16), settings: &str) -> anyhow::Result<TcpListener> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let listener = TcpListener::bind((host, port)).with_context(|| format!("bind {host} port {port} ({settings})"))?;
    listener.set_nonblocking(true).context("make a listener nonblocking")?;
    Ok(listener)
}

impl Worker {
    /// A worker that takes its connections from these channels.
    pub fn new(grpc: mpsc::Sender<Accepted>, http: mpsc::Sender<Accepted>) -> Self {
        Self { grpc, http, open: Arc::default() }
    }
}

impl Acceptor {
    /// Accepts at these doors, for these workers.
    pub fn new(doors: Doors, workers: Vec<Worker>, metrics: &Metrics) -> Self {
        let metrics = ListenMetrics {
            open: metrics.gauge("tollgate_connections", "Connections that are open, gRPC and HTTP."),
            accepted: metrics.counter("tollgate_connections_accepted_total", "Connections that were accepted, gRPC and HTTP."),
            failed: metrics
                .counter("tollgate_accept_errors_total", "Tries to accept a connection that failed, for want of file descriptors for one."),
            refused: metrics.counter(
                "tollgate_connections_refused_total",
                "Connections that were closed at once, because connections_max were open or no worker could take them.",
            ),
        };
        Self { doors, workers, metrics }
    }

    /// Accepts until the process stops; then the ports are closed.
    pub async fn run(self, lifecycle: &Lifecycle) {
        let Self { doors, workers, metrics } = self;
        let (grpc, http) = match (tokio::net::TcpListener::from_std(doors.grpc), tokio::net::TcpListener::from_std(doors.http)) {
            (Ok(grpc), Ok(http)) => (grpc, http),
            (Err(error), _) | (_, Err(error)) => return tracing::error!(%error, "cannot accept connections"),
        };
        let mut stop = std::pin::pin!(lifecycle.reached(Phase::Stopping));
        let mut failing = false;
        loop {
            let (accepted, to): (_, fn(&Worker) -> &mpsc::Sender<Accepted>) = tokio::select! {
                () = &mut stop => return,
                accepted = grpc.accept() => (accepted, |worker| &worker.grpc),
                accepted = http.accept() => (accepted, |worker| &worker.http),
            };
            match accepted.and_then(|(stream, _)| stream.into_std()) {
                Ok(stream) => {
                    failing = false;
                    metrics.hand_over(stream, &workers, to);
                }
                Err(error) => {
                    metrics.failed.inc();
                    // Told once: without file descriptors it goes on for as long as they are short.
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(%error, "cannot accept connections; trying again until it works");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

impl ListenMetrics {
    fn hand_over(&self, stream: std::net::TcpStream, workers: &[Worker], to: fn(&Worker) -> &mpsc::Sender<Accepted>) {
        self.accepted.inc();
        let fewest = workers.iter().min_by_key(|worker| worker.open.load(Relaxed));
        let room = usize::try_from(self.open.get()).is_ok_and(|open| open < CONNECTIONS_MAX);
        let taken = fewest.filter(|_| room).is_some_and(|worker| {
            let open = Open::new(worker.open.clone(), self.open.clone());
            to(worker).try_send(Accepted { stream, open }).is_ok()
        });
        if !taken {
            self.refused.inc();
        }
    }
}

impl Open {
    fn new(of_worker: Arc<AtomicUsize>, all: Gauge) -> Self {
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
        let stream = TcpStream::from_std(accepted.stream).ok()?;
        // Answers are small, and none of them waits for another.
        stream.set_nodelay(true).ok()?;
        Some(Self { stream, _open: accepted.open })
    }
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
