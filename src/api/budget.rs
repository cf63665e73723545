//! What calls in flight may take: places and bytes, of one connection and of the process.
//!
//! A connection may have a quarter of what is still free in the process, up to a bound of its own,
//! and a few calls in any case. So one busy connection may use its 1,024 streams, twenty greedy
//! ones leave enough for others, and a thousand take no place from a client with a few
//! calls in flight. Switches share memory among their ports by this rule ("dynamic queue length
//! thresholds", Choudhury and Hahne, 1998). It costs two atomic additions per call.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::telemetry::metric::{Counter, Gauge, Metrics};

/// Calls that one gRPC connection may have in flight, as SETTINGS_MAX_CONCURRENT_STREAMS. Envoy's
/// circuit breaker allows 1,024 requests per cluster by default.
pub const STREAMS_PER_CONNECTION_MAX: u32 = 1_024;
/// Calls in flight of all connections, gRPC and `/json`. One takes about 9 KiB with headers and
/// messages of up to [`BYTES_FREE`]. 100,000 calls a second that take 20 ms each are 2,000.
pub const STREAMS_MAX: usize = 8_192;
/// Calls that a connection may have in flight whatever others have: they take about as much memory
/// as the connection itself.
pub const STREAMS_RESERVED: usize = 8;
/// A connection may have this part of what is free.
const SHARE: usize = 4;
/// Bytes of messages that one connection may have in flight: one of the largest, and half as much
/// besides.
pub const MESSAGE_BYTES_PER_CONNECTION_MAX: usize = 6 << 20;
/// The same of all connections. A message in flight takes up to three times its bytes: as received,
/// decoded, and in keys of counters.
pub const MESSAGE_BYTES_IN_FLIGHT_MAX: usize = 32 << 20;
/// Bytes that a call has with its place. Envoys' calls have fewer, so they cost no more than that.
pub const BYTES_FREE: usize = 4 << 10;

/// The budget of the process. Clones share it.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Shared>);

/// One connection's part of the budget. Clones share it.
#[derive(Debug, Clone)]
pub struct ConnectionBudget(Arc<Connection>);

/// A call in flight: it has a place, and holds bytes. Dropped, it returns both.
#[derive(Debug)]
pub struct Call {
    connection: Arc<Connection>,
    bytes: AtomicUsize,
}

#[derive(Debug)]
struct Shared {
    streams: Gauge,
    bytes: Gauge,
    connection_full: Counter,
    rejected_for_streams: Counter,
    rejected_for_bytes: Counter,
    late: Counter,
}

#[derive(Debug)]
struct Connection {
    shared: Budget,
    streams: AtomicUsize,
    bytes: AtomicUsize,
}

impl Budget {
    /// A budget of which nothing is used.
    pub fn new(metrics: &Metrics) -> Self {
        let rejected = |cause| {
            let help = "gRPC and /json calls that were rejected before they were read, by the bound they met.";
            metrics.counter_with("tollgate_calls_rejected_total", help, &[("cause", cause)])
        };
        Self(Arc::new(Shared {
            streams: metrics.gauge("tollgate_streams", "Calls in flight, gRPC and /json."),
            bytes: metrics.gauge(
                "tollgate_message_bytes",
                "Bytes of calls in flight, beyond the first 4 KiB of each.",
            ),
            connection_full: metrics.counter(
                "tollgate_connection_streams_full_total",
                "Times that a gRPC connection had as many calls in flight as it may have (1,024).",
            ),
            rejected_for_streams: rejected("streams"),
            rejected_for_bytes: rejected("message_bytes"),
            late: rejected("message_timeout"),
        }))
    }

    /// The part of a new connection.
    pub fn connection(&self) -> ConnectionBudget {
        ConnectionBudget(Arc::new(Connection {
            shared: self.clone(),
            streams: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
        }))
    }
}

impl ConnectionBudget {
    /// A place for one more call; `None` if there is none, which is counted.
    pub fn begin(&self) -> Option<Call> {
        let connection = &self.0;
        let shared = &connection.shared.0;
        let of_connection = connection.streams.fetch_add(1, Relaxed);
        let of_all = count(&shared.streams);
        shared.streams.inc();
        // From here on dropping it returns the place.
        let call = Call {
            connection: connection.clone(),
            bytes: AtomicUsize::new(0),
        };
        let share = (STREAMS_MAX.saturating_sub(of_all) / SHARE).max(STREAMS_RESERVED);
        if of_connection >= share {
            shared.rejected_for_streams.inc();
            return None;
        }
        if of_connection + 1 == STREAMS_PER_CONNECTION_MAX as usize {
            shared.connection_full.inc();
        }
        Some(call)
    }
}

