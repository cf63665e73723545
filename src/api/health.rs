//! gRPC health, from the process lifecycle. `http/health.rs` has the HTTP endpoints.

use std::pin::Pin;

use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::api::call_metrics::CallMetrics;
use crate::base::shutdown::{Lifecycle, Phase};
use crate::base::time::Clock;
use crate::telemetry::metric::Metrics;

/// The service name in gRPC health, as in the reference. The empty name has the same status.
const SERVICE: &str = "ratelimit";

/// grpc.health.v1.Health.
#[derive(Debug, Clone)]
pub(crate) struct Health {
    lifecycle: Lifecycle,
    clock: Clock,
    checks: CallMetrics,
}

impl Health {
    /// Reports the state of `lifecycle`.
    pub(crate) fn new(lifecycle: Lifecycle, clock: Clock, metrics: &Metrics) -> Self {
        Self { lifecycle, clock, checks: CallMetrics::new("Check", metrics) }
    }
}

#[tonic::async_trait]
impl health_server::Health for Health {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let began = self.clock.now();
        let known = is_known(&request.into_inner().service);
        self.checks.observe(began, &self.clock);
        if known {
            Ok(Response::new(response(self.lifecycle.serving())))
        } else {
            Err(Status::not_found("unknown service"))
        }
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    /// Sends every change. The stream ends when the process stops, which would otherwise wait for
    /// it.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        if !is_known(&request.into_inner().service) {
            let unknown = HealthCheckResponse { status: ServingStatus::ServiceUnknown.into() };
            return Ok(Response::new(Box::pin(tokio_stream::once(Ok(unknown)))));
        }
        let mut last = None;
        let states = WatchStream::new(self.lifecycle.watch())
            .take_while(|state| state.phase < Phase::Stopping);
        let changes = states.filter_map(move |state| {
            let serving = state.serving();
            (last.replace(serving) != Some(serving)).then(|| Ok(response(serving)))
        });
        Ok(Response::new(Box::pin(changes)))
    }
}

fn is_known(service: &str) -> bool {
    service.is_empty() || service == SERVICE
}

fn response(serving: bool) -> HealthCheckResponse {
    let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
    HealthCheckResponse { status: status.into() }
}
