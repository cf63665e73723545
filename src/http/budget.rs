//! How many connections a listener serves at once, and which one is closed for the next.
//!
//! Refusing new connections would let clients that hold theirs lock out everybody else, liveness
//! probes included. So the connection that has waited for its client the longest is closed instead:
//! a probe sends its request at once and reads the response at once.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::task::{AbortHandle, Id};

use crate::telemetry::metric::{Counter, Metrics};

/// Bits of an IPv6 address that name a network: a host has as many addresses as it likes in one of
/// 64 bits.
const IPV6_PREFIX_BITS: u32 = 64;
/// [`Activity`] of a connection that does not wait for its client.
const BUSY: u64 = 0;

/// How many connections a listener serves at once on one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// From all clients.
    pub connections_max: usize,
    /// From one address.
    pub peer_connections_max: usize,
    /// What happens when requests are being answered on all of them.
    pub overload: Overload,
}

/// What happens to a new connection when none of the others waits for its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overload {
    /// It is closed: what was begun is finished.
    CloseNewest,
    /// The one that was opened first is closed: a page can be asked for again, a probe cannot.
    CloseOldest,
}

/// What all HTTP listeners count. Clones share it.
#[derive(Debug, Clone)]
pub struct HttpMetrics {
    full: Counter,
    /// Connections closed because their clients did not read.
    pub write_timeouts: Counter,
}

/// Whether a connection waits for its client, and since when: shared by the connection and the
/// [`Budget`] of its listener.
#[derive(Debug)]
pub struct Activity {
    /// The turn in which it began to wait, or [`BUSY`].
    waits_since: AtomicU64,
    /// Turns of the listener.
    turns: Arc<AtomicU64>,
}

/// The connections of a listener on one thread.
#[derive(Debug)]
pub struct Budget {
    bounds: Bounds,
    full: Counter,
    turns: Arc<AtomicU64>,
    connections: HashMap<Id, Served>,
}

/// A connection that is served.
#[derive(Debug)]
struct Served {
    /// The turn in which it was opened.
    since: u64,
    peer: Option<IpAddr>,
    activity: Arc<Activity>,
    task: AbortHandle,
}

impl HttpMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> Self {
        Self {
            full: metrics.counter(
                "tollgate_http_connections_full_total",
                "HTTP connections closed, longest waiting first, because their listener or their client's address had as many as it may have.",
            ),
            write_timeouts: metrics.counter(
                "tollgate_http_write_timeouts_total",
                "HTTP connections closed because their client did not read a response within 10 s (write_timeout).",
            ),
        }
    }
}

impl Activity {
    /// It waits for its client: for a request, for the body of one, or for a response to be read.
    /// It may be closed.
    pub fn wait(&self) {
        if self.waits_since.load(Relaxed) == BUSY {
            self.waits_since.store(next(&self.turns), Relaxed);
        }
    }

    /// It does not wait.
    pub fn work(&self) {
        self.waits_since.store(BUSY, Relaxed);
    }
}

impl Budget {
    /// No connections yet.
    pub fn new(bounds: Bounds, metrics: &HttpMetrics) -> Self {
        Self {
            bounds,
            full: metrics.full.clone(),
            turns: Arc::default(),
            connections: HashMap::new(),
        }
    }

    /// The activity of a connection that is about to be served.
    pub fn activity(&self) -> Arc<Activity> {
        Arc::new(Activity {
            waits_since: AtomicU64::new(BUSY),
            turns: self.turns.clone(),
        })
    }

    /// Closes a connection if there is none left for that peer. `false` if the new one has to go.
    #[must_use]
    pub fn make_room(&mut self, peer: Option<IpAddr>) -> bool {
        let of_peer = self
            .connections
            .values()
            .filter(|served| peer.is_some() && served.peer == peer)
            .count();
        let only_of_peer = of_peer >= self.bounds.peer_connections_max;
        if !only_of_peer && self.connections.len() < self.bounds.connections_max {
            return true;
        }
        self.full.inc();
        let candidates = self
            .connections
            .iter()
            .filter(|(_, served)| !only_of_peer || served.peer == peer);
        let order = candidates.filter_map(|(id, served)| {
            match (
                served.activity.waits_since.load(Relaxed),
                self.bounds.overload,
            ) {
                (BUSY, Overload::CloseNewest) => None,
                // After all that wait.
                (BUSY, Overload::CloseOldest) => Some((true, served.since, *id)),
                (since, _) => Some((false, since, *id)),
            }
        });
        let Some((.., id)) = order.min_by_key(|(is_busy, since, _)| (*is_busy, *since)) else {
            return false;
        };
        if let Some(served) = self.connections.remove(&id) {
            served.task.abort();
        }
        true
    }