impl Call {
    /// Holds so many bytes more until the call ends. `false` if there are not enough, which is
    /// counted.
    #[must_use]
    pub fn hold(&self, bytes: usize) -> bool {
        let before = self.bytes.fetch_add(bytes, Relaxed);
        let charge = charged(before + bytes) - charged(before);
        if charge == 0 {
            return true;
        }
        let shared = &self.connection.shared.0;
        let of_connection = self.connection.bytes.fetch_add(charge, Relaxed) + charge;
        let share = MESSAGE_BYTES_IN_FLIGHT_MAX.saturating_sub(count(&shared.bytes)) / SHARE;
        shared.bytes.add(signed(charge));
        let fits = of_connection <= share.min(MESSAGE_BYTES_PER_CONNECTION_MAX);
        if !fits {
            shared.rejected_for_bytes.inc();
        }
        fits
    }

    /// Counts that the message did not arrive in time.
    pub fn count_late(&self) {
        self.connection.shared.0.late.inc();
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let shared = &self.connection.shared.0;
        self.connection.streams.fetch_sub(1, Relaxed);
        shared.streams.dec();
        let charge = charged(*self.bytes.get_mut());
        if charge > 0 {
            self.connection.bytes.fetch_sub(charge, Relaxed);
            shared.bytes.sub(signed(charge));
        }
    }
}

/// What a call with so many bytes is charged.
fn charged(bytes: usize) -> usize {
    bytes.saturating_sub(BYTES_FREE)
}

fn count(gauge: &Gauge) -> usize {
    usize::try_from(gauge.get()).unwrap_or(0)
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All the calls that a connection gets.
    fn all_of(connection: &ConnectionBudget) -> Vec<Call> {
        std::iter::from_fn(|| connection.begin())
            .take(STREAMS_PER_CONNECTION_MAX as usize)
            .collect()
    }

    #[test]
    fn greedy_connections_leave_places_for_others() {
        let budget = Budget::new(&Metrics::new());
        let mut calls = all_of(&budget.connection());
        assert_eq!(
            calls.len(),
            STREAMS_PER_CONNECTION_MAX as usize,
            "a connection alone may have all of its own"
        );
        for greedy in 2..=1_000 {
            calls.extend(all_of(&budget.connection()));
            let next = all_of(&budget.connection()).len();
            assert!(
                next >= if greedy <= 20 { 20 } else { STREAMS_RESERVED },
                "{next} after {greedy}"
            );
        }
        assert!(
            calls.len() <= STREAMS_MAX + 1_000 * STREAMS_RESERVED,
            "{}",
            calls.len()
        );
        drop(calls);
        assert_eq!(budget.0.streams.get(), 0);
    }

    #[test]
    fn a_call_returns_what_it_held_even_if_it_was_too_much() {
        const BYTES: usize = 4 << 20;
        let budget = Budget::new(&Metrics::new());
        let (first, second) = (budget.connection(), budget.connection());
        let call = first.begin().expect("there is room");
        assert!(call.hold(BYTES_FREE));
        assert_eq!(budget.0.bytes.get(), 0, "they come with the place");
        assert!(call.hold(BYTES));
        assert!(!call.hold(BYTES), "the connection has no more");
        assert!(
            second.begin().expect("there is room").hold(BYTES),
            "another has"
        );
        drop(call);
        assert_eq!(budget.0.bytes.get(), 0);
        assert!(first.begin().expect("there is room").hold(BYTES));
    }

    #[test]
    fn bytes_of_all_connections_are_bounded() {
        let budget = Budget::new(&Metrics::new());
        let mut held = Vec::new();
        for _ in 0..100 {
            let call = budget.connection().begin().expect("there is room");
            while call.hold(64 << 10) {}
            held.push(call);
        }
        let bytes = count(&budget.0.bytes);
        // Each of them was charged for what it did not get, too.
        assert!(
            bytes <= MESSAGE_BYTES_IN_FLIGHT_MAX + 100 * (64 << 10),
            "{bytes}"
        );
    }
}
