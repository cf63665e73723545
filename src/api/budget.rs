//! Bounds calls in flight, and their bytes, per connection and for the process.
//!
//! A connection may use a quarter of what is free in the process, up to a bound of its own, and a
//! few calls in any case. So one busy connection can use its 1,024 streams, twenty greedy ones
//! leave enough for others, and a thousand do not affect a client with a few calls in flight.
//! Switches share memory among their ports by this rule ("dynamic queue length thresholds",
//! Choudhury and Hahne, 1998). It costs two atomic additions per call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};

use crate::telemetry::metric::{Counter, Gauge, Metrics, gauged};

/// Calls in flight of one gRPC connection, as SETTINGS_MAX_CONCURRENT_STREAMS. Envoy's
/// circuit breaker allows 1,024 requests per cluster by default.
// bound streams_per_connection_max: REFUSED_STREAM; tollgate_connection_streams_full_total
pub(crate) const STREAMS_PER_CONNECTION_MAX: u32 = 1_024;
/// Calls in flight of all connections, gRPC and `/json`, of which one connection gets a quarter of
/// what is free, and at least 8. One takes about 9 KiB with headers and messages of up to
/// [`BYTES_FREE`]. 100,000 calls a second that take 20 ms each are 2,000.
// bound streams_max: RESOURCE_EXHAUSTED; 503; tollgate_calls_rejected_total{cause="streams"}
pub(crate) const STREAMS_MAX: usize = 8_192;
/// Calls in flight that a connection may always have: they take about as much memory as the
/// connection itself.
pub(crate) const STREAMS_RESERVED: usize = 8;
/// A connection may use one part in this many of what is free.
const SHARE: usize = 4;
/// Bytes of messages in flight of one connection: one of the largest messages, and half of another.
// bound message_bytes_per_connection_max: RESOURCE_EXHAUSTED;
// tollgate_calls_rejected_total{cause="message_bytes"}
pub(crate) const MESSAGE_BYTES_PER_CONNECTION_MAX: usize = 6 << 20;
/// Bytes of headers and messages in flight of all connections beyond the first 4 KiB of a call, of
/// which one connection gets a quarter of what is free. A message takes up to three times its
/// bytes: as received, decoded, and in keys of counters.
// bound message_bytes_in_flight_max: RESOURCE_EXHAUSTED; 503;
// tollgate_calls_rejected_total{cause="message_bytes"}
pub(crate) const MESSAGE_BYTES_IN_FLIGHT_MAX: usize = 32 << 20;
/// Bytes of a call that are not charged. Calls of Envoy have fewer, so their bytes cost nothing.
pub(crate) const BYTES_FREE: usize = 4 << 10;

/// The error of a call that needs more bytes than are left.
pub(crate) const BYTES_REASON: &str =
    "too many bytes are in flight (message_bytes_in_flight_max, message_bytes_per_connection_max)";

/// The budget of all connections.
#[derive(Debug)]
pub struct Budget {
    streams: Gauge,
    bytes: Gauge,
    connection_full: Counter,
    streams_full: Counter,
    bytes_full: Counter,
    late: Counter,
}

/// The budget of one connection.
#[derive(Debug)]
pub(crate) struct ConnectionBudget {
    shared: Arc<Budget>,
    streams: AtomicUsize,
    bytes: AtomicUsize,
    /// Requests that have arrived and are not answered.
    owed: AtomicUsize,
}

/// A call in flight. Returns its stream and bytes to the budget when it is dropped.
#[derive(Debug)]
pub(crate) struct CallInFlight {
    connection: Arc<ConnectionBudget>,
    bytes: AtomicUsize,
    /// [`ARRIVING`], [`OWED`] or [`ANSWERED`].
    progress: AtomicU8,
}

const ARRIVING: u8 = 0;
/// The request has arrived, so its client gets an answer, also when the process stops.
const OWED: u8 = 1;
/// Answered before its end or not, such as a stream.
const ANSWERED: u8 = 2;

impl Budget {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> Arc<Self> {
        let rejected = |cause| {
            let help = "gRPC and /json calls rejected before they were read, by the bound that was reached.";
            metrics.counter_with("tollgate_calls_rejected_total", help, &[("cause", cause)])
        };
        Arc::new(Self {
            streams: metrics.gauge("tollgate_streams", "Calls in flight, gRPC and /json."),
            bytes: metrics.gauge(
                "tollgate_message_bytes",
                "Bytes of calls in flight, beyond the first 4 KiB of each.",
            ),
            connection_full: metrics.counter(
                "tollgate_connection_streams_full_total",
                "Times that a gRPC connection reached its bound of 1,024 calls in flight.",
            ),
            streams_full: rejected("streams"),
            bytes_full: rejected("message_bytes"),
            late: rejected("message_timeout"),
        })
    }

    /// The budget of a new connection.
    pub(crate) fn connection(self: &Arc<Self>) -> Arc<ConnectionBudget> {
        Arc::new(ConnectionBudget {
            shared: self.clone(),
            streams: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            owed: AtomicUsize::new(0),
        })
    }
}