    /// Counts a connection.
    pub fn add(&mut self, peer: Option<IpAddr>, activity: Arc<Activity>, task: AbortHandle) {
        self.connections.insert(
            task.id(),
            Served {
                since: next(&self.turns),
                peer,
                activity,
                task,
            },
        );
    }

    /// Forgets a connection that has ended.
    pub fn remove(&mut self, id: Id) {
        self.connections.remove(&id);
    }
}

fn next(turns: &AtomicU64) -> u64 {
    turns.fetch_add(1, Relaxed) + 1
}

/// What is counted as one client: an IPv4 address, or an IPv6 network of 64 bits.
pub fn client_of(addr: IpAddr) -> IpAddr {
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

    const BOUNDS: Bounds = Bounds {
        connections_max: 4,
        peer_connections_max: 3,
        overload: Overload::CloseNewest,
    };

    /// A budget, and tasks in place of connections.
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

        /// A connection of the client with that number, if there is room for it.
        fn connect(&mut self, client: u8) -> Option<Arc<Activity>> {
            let peer = Some(IpAddr::from([10, 0, 0, client]));
            let activity = self
                .budget
                .make_room(peer)
                .then(|| self.budget.activity())?;
            self.budget
                .add(peer, activity.clone(), self.tasks.spawn(pending()));
            Some(activity)
        }

        /// Whether a connection is among those that are served.
        fn serves(&self, activity: &Arc<Activity>) -> bool {
            self.budget
                .connections
                .values()
                .any(|served| Arc::ptr_eq(&served.activity, activity))
        }
    }

    #[tokio::test]
    async fn the_connection_that_waits_the_longest_makes_room() {
        let mut listener = Listener::new(BOUNDS);
        let all: Vec<_> = (1..=4)
            .map(|client| listener.connect(client).expect("there is room"))
            .collect();
        for waiting in [2, 0, 1] {
            all[waiting].wait();
        }
        // What waits goes on waiting, and does not begin anew.
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
    async fn a_client_with_as_many_connections_as_it_may_have_pays_for_the_next_one_itself() {
        let mut listener = Listener::new(BOUNDS);
        let other = listener.connect(2).expect("there is room");
        other.wait();
        let all: Vec<_> = (0..3)
            .map(|_| listener.connect(1).expect("there is room"))
            .collect();
        assert!(listener.connect(1).is_none(), "all of its own are busy");
        all[1].wait();
        assert!(listener.connect(1).is_some());
        assert!(!listener.serves(&all[1]) && listener.serves(&other));
    }

    #[tokio::test]
    async fn where_all_are_busy_the_oldest_can_make_room() {
        let mut listener = Listener::new(Bounds {
            overload: Overload::CloseOldest,
            ..BOUNDS
        });
        let all: Vec<_> = (1..=4)
            .map(|client| listener.connect(client).expect("there is room"))
            .collect();
        all[3].wait();
        for oldest in [3, 0] {
            assert!(listener.connect(9).is_some());
            assert!(!listener.serves(&all[oldest]), "{oldest}");
        }
        assert!(listener.serves(&all[1]) && listener.serves(&all[2]));
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_client() {
        let client = |text: &str| client_of(text.parse().expect("an address"));
        assert_eq!(client("2001:db8:1:2::1"), client("2001:db8:1:2:ffff::"));
        assert_ne!(client("2001:db8:1:2::1"), client("2001:db8:1:3::1"));
        assert_eq!(client("::ffff:10.0.0.1"), client("10.0.0.1"));
        assert_ne!(client("10.0.0.1"), client("10.0.0.2"));
    }
}
