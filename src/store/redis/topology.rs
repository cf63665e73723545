//! The Redis servers of a deployment: how they are found, which one has a key, and which are used.
//!
//! A `pool` has all servers of one deployment and publishes a `snapshot`, which requests read.
//! `discovery` replaces it when Sentinel or a cluster names other servers; `recovery` probes
//! servers whose circuit breaker is open. Both run in the background, so no request waits for them.

use crate::store::redis::shared::Redis;
use crate::store::redis::topology::pool::NodePool;

pub(crate) use recovery::watch_use;

pub(crate) mod breaker;
pub(crate) mod clock;
pub mod cluster;
pub mod deployment;
mod discovery;
pub(crate) mod fault;
pub(crate) mod health;
pub(crate) mod lifetimes;
pub(crate) mod metrics;
pub(crate) mod node;
pub(crate) mod pool;
mod recovery;
pub(crate) mod refusals;
mod rejection;
mod sentinel;
pub(crate) mod snapshot;

/// Keeps a pool up to date for as long as the process lives.
pub(crate) async fn maintain(redis: &Redis, pool: &NodePool) {
    tokio::join!(recovery::run(redis, pool), discovery::run(pool), recovery::retry_refused(pool));
}
