//! HTTP/1 server of a listener.
//!
//! A new connection can always be served: connections that wait for their client, or whose client
//! does not read, are closed first ([`budget`], [`activity`]).

use std::net::IpAddr;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_stream::{Stream, StreamExt as _};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use crate::base::http::activity::{TrackedSocket, tracked};
use crate::base::http::budget::{Bounds, Budget, HttpMetrics, Overload, client_of};
use crate::base::shutdown::nothing_owed;

pub(crate) mod accept;
mod activity;
pub mod budget;
pub mod callers;
pub(crate) mod health;
pub(crate) mod response_budget;

/// HTTP connections of a worker.
// bound http_connections_max: the one that has waited longest for its client is closed;
// tollgate_http_connections_full_total
const CONNECTIONS_MAX: usize = 1_024;
/// HTTP connections of a worker from one IPv4 address or IPv6 /64 network. It may be a proxy with
/// all callers of `/json` behind it.
// bound http_peer_connections_max: the one of that client that has waited longest for it is closed;
// tollgate_http_connections_full_total
const PEER_CONNECTIONS_MAX: usize = 768;
/// Connections of the admin listener, and of PROMETHEUS_ADDR. Kubelets, Prometheus and operators
/// need a handful.
// bound admin_connections_max: the one that has waited longest for its client is closed;
// tollgate_http_connections_full_total
const ADMIN_CONNECTIONS_MAX: usize = 128;
/// Connections of either from one IPv4 address or IPv6 /64 network. Clients of one node may share
/// an address.
// bound admin_peer_connections_max: the one of that client that has waited longest for it is
// closed; tollgate_http_connections_full_total
const ADMIN_PEER_CONNECTIONS_MAX: usize = 32;
/// Bounds of HOST:PORT, for each worker.
pub(crate) const SERVICE_BOUNDS: Bounds = Bounds {
    connections_max: CONNECTIONS_MAX,
    peer_connections_max: PEER_CONNECTIONS_MAX,
    overload: Overload::CloseNewest,
};
/// Bounds of the admin listener and of PROMETHEUS_ADDR.
pub(crate) const ADMIN_BOUNDS: Bounds = Bounds {
    connections_max: ADMIN_CONNECTIONS_MAX,
    peer_connections_max: ADMIN_PEER_CONNECTIONS_MAX,
    overload: Overload::CloseOldest,
};
/// Time for a client to send the head of an HTTP request, and for a connection to be idle.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of the head of an HTTP request: a little more than Envoy accepts by default. hyper's
/// default is 400 KiB.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// The address of the client of a request; `None` for a Unix socket. An extension of each request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RemoteAddress(pub(crate) Option<IpAddr>);

/// Serves the connections of `incoming`, each with the address of its client, until the process
/// stops and all responses are sent.
pub(crate) async fn serve<I>(
    incoming: impl Stream<Item = (I, Option<IpAddr>)>,
    router: Router,
    stopping: &CancellationToken,
    bounds: Bounds,
    metrics: &HttpMetrics,
) where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX);
    let mut budget = Budget::new(bounds, metrics);
    let connections = TaskTracker::new();
    let accept = async {
        let mut incoming = pin!(incoming);
        while let Some((connection, peer)) = incoming.next().await {
            let address = peer;
            let peer = peer.map(client_of);
            if !budget.make_room(peer) {
                continue;
            }
            let activity = budget.activity();
            let router = router.clone();
            let socket =
                TrackedSocket::new(connection, activity.clone(), metrics.write_timeouts.clone());
            let of_requests = activity.clone();
            let service = service_fn(move |request| {
                let activity = of_requests.clone();
                activity.begin();
                let mut request = tracked(request, activity.clone());
                request.extensions_mut().insert(RemoteAddress(address));
                let response = router.clone().oneshot(request);
                async move {
                    let response = response.await;
                    activity.end();
                    response
                }
            });
            let serving = builder.serve_connection(TokioIo::new(socket), service);
            let stopping = stopping.clone();
            let of_connection = activity.clone();
            let task = connections.spawn(async move {
                let mut serving = pin!(serving);
                let ended = tokio::select! {
                    ended = serving.as_mut() => ended,
                    () = stopping.cancelled() => {
                        serving.as_mut().graceful_shutdown();
                        tokio::select! {
                            ended = serving => ended,
                            () = nothing_owed(&stopping, || !of_connection.waits()) => Ok(()),
                        }
                    }
                };
                // Clients may disconnect, or speak another protocol.
                if let Err(error) = ended {
                    tracing::debug!(%error, "an HTTP connection ended");
                }
            });
            budget.add(peer, activity, task.abort_handle());
            // Lets it read what its client has sent already: until then it looks idle.
            tokio::task::yield_now().await;
        }
    };
    stopping.run_until_cancelled(accept).await;
    connections.close();
    connections.wait().await;
}
