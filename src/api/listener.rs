//! Binds the listeners for Envoy, accepts connections on a thread of its own, and assigns each to
//! the worker with the fewest.
//!
//! Envoys keep few connections for a long time. If the kernel assigned them by a hash
//! (SO_REUSEPORT), some cores would have most of the work and others none; and a second instance on
//! the same port would share the traffic unnoticed.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;
use socket2::Socket;
use tokio::net;
use tokio::sync::mpsc;

use crate::api::bind::{self, SocketFile};
use crate::api::settings::Settings;
use crate::api::slots::{Slot, Slots};
use crate::api::socket::{Accepted, OpenGuard};
use crate::base::http::accept::AcceptErrors;
use crate::telemetry::metric::{Counter, Gauge, Metrics};

/// The listeners for Envoy, bound.
#[derive(Debug)]
pub(crate) struct Listeners {
    /// TCP, or a Unix socket.
    grpc: Socket,
    http: TcpListener,
    /// The file of the Unix socket, if there is one. It is removed when it is dropped.
    pub(crate) socket_file: Option<SocketFile>,
    errors: AcceptErrors,
}

/// A listener on the runtime of the thread that accepts.
enum Listener {
    Tcp(net::TcpListener),
    Unix(net::UnixListener),
}

/// The queues of a worker, by [`Protocol`].
#[derive(Debug)]
pub(crate) struct Worker([Queue; 2]);

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
    grpc_connections_max: usize,
    /// For when the first client of another machine connects.
    remote_warning: Mutex<Option<String>>,
    open: Gauge,
    accepted: Counter,
    rejected: Counter,
    evicted: Counter,
}

impl Listeners {
    /// Binds gRPC and HTTP.
    ///
    /// # Errors
    /// One of them cannot be bound, such as when another process has the port.
    pub(crate) fn bind(settings: &Settings, errors: AcceptErrors) -> anyhow::Result<Self> {
        let (grpc, socket_file) = match &settings.grpc_uds {
            None => {
                let addr = (&*settings.grpc_host, settings.grpc_port);
                (bind::tcp(addr, "GRPC_HOST and GRPC_PORT")?.into(), None)
            }
            Some(path) => {
                let (listener, file) = bind::unix(Path::new(path), "GRPC_UDS")?;
                (listener.into(), Some(file))
            }
        };
        Ok(Self {
            grpc,
            http: bind::tcp((&settings.host, settings.port), "HOST and PORT")?,
            socket_file,
            errors,
        })
    }

    /// The bound address of gRPC, in the form that gRPC clients accept.
    ///
    /// # Errors
    /// The kernel does not return the address.
    pub(crate) fn grpc_addr(&self) -> io::Result<String> {
        let addr = self.grpc.local_addr()?;
        Ok(match addr.as_socket() {
            Some(addr) => addr.to_string(),
            None => {
                let path = addr.as_pathname().unwrap_or(Path::new(""));
                format!("unix:{}", path.display())
            }
        })
    }

    /// The bound address of HTTP.
    ///
    /// # Errors
    /// The kernel does not return the address.
    pub(crate) fn http_addr(&self) -> io::Result<SocketAddr> {
        self.http.local_addr()
    }
}

impl Listener {
    /// Registers a listener with the runtime of this thread.
    fn register(socket: Socket) -> io::Result<Self> {
        Ok(if socket.local_addr()?.is_unix() {
            Self::Unix(net::UnixListener::from_std(socket.into())?)
        } else {
            Self::Tcp(net::TcpListener::from_std(socket.into())?)
        })
    }

    /// A connection, and the address of its client; `None` on a Unix socket.
    async fn accept(&self) -> io::Result<(Socket, Option<IpAddr>)> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, addr) = listener.accept().await?;
                (stream.into_std()?.into(), Some(addr.ip()))
            }
            Self::Unix(listener) => (listener.accept().await?.0.into_std()?.into(), None),
        })
    }
}

impl Worker {
    /// A worker that receives its connections from these channels.
    pub(crate) fn new(grpc: mpsc::Sender<Accepted>, http: mpsc::Sender<Accepted>) -> Self {
        Self([grpc, http].map(|connections| Queue { connections, open: Arc::default() }))
    }

    fn queue(&self, protocol: Protocol) -> &Queue {
        &self.0[protocol as usize]
    }

    /// Open connections of both protocols.
    fn open(&self) -> usize {
        self.0.iter().map(|queue| queue.open.load(Relaxed)).sum()
    }
}

impl Acceptor {
    /// Registers the metrics.
    pub(crate) fn new(
        workers: Vec<Worker>,
        grpc_connections_max: usize,
        remote_warning: Option<String>,
        metrics: &Metrics,
    ) -> Self {
        Self {
            workers,
            grpc_connections_max,
            remote_warning: Mutex::new(remote_warning),
            open: metrics.gauge("tollgate_connections", "Open connections, gRPC and HTTP."),
            accepted: metrics.counter(
                "tollgate_connections_accepted_total",
                "Accepted connections, gRPC and HTTP.",
            ),
            rejected: metrics.counter(
                "tollgate_connections_rejected_total",
                "Connections closed at once, because grpc_connections_max were open or no worker could take them.",
            ),
            evicted: metrics.counter(
                "tollgate_connections_evicted_total",
                "gRPC connections closed for a new one before their preface of HTTP/2 had arrived, because grpc_connections_max were open.",
            ),
        }
    }

    /// Accepts until it is dropped, which closes the ports.
    pub(crate) async fn run(&self, listeners: Listeners) {
        let Listeners { grpc, http, errors, .. } = listeners;
        tokio::join!(
            self.accept(grpc, Protocol::Grpc, errors.clone()),
            self.accept(http.into(), Protocol::Http, errors)
        );
    }

    async fn accept(&self, listener: Socket, protocol: Protocol, mut errors: AcceptErrors) {
        let listener = match Listener::register(listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "cannot accept connections"),
        };
        // Each worker bounds its HTTP connections: neither kind can lock out the other.
        let mut slots = (protocol == Protocol::Grpc)
            .then(|| Slots::new(self.grpc_connections_max, self.evicted.clone()));
        loop {
            let (socket, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    errors.pause(&error).await;
                    continue;
                }
            };
            self.accepted.inc();
            if peer.is_some_and(|peer| !peer.to_canonical().is_loopback())
                && let Some(warning) = self.remote_warning.lock().take()
            {
                tracing::warn!("{warning}");
            }
            let slot = match &mut slots {
                None => None,
                Some(slots) => match slots.slot().await {
                    None => {
                        self.rejected.inc();
                        continue;
                    }
                    slot => slot,
                },
            };
            self.assign(socket, peer, slot, protocol).await;
        }
    }

    /// Sends a connection to the worker with the fewest, or closes it.
    async fn assign(
        &self,
        socket: Socket,
        peer: Option<IpAddr>,
        slot: Option<Slot>,
        protocol: Protocol,
    ) {
        let Some(worker) = self.workers.iter().min_by_key(|worker| worker.open()) else {
            return self.rejected.inc();
        };
        let Queue { connections, open } = worker.queue(protocol);
        let open = OpenGuard::new(open.clone(), self.open.clone()).with_slot(slot);
        let accepted = Accepted { socket, peer, open };
        let is_taken = match protocol {
            Protocol::Grpc => connections.try_send(accepted).is_ok(),
            // A worker frees a slot for every HTTP connection, if not at once. Until then probes
            // wait in the kernel's queue.
            Protocol::Http => connections.send(accepted).await.is_ok(),
        };
        if !is_taken {
            self.rejected.inc();
        }
    }
}
