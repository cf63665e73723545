//! Accepts connections on a thread of its own, and hands each to the worker with the fewest.
//!
//! Envoys keep few connections for a long time. If the kernel spread them by a hash (SO_REUSEPORT),
//! some cores would have most of the work and some none; and a second instance on the same port
//! would share the traffic unnoticed.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::{fmt, io};

use tokio::sync::mpsc;

use crate::api::bind::{self, SocketFile};
use crate::api::connection::{Accepted, Open, Socket};
use crate::http::accept::AcceptErrors;
use crate::shutdown::{Lifecycle, Phase};
use crate::telemetry::metric::{Counter, Gauge, Metrics};

/// How many gRPC connections are open at once. An Envoy has one or a few, so this is a large fleet;
/// beyond it connections are closed. HTTP connections are bounded by each worker: neither kind
/// locks out the other.
pub const GRPC_CONNECTIONS_MAX: usize = 16_384;

/// Listeners that are bound already.
#[derive(Debug)]
pub struct Listeners {
    grpc: Listener<TcpListener, UnixListener>,
    http: TcpListener,
    socket_file: Option<SocketFile>,
    errors: AcceptErrors,
}

/// Where to serve gRPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrpcBind<'s> {
    /// A host and a port.
    Port(&'s str, u16),
    /// The path of a Unix socket.
    Path(&'s Path),
}

/// Where gRPC is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GrpcAddr {
    /// An address and a port.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// Where a worker takes its connections from.
#[derive(Debug)]
pub struct Worker {
    grpc: WorkerQueue,
    http: WorkerQueue,
}

/// How connections of one listener get to a worker.
#[derive(Debug)]
struct WorkerQueue {
    connections: mpsc::Sender<Accepted>,
    open: Arc<AtomicUsize>,
}

/// A listener of [`Listeners`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Grpc,
    Http,
}

/// Accepts.
#[derive(Debug)]
pub struct Acceptor {
    listeners: Listeners,
    workers: Vec<Worker>,
    metrics: ListenMetrics,
}

/// What gRPC is accepted from.
#[derive(Debug)]
enum Listener<T, U> {
    Tcp(T),
    Unix(U),
}

#[derive(Debug)]
struct ListenMetrics {
    open: Gauge,
    accepted: Counter,
    refused: Counter,
}

impl Listeners {
    /// Binds both listeners, with what is to be done about accept errors.
    ///
    /// # Errors
    /// One of them cannot be bound, such as when another process has it.
    pub fn bind(
        grpc: GrpcBind<'_>,
        http: (&str, u16),
        errors: AcceptErrors,
    ) -> anyhow::Result<Self> {
        let (grpc, socket_file) = match grpc {
            GrpcBind::Port(host, port) => (
                Listener::Tcp(bind::tcp((host, port), "GRPC_HOST and GRPC_PORT")?),
                None,
            ),
            GrpcBind::Path(path) => {
                let (listener, file) = bind::unix(path, "GRPC_UDS")?;
                (Listener::Unix(listener), Some(file))
            }
        };
        Ok(Self {
            grpc,
            http: bind::tcp(http, "HOST and PORT")?,
            socket_file,
            errors,
        })
    }

    /// Where gRPC is served.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn grpc_addr(&self) -> io::Result<GrpcAddr> {
        match &self.grpc {
            Listener::Tcp(listener) => listener.local_addr().map(GrpcAddr::Tcp),
            Listener::Unix(listener) => listener
                .local_addr()
                .map(|addr| GrpcAddr::Unix(addr.as_pathname().unwrap_or(Path::new("")).to_owned())),
        }
    }

    /// Where HTTP is served.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn http_addr(&self) -> io::Result<SocketAddr> {
        self.http.local_addr()
    }

    /// The file of the Unix socket, if there is one: whoever outlives all others keeps it.
    pub fn take_socket_file(&mut self) -> Option<SocketFile> {
        self.socket_file.take()
    }
}

impl fmt::Display for GrpcAddr {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => addr.fmt(formatter),
            // As gRPC's clients write it.
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

impl Listener<TcpListener, UnixListener> {
    /// The same on the runtime of this thread.
    fn take_over(self) -> io::Result<Listener<tokio::net::TcpListener, tokio::net::UnixListener>> {
        Ok(match self {
            Self::Tcp(listener) => Listener::Tcp(tokio::net::TcpListener::from_std(listener)?),
            Self::Unix(listener) => Listener::Unix(tokio::net::UnixListener::from_std(listener)?),
        })
    }
}

impl Listener<tokio::net::TcpListener, tokio::net::UnixListener> {
    async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => listener
                .accept()
                .await
                .and_then(|(stream, _)| stream.into_std())
                .map(Socket::Tcp),
            Self::Unix(listener) => listener
                .accept()
                .await
                .and_then(|(stream, _)| stream.into_std())
                .map(Socket::Unix),
        }
    }
}

