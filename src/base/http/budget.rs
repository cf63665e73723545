//! Bounds the connections of an HTTP listener, and chooses which one is closed for the next.
//!
//! Rejecting new connections would let clients that hold theirs open lock out all others, liveness
//! probes included. So the connection that has waited longest for its client is closed instead: a
//! probe sends its request and reads the response at once.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use tokio::task::AbortHandle;

use crate::telemetry::metric::{Counter, Metrics};

/// Length of the IPv6 prefix that counts as one client: a host can use any address of its /64.
const IPV6_PREFIX_BITS: u32 = 64;
/// The value of an [`Activity`] that does not wait for its client.
const BUSY: u64 = 0;

/// Bounds of a listener on one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Connections of all clients.
    pub connections_max: usize,
    /// Connections of one client.
    pub peer_connections_max: usize,
    /// Policy when no connection waits for its client.
    pub overload: Overload,
}

/// Which connection is closed when none waits for its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Overload {
    /// The new one: requests in progress are finished.
    CloseNewest,
    /// The oldest: an operator can repeat a request, a probe must not fail.
    CloseOldest,
}

/// Metrics of all HTTP listeners. Clones share them.
#[derive(Debug, Clone)]
pub struct HttpMetrics {
    full: Counter,
    pub(crate) write_timeouts: Counter,
}

/// Whether a connection waits for its client, and since when. Its socket, requests and their bodies
/// share it with the [`Budget`] of its listener.
#[derive(Debug)]
pub(crate) struct Activity {
    /// The time it began to wait, in `turns`, or [`BUSY`].
    waits_since: AtomicU64,
    /// A request was read and its response is not written.
    answering: AtomicBool,
    /// The logical clock of the listener.
    turns: Arc<AtomicU64>,
}

/// The connections of a listener on one thread.
#[derive(Debug)]
pub(crate) struct Budget {
    bounds: Bounds,
    full: Counter,
    turns: Arc<AtomicU64>,
    connections: Vec<Served>,
}

#[derive(Debug)]
struct Served {
    /// The time it was opened, in `turns`.
    since: u64,
    peer: Option<IpAddr>,
    activity: Arc<Activity>,
    task: AbortHandle,
}

impl Bounds {
    /// With at most this many connections, and as large a part of them for one client.
    pub(crate) fn at_most(self, connections_max: usize) -> Self {
        let connections_max = connections_max.min(self.connections_max);
        let of_peer = connections_max * self.peer_connections_max / self.connections_max;
        Self { connections_max, peer_connections_max: of_peer.max(1), ..self }
    }
}

impl HttpMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> Self {
        Self {
            full: metrics.counter(
                "tollgate_http_connections_full_total",
                "HTTP connections closed, longest waiting first, because connections_max of the listener or peer_connections_max of the client was reached.",
            ),
            write_timeouts: metrics.counter(
                "tollgate_http_write_timeouts_total",
                "HTTP connections closed because their client did not read a response within 10 s (write_timeout).",
            ),
        }
    }
}

impl Activity {
    /// Records that the connection waits for its client, for a request, a body, or the response to
    /// be read. It may be closed.
    pub(crate) fn wait(&self) {
        if self.waits_since.load(Relaxed) == BUSY {
            self.waits_since.store(next(&self.turns), Relaxed);
        }
    }

    /// Records that the connection does not wait for its client.
    pub(crate) fn work(&self) {
        self.waits_since.store(BUSY, Relaxed);
    }

    /// Whether the connection waits for its client.
    pub(crate) fn waits(&self) -> bool {
        self.waits_since.load(Relaxed) != BUSY
    }

    /// Records that a request was read.
    pub(crate) fn begin(&self) {
        self.answering.store(true, Relaxed);
        self.work();
    }

    /// Records that the response is complete, and about to be written.
    pub(crate) fn end(&self) {
        self.answering.store(false, Relaxed);
    }

    /// Records that the socket waits for its client, unless a request is being answered.
    pub(crate) fn socket_waits(&self) {
        if !self.answering.load(Relaxed) {
            self.wait();
        }
    }
}

impl Budget {
    /// The budget of a new listener.
    pub(crate) fn new(bounds: Bounds, metrics: &HttpMetrics) -> Self {
        Self { bounds, full: metrics.full.clone(), turns: Arc::default(), connections: Vec::new() }
    }

    /// The activity of a new connection.
    pub(crate) fn activity(&self) -> Arc<Activity> {
        Arc::new(Activity {
            waits_since: AtomicU64::new(BUSY),
            answering: AtomicBool::new(false),
            turns: self.turns.clone(),
        })
    }

