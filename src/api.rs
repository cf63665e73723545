//! The servers for Envoy: gRPC on one port, `/json` and health over HTTP on another.
//!
//! [`listener`] accepts connections and assigns each to a worker, which serves it to its end.

use std::sync::Arc;

use axum::Router;
use axum::routing::{any, get};
use http::StatusCode;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::CompressionEncoding;
use tonic::service::Routes;

use crate::api::admission::{Admission, Services};
use crate::api::bind::SocketFile;
use crate::api::budget::Budget;
use crate::api::call_metrics::RlsMetrics;
use crate::api::connection::Connections;
use crate::api::descriptors::ConnectionBounds;
use crate::api::json::JsonHandler;
use crate::api::listener::{Acceptor, Listeners, Worker};
use crate::api::request_size::MESSAGE_BYTES_MAX;
use crate::api::rls::Rls;
use crate::api::rls::generated::rate_limit_service_server::RateLimitServiceServer;
use crate::api::socket::{Accepted, ConnectionStream};
use crate::api::trial::TrialRls;
use crate::base::http::budget::HttpMetrics;
use crate::base::http::health::{healthcheck, ready};
use crate::base::net::client::ADMIN_PORT;
use crate::base::runtime::{Thread, WORKER};
use crate::base::shutdown::Lifecycle;
use crate::limiter::{self, Limiter};
use crate::telemetry::metric::Metrics;
use crate::telemetry::traces::Traces;
use crate::trial::Trial;

mod admission;
pub(crate) mod bind;
pub(crate) mod body;
pub mod budget;
pub mod call_metrics;
pub(crate) mod certificates;
mod codec;
pub mod connection;
pub mod convert;
pub mod decode;
pub(crate) mod descriptors;
pub mod handshakes;
mod health;
pub mod json;
pub(crate) mod listener;
pub(crate) mod messages;
mod reflection;
mod request_body;
pub mod request_size;
pub mod rls;
pub(crate) mod settings;
mod slots;
pub mod socket;
pub mod tls;
pub mod trial;

/// gRPC connections that wait to be taken by a worker. It takes microseconds, unless too many TLS
/// handshakes are in progress there.
// bound handovers_max: closed at once; tollgate_connections_rejected_total
const HANDOVERS_MAX: usize = 1_024;
/// HTTP connections that wait to be taken by a worker. More wait in the kernel's queue, without a
/// file descriptor.
const HTTP_HANDOVERS_MAX: usize = 8;

/// Everything that a worker serves. Clones share it.
#[derive(Debug, Clone)]
pub struct Api {
    lifecycle: Lifecycle,
    limiter: Arc<limiter::Shared>,
    connections: Connections,
    pub(crate) bounds: ConnectionBounds,
    budget: Arc<Budget>,
    metrics: RlsMetrics,
    health: health::Health,
    http_metrics: HttpMetrics,
    traces: Traces,
    /// Serves ShouldRateLimit beside another service.
    pub(crate) trial: Option<Trial>,
}

/// The threads that accept and serve.
#[derive(Debug)]
pub(crate) struct Running {
    threads: Vec<Thread>,
    /// Removed when all threads have ended.
    _socket_file: Option<SocketFile>,
}

impl Api {
    /// Registers the metrics.
    pub fn new(
        limiter: Arc<limiter::Shared>,
        connections: Connections,
        lifecycle: Lifecycle,
        http_metrics: HttpMetrics,
        traces: Traces,
        metrics: &Metrics,
    ) -> Self {
        Self {
            metrics: RlsMetrics::new(metrics),
            health: health::Health::new(lifecycle.clone(), limiter.clock().clone(), metrics),
            budget: Budget::new(metrics),
            limiter,
            connections,
            bounds: ConnectionBounds::default(),
            http_metrics,
            lifecycle,
            traces,
            trial: None,
        }
    }

