//! The Redis servers of a deployment: how they are found, which one has a key, and which are healthy.
//!
//! `pool` maintains all servers of one deployment and publishes `snapshot`s, which requests read.
//! `sentinel` and `cluster` discover servers; `health` and `breaker` decide whether a `node` is
//! used. No request waits for discovery.

pub mod breaker;
pub mod cluster;
pub mod deployment;
pub mod health;
pub mod node;
pub mod pool;
pub mod redirect;
pub mod sentinel;
pub mod snapshot;