    /// Admits a connection of this client, by closing another one if the bounds are
    /// reached. `false` if the new connection has to be closed instead.
    #[must_use]
    pub(crate) fn make_room(&mut self, peer: Option<IpAddr>) -> bool {
        self.connections.retain(|served| !served.task.is_finished());
        let of_peer = |served: &Served| peer.is_some() && served.peer == peer;
        let peer_is_full = self.connections.iter().filter(|served| of_peer(served)).count()
            >= self.bounds.peer_connections_max;
        if !peer_is_full && self.connections.len() < self.bounds.connections_max {
            return true;
        }
        self.full.inc();
        let candidates = self
            .connections
            .iter()
            .enumerate()
            .filter(|(_, served)| !peer_is_full || of_peer(served));
        let order = candidates.filter_map(|(index, served)| {
            let waits_since = served.activity.waits_since.load(Relaxed);
            match (waits_since, self.bounds.overload) {
                (BUSY, Overload::CloseNewest) => None,
                // After all that wait.
                (BUSY, Overload::CloseOldest) => Some((true, served.since, index)),
                (since, _) => Some((false, since, index)),
            }
        });
        let Some((.., index)) = order.min() else {
            return false;
        };
        self.connections.swap_remove(index).task.abort();
        true
    }

    /// Adds a connection and the task that serves it.
    pub(crate) fn add(&mut self, peer: Option<IpAddr>, activity: Arc<Activity>, task: AbortHandle) {
        let since = next(&self.turns);
        self.connections.push(Served { since, peer, activity, task });
    }
}

fn next(turns: &AtomicU64) -> u64 {
    turns.fetch_add(1, Relaxed) + 1
}

/// The client of an address: an IPv4 address, or an IPv6 network of 64 bits.
pub(crate) fn client_of(addr: IpAddr) -> IpAddr {
    match addr.to_canonical() {
        IpAddr::V6(addr) => {
            Ipv6Addr::from_bits(addr.to_bits() & (u128::MAX << (128 - IPV6_PREFIX_BITS))).into()
        }
        addr @ IpAddr::V4(_) => addr,
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::task::JoinSet;

    use super::*;

    const BOUNDS: Bounds =
        Bounds { connections_max: 4, peer_connections_max: 3, overload: Overload::CloseNewest };

    /// A budget, with tasks in place of connections.
    struct Listener {
        budget: Budget,
        tasks: JoinSet<()>,
    }

    impl Listener {
        fn new(bounds: Bounds) -> Self {
            Self {
                budget: Budget::new(bounds, &HttpMetrics::new(&Metrics::new())),
                tasks: JoinSet::new(),
            }
        }

        /// Opens a connection of a client.
        fn connect(&mut self, client: u8) -> Option<Arc<Activity>> {
            let peer = Some(IpAddr::from([10, 0, 0, client]));
            let activity = self.budget.make_room(peer).then(|| self.budget.activity())?;
            self.budget.add(peer, activity.clone(), self.tasks.spawn(pending()));
            Some(activity)
        }

        fn serves(&self, activity: &Arc<Activity>) -> bool {
            self.budget.connections.iter().any(|served| Arc::ptr_eq(&served.activity, activity))
        }
    }

    #[tokio::test]
    async fn longest_waiting_connection_is_closed_first() {
        let mut listener = Listener::new(BOUNDS);
        let all: Vec<_> =
            (1..=4).map(|client| listener.connect(client).expect("below the bound")).collect();
        for waiting in [2, 0, 1] {
            all[waiting].wait();
        }
        // Waiting again does not reset the time.
        all[2].wait();
        all[0].work();
        for longest in [2, 1] {
            assert!(listener.connect(9).is_some());
            assert!(!listener.serves(&all[longest]), "{longest}");
        }
        assert!(listener.connect(9).is_none(), "all are busy");
        assert!(listener.serves(&all[0]) && listener.serves(&all[3]));
        assert_eq!(listener.budget.full.get(), 3);
    }

    #[tokio::test]
    async fn client_at_its_bound_displaces_its_own_connection() {
        let mut listener = Listener::new(BOUNDS);
        let other = listener.connect(2).expect("below the bound");
        other.wait();
        let all: Vec<_> = (0..3).map(|_| listener.connect(1).expect("below the bound")).collect();
        assert!(listener.connect(1).is_none(), "all of its own are busy");
        all[1].wait();
        assert!(listener.connect(1).is_some());
        assert!(!listener.serves(&all[1]) && listener.serves(&other));
    }

    #[tokio::test]
    async fn oldest_busy_connection_is_closed_on_the_admin_listener() {
        let mut listener = Listener::new(Bounds { overload: Overload::CloseOldest, ..BOUNDS });
        let all: Vec<_> =
            (1..=4).map(|client| listener.connect(client).expect("below the bound")).collect();
        all[3].wait();
        for oldest in [3, 0] {
            assert!(listener.connect(9).is_some());
            assert!(!listener.serves(&all[oldest]), "{oldest}");
        }
        assert!(listener.serves(&all[1]) && listener.serves(&all[2]));
    }

    #[test]
    fn one_ipv6_network_is_one_client() {
        let client = |text: &str| client_of(text.parse().expect("an address"));
        assert_eq!(client("2001:db8:1:2::1"), client("2001:db8:1:2:ffff::"));
        assert_ne!(client("2001:db8:1:2::1"), client("2001:db8:1:3::1"));
        assert_eq!(client("::ffff:10.0.0.1"), client("10.0.0.1"));
        assert_ne!(client("10.0.0.1"), client("10.0.0.2"));
    }
}