    /// Starts the thread that accepts, and the worker threads.
    ///
    /// # Errors
    /// A thread or its runtime cannot be started.
    pub(crate) fn start(
        self,
        mut listeners: Listeners,
        workers: usize,
        metrics: &Metrics,
    ) -> anyhow::Result<Running> {
        let socket_file = listeners.socket_file.take();
        let stopping = self.lifecycle.stopping().clone();
        let mut threads = Vec::new();
        let mut queues = Vec::new();
        for number in 0..workers {
            let (grpc, grpc_incoming) = mpsc::channel(HANDOVERS_MAX);
            let (http, http_incoming) = mpsc::channel(HTTP_HANDOVERS_MAX);
            queues.push(Worker::new(grpc, http));
            let serving = self.clone().serve(grpc_incoming, http_incoming);
            threads.push(Thread::spawn(&format!("{WORKER}{number}"), Box::pin(serving))?);
        }
        // That of counters in memory: Redis is not used yet. On one machine the banner says enough.
        let problem = self.lifecycle.state().store_problem;
        let warning = problem.map(|problem| format!("memory store: {problem}"));
        let acceptor = Acceptor::new(queues, self.bounds.grpc, warning, metrics);
        let accepting = async move {
            stopping.run_until_cancelled(acceptor.run(listeners)).await;
        };
        threads.push(Thread::spawn("accept", Box::pin(accepting))?);
        Ok(Running { threads, _socket_file: socket_file })
    }

    /// Serves the connections of one worker on the current runtime, until the process stops and all
    /// have ended. Fuzz targets call it without a port.
    pub async fn serve(self, grpc: mpsc::Receiver<Accepted>, http: mpsc::Receiver<Accepted>) {
        let limiter = self.limiter.clone().open();
        let services = Arc::new(Services {
            rls: self.rls(limiter.clone()),
            trial: self.trial.as_ref().map(|trial| {
                let worker = trial.open(rls::PATH);
                TrialRls::new(worker, limiter.clone(), self.metrics.clone())
            }),
            others: self.other_services(),
            oversized: self.metrics.oversized.clone(),
        });
        let admission =
            || Admission { services: services.clone(), budget: self.budget.connection() };
        let stopping = self.lifecycle.stopping();
        let http_incoming =
            ReceiverStream::new(http).filter_map(ConnectionStream::open).map(|stream| {
                let peer = stream.peer;
                (stream, peer)
            });
        tokio::join!(
            self.connections.serve(grpc, admission, stopping),
            crate::base::http::serve(
                http_incoming,
                self.http_routes(limiter),
                stopping,
                self.bounds.http,
                &self.http_metrics,
            )
        );
    }

    /// ShouldRateLimit. As in envoyproxy/ratelimit, requests may be compressed; responses are not,
    /// which gRPC permits.
    fn rls(&self, limiter: Limiter) -> RateLimitServiceServer<Rls> {
        let rls = Rls::new(limiter, self.metrics.clone(), self.traces.clone());
        RateLimitServiceServer::new(rls)
            .accept_compressed(CompressionEncoding::Gzip)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Health and reflection.
    fn other_services(&self) -> Routes {
        let health = tonic_health::pb::health_server::HealthServer::new(self.health.clone())
            .accept_compressed(CompressionEncoding::Gzip)
            .max_decoding_message_size(MESSAGE_BYTES_MAX);
        Routes::from(reflection::add_to(Routes::new(health).into_axum_router())).prepare()
    }

    fn http_routes(&self, limiter: Limiter) -> Router {
        let json = JsonHandler {
            limiter,
            budget: self.budget.clone(),
            oversized: self.metrics.oversized.clone(),
            traces: self.traces.clone(),
        };
        Router::new()
            .route("/json", any(json::answer).with_state(json))
            .route("/healthcheck", any(healthcheck).with_state(self.lifecycle.clone()))
            .route("/ready", get(ready).with_state(self.lifecycle.clone()))
            .fallback(async || {
                (
                    StatusCode::NOT_FOUND,
                    format!("this is PORT, with /json, /healthcheck and /ready; {ADMIN_PORT}\n"),
                )
            })
    }
}

impl Running {
    /// Waits until every thread has ended.
    pub(crate) async fn finished(self) {
        for thread in self.threads {
            thread.ended().await;
        }
    }
}
