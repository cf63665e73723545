//! Envoy's door: gRPC on one port, JSON over HTTP and health on another, each connection on the
//! thread that has the fewest.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::routing::{any, get};
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;

use crate::api::admission::AdmissionLayer;
use crate::api::bind::SocketFile;
use crate::api::budget::{Budget, STREAMS_PER_CONNECTION_MAX};
use crate::api::connection::{Accepted, Connection};
use crate::api::grpc::{Connections, Orders};
use crate::api::json::{JsonHandler, Messages};
use crate::api::listener::Worker;
use crate::api::rls::{Calls, Rls, RlsServer};
use crate::http::SERVICE_BOUNDS;
use crate::http::budget::HttpMetrics;
use crate::limiter::{self, Limiter};
use crate::proto::DESCRIPTOR_SET;
use crate::runtime::Thread;
use crate::shutdown::Lifecycle;
use crate::telemetry::metric::{Counter, Metrics};
use crate::telemetry::traces::Traces;

pub mod admission;
pub mod bind;
pub mod budget;
pub mod connection;
pub mod convert;
pub mod grpc;
pub mod health;
pub mod json;
pub mod listener;
pub mod request_size;
pub mod rls;
pub mod settings;
pub mod tls;

/// The largest message, and body of `/json`, in bytes. As in the reference, whose library has this
/// default.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Connections that wait for a thread to take them over. It takes microseconds, unless too many TLS
/// handshakes are under way there.
const HANDOVERS_MAX: usize = 1_024;
/// Calls of one connection that its client reset before they were accepted; with more it is closed
/// with ENHANCE_YOUR_CALM.
///
/// After a stall every call that Envoy waits for has timed out, so all that arrive in one turn
/// ([`TURN_BYTES`](connection::TURN_BYTES)) are reset: some 300 with their messages, and 800 of the
/// smallest. An attacker that sends only a head and a reset for each has 1,800.
const RESETS_PENDING_MAX: usize = 1_024;
/// After this time without a frame a client is asked for one: a PING, which HTTP/2 libraries answer
/// by themselves.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// A client that does not answer by then is gone. A process that was stopped for a while is not.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// The services that reflection lists.
const SERVICES: [&str; 2] = [
    "envoy.service.ratelimit.v3.RateLimitService",
    "grpc.health.v1.Health",
];

/// Everything that is answered here. Clones share it.
#[derive(Clone)]
pub struct Api {
    lifecycle: Lifecycle,
    limiter: Arc<limiter::Shared>,
    connections: Connections,
    budget: Budget,
    calls: Calls,
    health: health::Health,
    messages: Messages,
    oversized: Counter,
    http_metrics: HttpMetrics,
    traces: Traces,
}

/// Threads that serve. [`Running::finished`] returns when they are done.
#[derive(Debug)]
pub struct Running {
    threads: Vec<Thread>,
    /// There until the very end, however it comes.
    _socket_file: Option<SocketFile>,
}

impl Api {
    /// Puts the listeners together.
    ///
    /// # Errors
    /// The descriptors that were compiled in cannot be read.
    pub fn new(
        limiter: Arc<limiter::Shared>,
        connections: Connections,
        lifecycle: Lifecycle,
        http_metrics: HttpMetrics,
        traces: Traces,
        metrics: &Metrics,
    ) -> anyhow::Result<Self> {
        let oversized = metrics.counter(
            "tollgate_oversized_requests_total",
            "gRPC messages and bodies of /json that were refused because they had more than 4 MiB.",
        );
        Ok(Self {
            calls: Calls::of("ShouldRateLimit", metrics),
            health: health::Health::new(lifecycle.clone(), limiter.clock().clone(), metrics),
            messages: Messages::new()?,
            budget: Budget::new(metrics),
            limiter,
            connections,
            oversized,
            http_metrics,
            lifecycle,
            traces,
        })
    }

