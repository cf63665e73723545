//! What the xDS tests share: a service of a control plane, and what to wait for.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tollgate::base::proto::envoy::service::discovery::v3::DiscoveryRequest;

use crate::support::xds::{ControlPlane, NODE, Puppet, Stream};
use crate::support::{Builder, TestServer, eventually};

/// Names that Envoy Gateway's certificates have.
pub(super) const GATEWAY: &str = "DNS:envoy-gateway,DNS:envoy-gateway.envoy-gateway-system";

/// A service that asks there, as Envoy Gateway deploys it, and does not wait long between tries.
pub(super) fn asking(addr: SocketAddr) -> Builder {
    TestServer::with_xds(&addr.to_string())
        .with_env("CONFIG_GRPC_XDS_NODE_ID", NODE)
        .with_env("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "10ms")
        .with_env("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "100ms")
}

/// Such a service, and its first stream after the first request.
pub(super) async fn subscribed() -> (Puppet, TestServer, Stream) {
    let mut puppet = Puppet::start().await;
    let server = asking(puppet.addr).start();
    let mut stream = puppet.stream().await;
    accepted(&stream.request().await, "", "");
    (puppet, server, stream)
}

/// A resource with one limit of a year, as JSON.
pub(super) fn resource(domain: &str, requests: u32) -> Value {
    let limit = json!({"unit": "YEAR", "requests_per_unit": requests});
    json!({"name": domain, "domain": domain, "descriptors": [{"key": "k", "rate_limit": limit}]})
}

pub(super) async fn logged(server: &TestServer, text: &str) {
    eventually(&format!("the log has {text}"), async || server.log().contains(text)).await;
}

/// The newest request of the control plane has this version.
pub(super) async fn acked(plane: &ControlPlane, version: &str) -> Value {
    eventually(&format!("version {version} is acknowledged"), async || {
        plane.newest()["version"] == version
    })
    .await;
    plane.newest()
}

/// Waits for a NACK, and returns it.
pub(super) async fn nacked(plane: &ControlPlane) -> Value {
    eventually("rules are rejected", async || plane.newest()["error"] != "").await;
    plane.newest()
}

pub(super) fn why(request: &DiscoveryRequest) -> &str {
    &request.error_detail.as_ref().expect("it was rejected").message
}

pub(super) fn accepted(request: &DiscoveryRequest, version: &str, nonce: &str) {
    assert_eq!(
        (&*request.version_info, &*request.response_nonce),
        (version.as_bytes(), nonce.as_bytes())
    );
    assert_eq!(request.error_detail, None);
}
