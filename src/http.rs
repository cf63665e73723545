//! Serves HTTP/1 on the connections of a listener, until the process stops.
//!
//! Whatever clients do, a new connection finds room: clients that do not send a request, do not
//! read a response or hold many connections are closed first (`budget.rs`, `watched.rs`).

use std::net::IpAddr;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_stream::{Stream, StreamExt as _};
use tower::ServiceExt as _;

use crate::http::budget::{Bounds, Budget, HttpMetrics, Overload, client_of};
use crate::http::watched::{Watch, WatchedSocket};
use crate::shutdown::{Lifecycle, Phase};

pub mod accept;
pub mod budget;
pub mod health;
mod watched;

/// The bounds of HOST:PORT, for each worker. A single address may be a proxy that all callers of
/// /json are behind.
pub const SERVICE_BOUNDS: Bounds = Bounds {
    connections_max: 1_024,
    peer_connections_max: 768,
    overload: Overload::CloseNewest,
};
/// The bounds of the admin listener and of PROMETHEUS_ADDR. Kubelets, Prometheus and operators need
/// a handful of connections; those of one node may share an address.
pub const ADMIN_BOUNDS: Bounds = Bounds {
    connections_max: 128,
    peer_connections_max: 32,
    overload: Overload::CloseOldest,
};
/// How long a client may take to send the head of a request, and how long a connection may be idle.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// A little more than the headers that Envoy accepts by default (60 KiB). The library's default
/// would be 400 KiB.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// A connection whose client is known.
pub trait Peer {
    /// Its address; `None` if it has none, or is gone.
    fn peer(&self) -> Option<IpAddr>;
}

impl Peer for TcpStream {
    fn peer(&self) -> Option<IpAddr> {
        self.peer_addr().ok().map(|addr| addr.ip())
    }
}

/// Serves every connection of `incoming`, and returns when the process stops and all of them have
/// their answers.
pub async fn serve<I>(
    incoming: impl Stream<Item = I>,
    router: Router,
    lifecycle: &Lifecycle,
    bounds: Bounds,
    metrics: &HttpMetrics,
) where
    I: AsyncRead + AsyncWrite + Peer + Send + Unpin + 'static,
{
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX);
    let graceful = GracefulShutdown::new();
    let mut budget = Budget::new(bounds, metrics);
    let mut connections = JoinSet::new();
    {
        let mut incoming = pin!(incoming);
        let mut stop = pin!(lifecycle.reached(Phase::Stopping));
        loop {
            tokio::select! {
                () = &mut stop => break,
                Some(ended) = connections.join_next_with_id() => budget.remove(ended.map_or_else(|error| error.id(), |(id, ())| id)),
                connection = incoming.next() => {
                    let Some(connection) = connection else { break };
                    let peer = connection.peer().map(client_of);
                    if !budget.make_room(peer) {
                        continue;
                    }
                    let (activity, router) = (budget.activity(), router.clone());
                    let watch = Watch::new(activity.clone());
                    let socket = WatchedSocket::new(connection, watch.clone(), metrics.write_timeouts.clone());
                    let service = service_fn(move |request| {
                        let (watch, answer) = (watch.clone(), router.clone().oneshot(watch.begin(request)));
                        async move {
                            let response = answer.await;
                            watch.end();
                            response
                        }
                    });
                    let serving = graceful.watch(builder.serve_connection(TokioIo::new(socket), service));
                    let task = connections.spawn(async move {
                        // A client that hangs up, or speaks something else, is its own business.
                        if let Err(error) = serving.await {
                            tracing::debug!(%error, "an HTTP connection ended");
                        }
                    });
                    budget.add(peer, activity, task);
                    // It reads what its client has sent already: until then it looks idle, however busy it is.
                    tokio::task::yield_now().await;
                }
            }
        }
    }
    graceful.shutdown().await;
    while connections.join_next().await.is_some() {}
}
