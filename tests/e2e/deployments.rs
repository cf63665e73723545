//! Somebody changes the image of a deployment of envoyproxy/ratelimit to ours, and nothing else: Istio's sample, and what Envoy Gateway
//! deploys.
//!
//! Their environment, mounts, user, names and ports are the real ones, to the letter: each test has a network and mounts of its own, in
//! which Tollgate is started from a root as the image has it, and Envoy is configured as those products do it.

mod envoy_gateway;
mod istio;
mod machine;
mod pod;
mod sample;
mod volume;

/// What the suite has for its tests, and these need as well.
#[path = "../suite/support"]
#[expect(dead_code, reason = "the suite needs more of it")]
mod suite {
    use std::time::Duration;

    pub(crate) mod certificates;
    pub(crate) mod http;
    pub(crate) mod xds;

    /// How long anything may take that happens at once on an idle machine.
    const PATIENCE: Duration = Duration::from_secs(30);
}
