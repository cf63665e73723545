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

#[cfg(test)]
mod tests {
    use tonic_health::pb::health_server::Health as _;

    use super::*;

    #[tokio::test]
    async fn health_of_the_service_only_is_reported() {
        let lifecycle = Lifecycle::default();
        lifecycle.set_rules(true, "ok".to_owned());
        let health = Health::new(lifecycle, Clock::system(), &Metrics::new());
        for (service, known) in [
            ("", true),
            ("ratelimit", true),
            ("envoy.service.ratelimit.v3.RateLimitService", false),
            ("unknown", false),
        ] {
            let request = || Request::new(HealthCheckRequest { service: service.to_owned() });
            let mut watched = health.watch(request()).await.expect("it is answered").into_inner();
            let first = watched.next().await.expect("a status").expect("no error").status();
            match health.check(request()).await {
                Ok(checked) => assert_eq!(checked.into_inner().status(), ServingStatus::Serving),
                Err(status) => assert_eq!(status.code(), tonic::Code::NotFound),
            }
            let expected =
                if known { ServingStatus::Serving } else { ServingStatus::ServiceUnknown };
            assert_eq!(first, expected, "{service}");
            assert_eq!(health.check(request()).await.is_ok(), known, "{service}");
        }
    }
}
