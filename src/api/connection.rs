//! The life of a gRPC connection on its worker: TLS handshake, HTTP/2 preface, calls, GOAWAY at its
//! age, end.
//!
//! hyper serves HTTP/2 here rather than tonic's server, whose `max_connection_age` has no jitter
//! and closes connections after a grace period without a GOAWAY.

use std::pin::pin;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::admission::Admission;
use crate::api::budget::STREAMS_PER_CONNECTION_MAX;
use crate::api::handshakes::{HandshakeSlot, Handshakes};
use crate::api::socket::{Accepted, ConnectionStream};
use crate::api::tls::Tls;
use crate::base::shutdown::nothing_owed;
use crate::base::time::Span;
use crate::telemetry::metric::{Counter, Metrics};

/// Time for a client to send the preface of HTTP/2, which every client sends at once.
// bound preface_timeout: closed; tollgate_preface_timeouts_total
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);
/// Calls of one connection that its client reset before they were accepted.
///
/// After a stall every call that Envoy waits for has timed out, so all that arrive in one turn
/// ([`TURN_BYTES`](crate::api::socket::TURN_BYTES)) are reset: some 300 with their messages, and
/// 800 of the smallest. An attacker that sends only a head and a reset for each has 1,800.
const RESETS_PENDING_MAX: usize = 1_024;
/// Silence of a gRPC client. HTTP/2 libraries answer a PING themselves.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// Time for the answer to a PING. A process that was stopped for a moment answers within it.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// The age of a connection is within a tenth of the setting, as in grpc-go.
const JITTER_PARTS: u64 = 10;

/// When gRPC connections end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// GOAWAY at this age, plus or minus a tenth; `None` for never.
    pub max_age: Option<Span>,
    /// Close this long after the GOAWAY, whatever is in flight; `None` for never.
    pub grace: Option<Span>,
}

/// Serves the gRPC connections of the process. Clones share it.
#[derive(Debug, Clone)]
pub struct Connections {
    http2: http2::Builder<TokioExecutor>,
    tls: Option<Tls>,
    limits: ConnectionLimits,
    handshakes_full: Counter,
    preface_late: Counter,
    aged: Counter,
    force_closed: Counter,
}

