//! Somebody changes the image of a deployment of envoyproxy/ratelimit to ours, and nothing else:
//! Istio's sample, and what Envoy Gateway deploys.
//!
//! Their environment, mounts, user, names and ports are the real ones, to the letter: each test has
//! a network and mounts of its own, in which Tollgate is started from a root as the image has it,
//! and Envoy is configured as those products do it.

mod envoy_gateway;
mod istio;
pub(crate) mod machine;
mod pod;
mod sample;
