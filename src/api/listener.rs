//! Binds the listeners for Envoy, accepts connections on a thread of its own, and assigns each to the
//! worker with the fewest.
//!
//! Envoys keep few connections for a long time. If the kernel assigned them by a hash
//! (SO_REUSEPORT), some cores would have most of the work and others none; and a second instance on
//! the same port would share the traffic unnoticed.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::{fmt, io};

use tokio::sync::mpsc;

use crate::api::bind::{self, SocketFile};
use crate::api::socket::{Accepted, OpenGuard, Socket};
use crate::http::accept::AcceptErrors;
use crate::telemetry::metric::{Counter, Gauge, Metrics};

/// Open gRPC connections. An Envoy has one or a few, so this is a large fleet; beyond it connections
/// are closed. HTTP connections are bounded by each worker: neither kind can lock out the other.
const GRPC_CONNECTIONS_MAX: usize = 16_384;

/// The listeners for Envoy, bound.
#[derive(Debug)]
pub(crate) struct Listeners {
    grpc: Listener<TcpListener, UnixListener>,
    http: TcpListener,
    socket_file: Option<SocketFile>,
    errors: AcceptErrors,
}

/// Where to bind gRPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GrpcBind<'s> {
    /// A host and a port.
    Port(&'s str, u16),
    /// The path of a Unix socket.
    Path(&'s Path),
}

/// Where gRPC is bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GrpcAddr {
    /// An address and a port.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// The queues of a worker, by protocol.
#[derive(Debug)]
pub(crate) struct Worker {
    grpc: Queue,
    http: Queue,
}

/// Connections of one protocol on their way to a worker.
#[derive(Debug)]
struct Queue {
    connections: mpsc::Sender<Accepted>,
    /// Connections that are open, queued ones included.
    open: Arc<AtomicUsize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Grpc,
    Http,
}

/// Accepts connections and assigns them to workers.
#[derive(Debug)]
pub(crate) struct Acceptor {
    workers: Vec<Worker>,
    open: Gauge,
    accepted: Counter,
    rejected: Counter,
}

/// A listener of TCP or of a Unix socket, on the runtime or not.
#[derive(Debug)]
enum Listener<T, U> {
    Tcp(T),
    Unix(U),
}

impl Listeners {
    /// Binds gRPC and HTTP.
    ///
    /// # Errors
    /// One of them cannot be bound, such as when another process has the port.
    pub(crate) fn bind(
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

    /// Where gRPC is bound.
    ///
    /// # Errors
    /// The kernel does not return the address.
    pub(crate) fn grpc_addr(&self) -> io::Result<GrpcAddr> {
        match &self.grpc {
            Listener::Tcp(listener) => listener.local_addr().map(GrpcAddr::Tcp),
            Listener::Unix(listener) => listener
                .local_addr()
                .map(|addr| GrpcAddr::Unix(addr.as_pathname().unwrap_or(Path::new("")).to_owned())),
        }
    }

    /// Where HTTP is bound.
    ///
    /// # Errors
    /// The kernel does not return the address.
    pub(crate) fn http_addr(&self) -> io::Result<SocketAddr> {
        self.http.local_addr()
    }

    /// The file of the Unix socket, if there is one. It is removed when it is dropped.
    pub(crate) fn take_socket_file(&mut self) -> Option<SocketFile> {
        self.socket_file.take()
    }
}

impl fmt::Display for GrpcAddr {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => addr.fmt(formatter),
            // The form that gRPC clients take.
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

impl Listener<TcpListener, UnixListener> {
    /// Registers the listener with the runtime of this thread.
    fn register(self) -> io::Result<Listener<tokio::net::TcpListener, tokio::net::UnixListener>> {
        Ok(match self {
            Self::Tcp(listener) => Listener::Tcp(tokio::net::TcpListener::from_std(listener)?),
            Self::Unix(listener) => Listener::Unix(tokio::net::UnixListener::from_std(listener)?),
        })
    }
}

impl Listener<tokio::net::TcpListener, tokio::net::UnixListener> {
    async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => {
                let (stream, addr) = listener.accept().await?;
                Ok(Socket::Tcp(stream.into_std()?, addr.ip()))
            }
            Self::Unix(listener) => listener.accept().await?.0.into_std().map(Socket::Unix),
        }
    }
}

impl Worker {
    /// A worker that receives its connections from these channels.
    pub(crate) fn new(grpc: mpsc::Sender<Accepted>, http: mpsc::Sender<Accepted>) -> Self {
        let queue = |connections| Queue {
            connections,
            open: Arc::default(),
        };
        Self {
            grpc: queue(grpc),
            http: queue(http),
        }
    }

    fn queue(&self, protocol: Protocol) -> &Queue {
        match protocol {
            Protocol::Grpc => &self.grpc,
            Protocol::Http => &self.http,
        }
    }

    /// Open connections of both protocols.
    fn open(&self) -> usize {
        self.grpc.open.load(Relaxed) + self.http.open.load(Relaxed)
    }
}

impl Acceptor {
    /// Registers the metrics.
    pub(crate) fn new(workers: Vec<Worker>, metrics: &Metrics) -> Self {
        Self {
            workers,
            open: metrics.gauge("tollgate_connections", "Open connections, gRPC and HTTP."),
            accepted: metrics.counter(
                "tollgate_connections_accepted_total",
                "Accepted connections, gRPC and HTTP.",
            ),
            rejected: metrics.counter(
                "tollgate_connections_rejected_total",
                "Connections closed at once, because grpc_connections_max were open or no worker could take them.",
            ),
        }
    }

    /// Accepts until it is dropped, which closes the ports.
    pub(crate) async fn run(&self, listeners: Listeners) {
        let http = Listener::Tcp(listeners.http).register();
        let (grpc, http) = match (listeners.grpc.register(), http) {
            (Ok(grpc), Ok(http)) => (grpc, http),
            (Err(error), _) | (_, Err(error)) => {
                return tracing::error!(%error, "cannot accept connections");
            }
        };
        tokio::join!(
            self.accept(&grpc, Protocol::Grpc, listeners.errors.clone()),
            self.accept(&http, Protocol::Http, listeners.errors)
        );
    }

    async fn accept(
        &self,
        listener: &Listener<tokio::net::TcpListener, tokio::net::UnixListener>,
        protocol: Protocol,
        mut errors: AcceptErrors,
    ) {
        loop {
            match listener.accept().await {
                Ok(socket) => self.assign(socket, protocol).await,
                Err(error) => errors.pause(&error).await,
            }
        }
    }

    /// Sends a connection to the worker with the fewest, or closes it.
    async fn assign(&self, socket: Socket, protocol: Protocol) {
        self.accepted.inc();
        let open = self
            .workers
            .iter()
            .map(|worker| worker.queue(protocol).open.load(Relaxed));
        let is_full = protocol == Protocol::Grpc && open.sum::<usize>() >= GRPC_CONNECTIONS_MAX;
        let Some(worker) = self
            .workers
            .iter()
            .min_by_key(|worker| worker.open())
            .filter(|_| !is_full)
        else {
            return self.rejected.inc();
        };
        let Queue { connections, open } = worker.queue(protocol);
        let accepted = Accepted::new(socket, OpenGuard::new(open.clone(), self.open.clone()));
        let is_taken = match protocol {
            Protocol::Grpc => connections.try_send(accepted).is_ok(),
            // A worker makes room for every HTTP connection, if not at once: until then probes wait
            // in the kernel's queue.
            Protocol::Http => connections.send(accepted).await.is_ok(),
        };
        if !is_taken {
            self.rejected.inc();
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
        let acceptor = Acceptor::new(vec![Worker::new(grpc, http)], &Metrics::new());
        let assign = |protocol| {
            let (here, _there) =
                std::os::unix::net::UnixStream::pair().expect("sockets can be made");
            acceptor.assign(Socket::Unix(here), protocol)
        };
        let open = |protocol| &acceptor.workers[0].queue(protocol).open;
        open(Protocol::Grpc).store(GRPC_CONNECTIONS_MAX, Relaxed);
        assign(Protocol::Grpc).await;
        assign(Protocol::Http).await;
        assert!(grpc_taken.try_recv().is_err() && http_taken.try_recv().is_ok());
        assert_eq!(acceptor.rejected.get(), 1);

        open(Protocol::Grpc).store(GRPC_CONNECTIONS_MAX - 1, Relaxed);
        open(Protocol::Http).store(GRPC_CONNECTIONS_MAX, Relaxed);
        assign(Protocol::Grpc).await;
        assert!(grpc_taken.try_recv().is_ok());
    }
}
