//! Divides the file descriptors of the process among its listeners: clients that hold connections
//! leave enough for probes, Redis and files.

use anyhow::bail;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::base::http::budget::Bounds;
use crate::base::http::{ADMIN_BOUNDS, SERVICE_BOUNDS};

/// Open gRPC connections. An Envoy has one or a few, so this is a large fleet. A lower limit of
/// file descriptors lowers it.
// bound grpc_connections_max: the connection that has waited longest for its preface is closed for
// a new one, else the new one; tollgate_connections_evicted_total,
// tollgate_connections_rejected_total
const GRPC_CONNECTIONS_MAX: usize = 16_384;
/// File descriptors that are not for connections of clients: listeners, watches, rules files, name
/// servers, probes of Redis, statsd, OTLP, and queries of other replicas, 64 at a time.
const RESERVED: usize = 96;
/// File descriptors of each worker: its runtime, a connection to a few nodes of Redis and to the
/// upstream of a trial, and HTTP connections on their way to it.
const RESERVED_PER_WORKER: usize = 16;
/// At least one part in this many is reserved: each worker has a connection to each node of Redis.
const RESERVED_PART: usize = 4;
/// With fewer connections no part of the service can be used.
const CONNECTIONS_MIN: usize = 32;
/// HTTP connections get one part in this many, and the admin listener and PROMETHEUS_ADDR half of
/// that each. The rest is for gRPC.
const HTTP_PART: usize = 4;

/// Bounds of the connections of each listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectionBounds {
    pub(crate) grpc: usize,
    /// For each worker.
    pub(crate) http: Bounds,
    /// For the admin listener, and for PROMETHEUS_ADDR.
    pub(crate) admin: Bounds,
}

impl Default for ConnectionBounds {
    fn default() -> Self {
        Self { grpc: GRPC_CONNECTIONS_MAX, http: SERVICE_BOUNDS, admin: ADMIN_BOUNDS }
    }
}

impl ConnectionBounds {
    /// Raises the limit of file descriptors as far as the process may, and divides it.
    ///
    /// # Errors
    /// It is too low.
    pub(crate) fn of_process(workers: usize) -> anyhow::Result<Self> {
        let limits = getrlimit(Resource::Nofile);
        let raised = Rlimit { current: limits.maximum, ..limits };
        // If it fails, the current limit stays.
        let _ = setrlimit(Resource::Nofile, raised);
        let limit = getrlimit(Resource::Nofile).current;
        let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let Some(bounds) = Self::within(limit, workers) else {
            bail!(
                "{limit} file descriptors are too few for {workers} workers: raise the limit (ulimit -n, RLIMIT_NOFILE) to at least {}, or lower WORKERS",
                reserved(0, workers) + CONNECTIONS_MIN
            );
        };
        if bounds != Self::default() {
            tracing::debug!(
                descriptors = limit,
                grpc = bounds.grpc,
                http_per_worker = bounds.http.connections_max,
                admin = bounds.admin.connections_max,
                "the limit of file descriptors (RLIMIT_NOFILE) lowers the bounds of connections"
            );
        }
        Ok(bounds)
    }

    /// `None` if the limit is too low.
    fn within(limit: usize, workers: usize) -> Option<Self> {
        let all =
            limit.checked_sub(reserved(limit, workers)).filter(|all| *all >= CONNECTIONS_MIN)?;
        let usual = Self::default();
        let http = usual.http.at_most((all / HTTP_PART / workers).max(1));
        let admin = usual.admin.at_most(all / HTTP_PART / 2);
        let others = http.connections_max * workers + 2 * admin.connections_max;
        Some(Self { grpc: usual.grpc.min(all - others), http, admin })
    }
}

fn reserved(limit: usize, workers: usize) -> usize {
    (RESERVED + RESERVED_PER_WORKER * workers).max(limit / RESERVED_PART)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_all_listeners_leave_the_reserve() {
        for limit in 0..70_000 {
            for workers in [1, 2, 8] {
                let Some(bounds) = ConnectionBounds::within(limit, workers) else {
                    assert!(limit < 256, "{limit}, {workers} workers");
                    continue;
                };
                let ConnectionBounds { grpc, http, admin } = bounds;
                let all = grpc + http.connections_max * workers + 2 * admin.connections_max;
                assert!(all + reserved(limit, workers) <= limit, "{limit}: {bounds:?}");
                let least = [grpc, http.peer_connections_max, admin.peer_connections_max];
                assert!(least.iter().all(|least| *least > 0), "{limit}: {bounds:?}");
            }
        }
        let enough = ConnectionBounds::within(65_536, 8).expect("it is enough");
        assert_eq!(enough, ConnectionBounds::default());
    }
}