impl ConnectionBudget {
    /// Begins a call; `None`, which is counted, if too many are in flight.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<CallInFlight> {
        let shared = &self.shared;
        let of_connection = self.streams.fetch_add(1, Relaxed);
        let of_all = count(&shared.streams);
        shared.streams.inc();
        // From here on its drop undoes the additions.
        let call = CallInFlight {
            connection: self.clone(),
            bytes: AtomicUsize::new(0),
            progress: AtomicU8::new(ARRIVING),
        };
        let share = (STREAMS_MAX.saturating_sub(of_all) / SHARE).max(STREAMS_RESERVED);
        if of_connection >= share {
            shared.streams_full.inc();
            return None;
        }
        if of_connection + 1 == STREAMS_PER_CONNECTION_MAX as usize {
            shared.connection_full.inc();
        }
        Some(call)
    }

    /// Whether a request has arrived and is not answered.
    pub(crate) fn owes_answers(&self) -> bool {
        self.owed.load(Relaxed) > 0
    }
}

impl CallInFlight {
    /// Charges bytes until the call ends. `false`, which is counted, if there are not enough.
    #[must_use]
    pub(crate) fn hold(&self, bytes: usize) -> bool {
        let before = self.bytes.fetch_add(bytes, Relaxed);
        let charge = charged(before + bytes) - charged(before);
        if charge == 0 {
            return true;
        }
        let shared = &self.connection.shared;
        let of_connection = self.connection.bytes.fetch_add(charge, Relaxed) + charge;
        let share = MESSAGE_BYTES_IN_FLIGHT_MAX.saturating_sub(count(&shared.bytes)) / SHARE;
        shared.bytes.add(gauged(charge));
        let fits = of_connection <= share.min(MESSAGE_BYTES_PER_CONNECTION_MAX);
        if !fits {
            shared.bytes_full.inc();
        }
        fits
    }

    /// Records that the request has arrived.
    pub(crate) fn arrive(&self) {
        // One thread serves a call.
        if self.progress.load(Relaxed) == ARRIVING {
            self.progress.store(OWED, Relaxed);
            self.connection.owed.fetch_add(1, Relaxed);
        }
    }

    /// Records that the response, or the first part of a stream, is ready to be sent.
    pub(crate) fn answer(&self) {
        if self.progress.load(Relaxed) == OWED {
            self.connection.owed.fetch_sub(1, Relaxed);
        }
        self.progress.store(ANSWERED, Relaxed);
    }

    /// Counts a message that did not arrive in time.
    pub(crate) fn count_late(&self) {
        self.connection.shared.late.inc();
    }
}

impl Drop for CallInFlight {
    fn drop(&mut self) {
        self.answer();
        let shared = &self.connection.shared;
        self.connection.streams.fetch_sub(1, Relaxed);
        shared.streams.dec();
        let charge = charged(*self.bytes.get_mut());
        if charge > 0 {
            self.connection.bytes.fetch_sub(charge, Relaxed);
            shared.bytes.sub(gauged(charge));
        }
    }
}

/// Bytes that are charged for a call of this many.
fn charged(bytes: usize) -> usize {
    bytes.saturating_sub(BYTES_FREE)
}

fn count(gauge: &Gauge) -> usize {
    usize::try_from(gauge.get()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Begins calls until the connection gets no more.
    fn all_of(connection: &Arc<ConnectionBudget>) -> Vec<CallInFlight> {
        std::iter::from_fn(|| connection.begin())
            .take(STREAMS_PER_CONNECTION_MAX as usize)
            .collect()
    }

    #[test]
    fn greedy_connections_leave_streams_for_others() {
        let budget = Budget::new(&Metrics::new());
        let mut calls = all_of(&budget.connection());
        assert_eq!(
            calls.len(),
            STREAMS_PER_CONNECTION_MAX as usize,
            "a single connection can use its whole bound"
        );
        for greedy in 2..=1_000 {
            calls.extend(all_of(&budget.connection()));
            let next = all_of(&budget.connection()).len();
            assert!(
                next >= if greedy <= 20 { 20 } else { STREAMS_RESERVED },
                "{next} after {greedy}"
            );
        }
        assert!(calls.len() <= STREAMS_MAX + 1_000 * STREAMS_RESERVED, "{}", calls.len());
        drop(calls);
        assert_eq!(budget.streams.get(), 0);
    }

    #[test]
    fn call_returns_all_bytes_even_those_beyond_the_bound() {
        const BYTES: usize = 4 << 20;
        let budget = Budget::new(&Metrics::new());
        let first = budget.connection();
        let second = budget.connection();
        let call = first.begin().expect("below the bound");
        assert!(call.hold(BYTES_FREE));
        assert_eq!(budget.bytes.get(), 0, "not charged");
        assert!(call.hold(BYTES));
        assert!(!call.hold(BYTES), "beyond the bound of the connection");
        assert!(
            second.begin().expect("below the bound").hold(BYTES),
            "within the bound of another one"
        );
        drop(call);
        assert_eq!(budget.bytes.get(), 0);
        assert!(first.begin().expect("below the bound").hold(BYTES));
    }

    #[test]
    fn bytes_of_all_connections_are_bounded() {
        let budget = Budget::new(&Metrics::new());
        let mut held = Vec::new();
        for _ in 0..100 {
            let call = budget.connection().begin().expect("below the bound");
            while call.hold(64 << 10) {}
            held.push(call);
        }
        let bytes = count(&budget.bytes);
        // Each was also charged for the bytes that were rejected.
        assert!(bytes <= MESSAGE_BYTES_IN_FLIGHT_MAX + 100 * (64 << 10), "{bytes}");
    }
}
