//! Serves HTTP/1 on connections that somebody else accepted, until the process stops.

use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio_stream::{Stream, StreamExt as _};

use crate::shutdown::{Lifecycle, Phase};
use crate::telemetry::metric::{Counter, Metrics};

pub mod health;

/// How many connections one door serves at once on one thread; the next one waits in the kernel's queue.
pub const HTTP_CONNECTIONS_MAX: usize = 1_024;
/// Whoever has not sent its headers by then is not going to.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Counts how often a door was full, for [`serve`].
pub fn full_counter(metrics: &Metrics) -> Counter {
    metrics.counter("tollgate_http_connections_full_total", "Times that an HTTP door had as many connections as it serves at once (1,024).")
}

/// Serves every connection of `incoming`, and returns when the process stops and all of them have their answers.
pub async fn serve<I>(incoming: impl Stream<Item = I>, router: Router, lifecycle: &Lifecycle, full: &Counter)
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    {
        let mut incoming = pin!(incoming);
        let mut stop = pin!(lifecycle.reached(Phase::Stopping));
        loop {
            tokio::select! {
                () = &mut stop => break,
                _ = connections.join_next(), if !connections.is_empty() => {}
                connection = incoming.next(), if connections.len() < HTTP_CONNECTIONS_MAX => {
                    let Some(connection) = connection else { break };
                    if connections.len() + 1 == HTTP_CONNECTIONS_MAX {
                        full.inc();
                    }
                    let service = TowerToHyperService::new(router.clone());
                    let serving = graceful.watch(builder.serve_connection(TokioIo::new(connection), service));
                    connections.spawn(async move {
                        // A client that hangs up, or speaks something else, is its own business.
                        if let Err(error) = serving.await {
                            tracing::debug!(%error, "an HTTP connection ended");
                        }
                    });
                }
            }
        }
    }
    graceful.shutdown().await;
    while connections.join_next().await.is_some() {}
}