    /// Starts the threads: one that accepts, and `workers` that serve.
    ///
    /// # Errors
    /// A thread or its runtime cannot be started.
    pub fn start(
        self,
        mut listeners: listener::Listeners,
        workers: usize,
        metrics: &Metrics,
    ) -> anyhow::Result<Running> {
        let socket_file = listeners.take_socket_file();
        let mut threads = Vec::new();
        let mut hands = Vec::new();
        for number in 0..workers {
            let (grpc, grpc_incoming) = mpsc::channel(HANDOVERS_MAX);
            let (http, http_incoming) = mpsc::channel(HANDOVERS_MAX);
            hands.push(Worker::new(grpc, http));
            threads.push(Thread::spawn(
                &format!("worker-{number}"),
                self.clone().serve(grpc_incoming, http_incoming),
            )?);
        }
        let acceptor = listener::Acceptor::new(listeners, hands, metrics);
        let lifecycle = self.lifecycle.clone();
        threads.push(Thread::spawn("accept", async move {
            acceptor.run(&lifecycle).await
        })?);
        Ok(Running {
            threads,
            _socket_file: socket_file,
        })
    }

    /// Serves the connections of one worker, on the runtime that this is called on, until the
    /// process stops. Fuzz targets use it without a port.
    pub async fn serve(self, grpc: mpsc::Receiver<Accepted>, http: mpsc::Receiver<Accepted>) {
        let limiter = self.limiter.clone().open();
        let http_incoming = ReceiverStream::new(http).filter_map(Connection::take_over);
        let http_served = crate::http::serve(
            http_incoming,
            self.http(limiter.clone()),
            &self.lifecycle,
            SERVICE_BOUNDS,
            &self.http_metrics,
        );
        let (grpc_served, ()) = tokio::join!(self.serve_grpc(limiter, grpc), http_served);
        if let Err(error) = grpc_served {
            tracing::error!(error = format!("{error:#}"), "the gRPC server cannot start");
        }
    }

    async fn serve_grpc(
        &self,
        limiter: Limiter,
        incoming: mpsc::Receiver<Accepted>,
    ) -> anyhow::Result<()> {
        let reflection = || {
            let builder = tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(DESCRIPTOR_SET)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
            SERVICES.into_iter().fold(
                builder,
                tonic_reflection::server::Builder::with_service_name,
            )
        };
        let (budget, oversized) = (self.budget.clone(), self.oversized.clone());
        let rls = Rls::new(limiter, self.calls.clone(), self.traces.clone());
        let server = tonic::transport::Server::builder()
            .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
            .http2_max_pending_accept_reset_streams(Some(RESETS_PENDING_MAX))
            .http2_keepalive_interval(Some(PING_INTERVAL))
            .http2_keepalive_timeout(Some(PING_TIMEOUT));
        let routes = Routes::new(RlsServer::new(rls))
            .add_service(tonic_health::pb::health_server::HealthServer::new(
                self.health.clone(),
            ))
            .add_service(reflection().build_v1().context("build reflection v1")?)
            .add_service(
                reflection()
                    .build_v1alpha()
                    .context("build reflection v1alpha")?,
            )
            .prepare();
        let serve = move |connection: Connection, orders: Orders| {
            let mut server = server
                .clone()
                .layer(AdmissionLayer::new(budget.connection(), oversized.clone()));
            if let Some((age, grace)) = orders.force_close_after {
                server = server
                    .max_connection_age(age)
                    .max_connection_age_grace(grace);
            }
            // It must not end before the connection does: the library takes that for the end of
            // all.
            let incoming = tokio_stream::once(Ok::<_, std::io::Error>(connection))
                .chain(tokio_stream::pending());
            let serving = server.serve_with_incoming_shutdown(routes.clone(), incoming, orders.go);
            async move {
                if let Err(error) = serving.await {
                    tracing::error!(error = format!("{error:#}"), "a gRPC server ended");
                }
            }
        };
        self.connections
            .serve(incoming, &self.lifecycle, serve)
            .await;
        Ok(())
    }

    fn http(&self, limiter: Limiter) -> Router {
        let json = JsonHandler::new(
            limiter,
            self.messages.clone(),
            self.budget.clone(),
            self.oversized.clone(),
            self.traces.clone(),
        );
        Router::new()
            .route("/json", any(json::answer).with_state(json))
            .route(
                "/healthcheck",
                any(crate::http::health::healthcheck).with_state(self.lifecycle.clone()),
            )
            .route(
                "/ready",
                get(crate::http::health::ready).with_state(self.lifecycle.clone()),
            )
    }
}

impl Running {
    /// Waits until every thread has ended.
    pub async fn finished(self) {
        for thread in self.threads {
            thread.ended().await;
        }
    }
}
