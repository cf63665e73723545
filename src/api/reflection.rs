//! gRPC reflection, both versions.
//!
//! Their tables of symbols are built at the first call and shared by the workers, since most
//! deployments never use them.

use std::sync::LazyLock;

use axum::Router;
use axum::body::Body;
use http::Request;
use tonic::service::Routes;
use tonic_reflection::server::{Builder, Error};
use tower::{Service as _, service_fn};

use crate::base::proto::DESCRIPTOR_SET;

/// The methods of both versions, as routes of axum.
const PATHS: [&str; 2] = [
    "/grpc.reflection.v1.ServerReflection/{*method}",
    "/grpc.reflection.v1alpha.ServerReflection/{*method}",
];
/// The services that reflection lists.
const SERVICES: [&str; 2] =
    ["envoy.service.ratelimit.v3.RateLimitService", "grpc.health.v1.Health"];

static ROUTES: LazyLock<Routes> =
    LazyLock::new(|| routes().expect("the descriptors were compiled in"));

fn routes() -> Result<Routes, Error> {
    let builder = || {
        let builder = Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
        SERVICES.into_iter().fold(builder, Builder::with_service_name)
    };
    let v1 = builder().build_v1()?;
    let v1alpha = builder().build_v1alpha()?;
    Ok(Routes::new(v1).add_service(v1alpha).prepare())
}

/// Adds [`PATHS`] to routes.
pub(crate) fn add_to(router: Router) -> Router {
    let service = service_fn(|request: Request<Body>| ROUTES.clone().call(request));
    PATHS.into_iter().fold(router, |router, path| router.route_service(path, service))
}