impl Connections {
    /// Registers the metrics. Without `tls` connections are in plain text.
    pub fn new(tls: Option<Tls>, limits: ConnectionLimits, metrics: &Metrics) -> Self {
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            // No gRPC client reads it.
            .auto_date_header(false)
            .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
            .max_pending_accept_reset_streams(RESETS_PENDING_MAX)
            // A client that exceeds max_concurrent_streams has the streams beyond it reset, and
            // keeps its connection.
            .max_local_error_reset_streams(None)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT);
        Self {
            http2,
            tls,
            limits,
            handshakes_full: metrics.counter(
                "tollgate_tls_handshakes_full_total",
                "Connections that waited because 256 TLS handshakes were in progress on their worker (handshakes_max).",
            ),
            preface_late: metrics.counter(
                "tollgate_preface_timeouts_total",
                "gRPC connections closed because the preface of HTTP/2 did not arrive within 5 s.",
            ),
            aged: metrics.counter(
                "tollgate_connections_aged_total",
                "gRPC connections that got a GOAWAY because of GRPC_MAX_CONNECTION_AGE.",
            ),
            force_closed: metrics.counter(
                "tollgate_connections_force_closed_total",
                "gRPC connections closed with calls in flight because of GRPC_MAX_CONNECTION_AGE_GRACE.",
            ),
        }
    }

    /// Serves the connections of one worker. Returns when the process stops and all have ended.
    pub(crate) async fn serve(
        &self,
        mut incoming: mpsc::Receiver<Accepted>,
        admission: impl Fn() -> Admission,
        stopping: &CancellationToken,
    ) {
        let mut handshakes =
            self.tls.clone().map(|tls| Handshakes::new(tls, self.handshakes_full.clone()));
        let connections = TaskTracker::new();
        let accept = async {
            while let Some(mut accepted) = incoming.recv().await {
                let slot = match &mut handshakes {
                    Some(handshakes) => Some(handshakes.slot().await),
                    None => None,
                };
                let hello = slot.as_ref().map(HandshakeSlot::hello);
                let common = self.clone();
                let admission = admission();
                let stopping = stopping.clone();
                let task = connections.spawn(async move {
                    let eviction = accepted.open.take_eviction();
                    let opened = tokio::select! {
                        opened = common.open(accepted, slot) => opened,
                        () = stopping.cancelled() => None,
                        () = notified(eviction.as_deref()) => None,
                    };
                    drop(eviction);
                    if let Some(stream) = opened {
                        common.serve_connection(stream, admission, &stopping).await;
                    }
                });
                if let Some((handshakes, hello)) = handshakes.as_mut().zip(hello) {
                    handshakes.add(hello, task.abort_handle());
                }
            }
        };
        stopping.run_until_cancelled(accept).await;
        // Closes those that no task has taken.
        drop(incoming);
        connections.close();
        connections.wait().await;
    }

    /// Makes the TLS handshake and reads the preface; `None` if the client fails to.
    async fn open(
        &self,
        accepted: Accepted,
        slot: Option<HandshakeSlot>,
    ) -> Option<ConnectionStream> {
        let mut stream = ConnectionStream::open(accepted)?;
        if let Some((tls, slot)) = self.tls.as_ref().zip(slot) {
            stream = stream.encrypt(tls, || slot.on_hello()).await?;
        }
        match timeout(PREFACE_TIMEOUT, stream.read_preface()).await {
            Ok(read) => read.ok().map(|()| stream),
            Err(_) => {
                self.preface_late.inc();
                None
            }
        }
    }

    async fn serve_connection(
        &self,
        stream: ConnectionStream,
        admission: Admission,
        stopping: &CancellationToken,
    ) {
        let budget = admission.budget.clone();
        let service = service_fn(move |request| admission.clone().call(request));
        let mut serving = pin!(self.http2.serve_connection(TokioIo::new(stream), service));
        let grace = tokio::select! {
            ended = serving.as_mut() => return log_end(ended),
            () = sleep(self.limits.draw_age()) => {
                self.aged.inc();
                self.limits.grace.map(Duration::from)
            }
            () = stopping.cancelled() => None,
        };
        serving.as_mut().graceful_shutdown();
        tokio::select! {
            ended = serving => log_end(ended),
            () = sleep(grace) => self.force_closed.inc(),
            // SHUTDOWN_TIMEOUT bounds the answers that are owed.
            () = nothing_owed(stopping, || budget.owes_answers()) => {}
        }
    }
}

impl ConnectionLimits {
    /// The age of one connection: those that were opened together do not end together.
    fn draw_age(self) -> Option<Duration> {
        let age = self.max_age?.as_micros();
        let tenth = age / JITTER_PARTS;
        let micros = fastrand::u64(age - tenth..=age.saturating_add(tenth));
        Some(Duration::from_micros(micros))
    }
}

/// Clients may disconnect, or speak another protocol.
fn log_end(ended: Result<(), hyper::Error>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a gRPC connection ended");
    }
}

/// Waits for a notification; forever without a sender.
async fn notified(notify: Option<&Notify>) {
    match notify {
        Some(notify) => notify.notified().await,
        None => std::future::pending().await,
    }
}

/// Sleeps; forever without a duration.
async fn sleep(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_within_a_tenth_of_the_setting() {
        let drawn = |max_age| {
            let limits = ConnectionLimits { max_age: Some(max_age), grace: None };
            (0..10_000).filter_map(move |_| limits.draw_age())
        };
        let ages: Vec<_> = drawn(Span::from_secs(1_000)).collect();
        let earliest = ages.iter().min().expect("there are some").as_secs();
        let latest = ages.iter().max().expect("there are some").as_secs();
        assert!((900..920).contains(&earliest), "{earliest}");
        assert!((1_080..=1_100).contains(&latest), "{latest}");
        // Too short for a tenth, and as long as possible.
        for max_age in [5, u64::MAX].map(Span::from_micros) {
            assert!(drawn(max_age).all(|age| age >= Duration::from_micros(5)));
        }
    }
}