impl Worker {
    /// A worker that takes its connections from these channels.
    pub fn new(grpc: mpsc::Sender<Accepted>, http: mpsc::Sender<Accepted>) -> Self {
        let queue = |connections| WorkerQueue {
            connections,
            open: Arc::default(),
        };
        Self {
            grpc: queue(grpc),
            http: queue(http),
        }
    }

    fn queue(&self, protocol: Protocol) -> &WorkerQueue {
        match protocol {
            Protocol::Grpc => &self.grpc,
            Protocol::Http => &self.http,
        }
    }

    /// How many connections it has open.
    fn open(&self) -> usize {
        self.grpc.open.load(Relaxed) + self.http.open.load(Relaxed)
    }
}

impl Acceptor {
    /// Accepts at these listeners, for these workers.
    pub fn new(listeners: Listeners, workers: Vec<Worker>, metrics: &Metrics) -> Self {
        Self {
            listeners,
            workers,
            metrics: ListenMetrics::new(metrics),
        }
    }

    /// Accepts until the process stops; then the ports are closed.
    pub async fn run(self, lifecycle: &Lifecycle) {
        let Self {
            listeners,
            workers,
            metrics,
        } = self;
        let (grpc, http) = match (
            listeners.grpc.take_over(),
            Listener::Tcp(listeners.http).take_over(),
        ) {
            (Ok(grpc), Ok(http)) => (grpc, http),
            (Err(error), _) | (_, Err(error)) => {
                return tracing::error!(%error, "cannot accept connections");
            }
        };
        tokio::select! {
            () = lifecycle.reached(Phase::Stopping) => {}
            () = metrics.accept(&grpc, &workers, Protocol::Grpc, listeners.errors.clone()) => {}
            () = metrics.accept(&http, &workers, Protocol::Http, listeners.errors) => {}
        }
    }
}

impl ListenMetrics {
    fn new(metrics: &Metrics) -> Self {
        Self {
            open: metrics.gauge("tollgate_connections", "Connections that are open, gRPC and HTTP."),
            accepted: metrics.counter("tollgate_connections_accepted_total", "Connections that were accepted, gRPC and HTTP."),
            refused: metrics.counter(
                "tollgate_connections_rejected_total",
                "Connections that were closed at once, because grpc_connections_max were open or no worker could take them.",
            ),
        }
    }

    /// Accepts for as long as it is polled.
    async fn accept(
        &self,
        listener: &Listener<tokio::net::TcpListener, tokio::net::UnixListener>,
        workers: &[Worker],
        protocol: Protocol,
        mut errors: AcceptErrors,
    ) {
        loop {
            match listener.accept().await {
                Ok(socket) => self.assign(socket, workers, protocol).await,
                Err(error) => errors.pause(&error).await,
            }
        }
    }

    async fn assign(&self, socket: Socket, workers: &[Worker], protocol: Protocol) {
        self.accepted.inc();
        let open = || {
            workers
                .iter()
                .map(|worker| worker.queue(protocol).open.load(Relaxed))
                .sum::<usize>()
        };
        let has_room = protocol == Protocol::Http || open() < GRPC_CONNECTIONS_MAX;
        let Some(worker) = workers
            .iter()
            .min_by_key(|worker| worker.open())
            .filter(|_| has_room)
        else {
            return self.refused.inc();
        };
        let WorkerQueue { connections, open } = worker.queue(protocol);
        let accepted = Accepted::new(socket, Open::new(open.clone(), self.open.clone()));
        let is_taken = match protocol {
            Protocol::Grpc => connections.try_send(accepted).is_ok(),
            // A worker always makes room for the next HTTP connection, if not at once: until then,
            // probes wait in the kernel's queue.
            Protocol::Http => connections.send(accepted).await.is_ok(),
        };
        if !is_taken {
            self.refused.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn http_and_grpc_do_not_lock_out_each_other() {
        let (grpc, mut grpc_taken) = mpsc::channel(2);
        let (http, mut http_taken) = mpsc::channel(2);
        let workers = [Worker::new(grpc, http)];
        let listener = ListenMetrics::new(&Metrics::new());
        let assign = |protocol| {
            let (here, _there) =
                std::os::unix::net::UnixStream::pair().expect("sockets can be made");
            listener.assign(Socket::Unix(here), &workers, protocol)
        };
        workers[0].grpc.open.store(GRPC_CONNECTIONS_MAX, Relaxed);
        assign(Protocol::Grpc).await;
        assign(Protocol::Http).await;
        assert!(grpc_taken.try_recv().is_err() && http_taken.try_recv().is_ok());
        assert_eq!(listener.refused.get(), 1);

        workers[0]
            .grpc
            .open
            .store(GRPC_CONNECTIONS_MAX - 1, Relaxed);
        workers[0].http.open.store(GRPC_CONNECTIONS_MAX, Relaxed);
        assign(Protocol::Grpc).await;
        assert!(grpc_taken.try_recv().is_ok());
    }
}
