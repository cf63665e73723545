//! Envoy's door: gRPC on one port, JSON over HTTP and health on another, each connection on the thread that has the fewest.

use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::routing::{any, get};
use http::HeaderValue;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tower::util::MapResponseLayer;

use crate::api::bind::SocketFile;
use crate::api::connection::{Accepted, Connection};
use crate::api::grpc::{Connections, Orders};
use crate::api::json::{JsonDoor, Messages};
use crate::api::listen::Worker;
use crate::api::rls::{Calls, Rls};
use crate::http::SERVICE_BOUNDS;
use crate::http::budget::HttpMetrics;
use crate::limiter::{self, Limiter};
use crate::proto::DESCRIPTOR_SET;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;
use crate::runtime::Thread;
use crate::shutdown::Lifecycle;
use crate::telemetry::metric::{Counter, Metrics};
use crate::telemetry::traces::Traces;

pub mod bind;
pub mod connection;
pub mod convert;
pub mod grpc;
pub mod health;
pub mod json;
pub mod listen;
pub mod rls;
pub mod settings;
pub mod tls;

/// The largest message, and body of `/json`, in bytes. As in the reference, whose library has this default.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Connections that wait for a thread to take them over. It takes microseconds, unless too many TLS handshakes are under way there.
const HANDOVERS_MAX: usize = 1_024;
/// Calls of one connection that its client gave up before they were looked at. After a stall every call that Envoy waits for times out
/// at once; the library's 20 would take that for an attack and close the connection.
const RESETS_PENDING_MAX: usize = 4_096;
const GRPC_STATUS: &str = "grpc-status";
const OUT_OF_RANGE: HeaderValue = HeaderValue::from_static("11");
const RESOURCE_EXHAUSTED: HeaderValue = HeaderValue::from_static("8");
/// The services that reflection lists.
const SERVICES: [&str; 2] = ["envoy.service.ratelimit.v3.RateLimitService", "grpc.health.v1.Health"];

/// Everything that is answered here. Clones share it.
#[derive(Clone)]
pub struct Api {
    lifecycle: Lifecycle,
    limiter: Arc<limiter::Shared>,
    connections: Connections,
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
    /// Puts the doors together.
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
    pub fn start(self, mut doors: listen::Doors, workers: usize, metrics: &Metrics) -> anyhow::Result<Running> {
        let socket_file = doors.take_socket_file();
        let mut threads = Vec::new();
        let mut hands = Vec::new();
        for number in 0..workers {
            let (grpc, grpc_incoming) = mpsc::channel(HANDOVERS_MAX);
            let (http, http_incoming) = mpsc::channel(HANDOVERS_MAX);
            hands.push(Worker::new(grpc, http));
            threads.push(Thread::spawn(&format!("worker-{number}"), self.clone().serve(grpc_incoming, http_incoming))?);
        }
        let acceptor = listen::Acceptor::new(doors, hands, metrics);
        let lifecycle = self.lifecycle.clone();
        threads.push(Thread::spawn("accept", async move { acceptor.run(&lifecycle).await })?);
        Ok(Running { threads, _socket_file: socket_file })
    }

    async fn serve(self, grpc: mpsc::Receiver<Accepted>, http: mpsc::Receiver<Accepted>) {
        let limiter = self.limiter.clone().open();
        let http_incoming = ReceiverStream::new(http).filter_map(Connection::take_over);
        let http_served =
            crate::http::serve(http_incoming, self.http(limiter.clone()), &self.lifecycle, SERVICE_BOUNDS, &self.http_metrics);
        let (grpc_served, ()) = tokio::join!(self.serve_grpc(limiter, grpc), http_served);
        if let Err(error) = grpc_served {
            tracing::error!(error = format!("{error:#}"), "the gRPC server cannot start");
        }
    }

    async fn serve_grpc(&self, limiter: Limiter, incoming: mpsc::Receiver<Accepted>) -> anyhow::Result<()> {
        let reflection = || {
            let builder = tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(DESCRIPTOR_SET)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
            SERVICES.into_iter().fold(builder, tonic_reflection::server::Builder::with_service_name)
        };
        let oversized = self.oversized.clone();
        let rls = Rls::new(limiter, self.calls.clone(), self.traces.clone());
        let server = tonic::transport::Server::builder()
            .http2_max_pending_accept_reset_streams(Some(RESETS_PENDING_MAX))
            .layer(MapResponseLayer::new(move |response| tell_oversized(response, &oversized)));
        let routes = Routes::new(RateLimitServiceServer::new(rls).max_decoding_message_size(MESSAGE_BYTES_MAX))
            .add_service(tonic_health::pb::health_server::HealthServer::new(self.health.clone()))
            .add_service(reflection().build_v1().context("build reflection v1")?)
            .add_service(reflection().build_v1alpha().context("build reflection v1alpha")?)
            .prepare();
        let serve = move |connection: Connection, orders: Orders| {
            let mut server = server.clone();
            if let Some((age, grace)) = orders.cut_after {
                server = server.max_connection_age(age).max_connection_age_grace(grace);
            }
            // It must not end before the connection does: the library takes that for the end of all.
            let incoming = tokio_stream::once(Ok::<_, std::io::Error>(connection)).chain(tokio_stream::pending());
            let serving = server.serve_with_incoming_shutdown(routes.clone(), incoming, orders.go);
            async move {
                if let Err(error) = serving.await {
                    tracing::error!(error = format!("{error:#}"), "a gRPC server ended");
                }
            }
        };
        self.connections.serve(incoming, &self.lifecycle, serve).await;
        Ok(())
    }

    fn http(&self, limiter: Limiter) -> Router {
        let json = JsonDoor::new(limiter, self.messages.clone(), self.oversized.clone(), self.traces.clone());
        Router::new()
            .route("/json", any(json::answer).with_state(json))
            .route("/healthcheck", any(crate::http::health::healthcheck).with_state(self.lifecycle.clone()))
            .route("/ready", get(crate::http::health::ready).with_state(self.lifecycle.clone()))
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

/// The library says OUT_OF_RANGE of a message that is too large, which nobody here means otherwise. Like the reference, and the
/// protocol's documentation, we call it RESOURCE_EXHAUSTED.
fn tell_oversized<B>(mut response: http::Response<B>, oversized: &Counter) -> http::Response<B> {
    if let Some(status) = response.headers_mut().get_mut(GRPC_STATUS).filter(|status| **status == OUT_OF_RANGE) {
        *status = RESOURCE_EXHAUSTED;
        oversized.inc();
    }
    response
}
