//! Circuit breaker of one Redis server: open after consecutive failures, so that an outage costs a
//! call microseconds. Only a successful probe closes it; no caller pays for finding out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use crate::store::redis::topology::metrics::ServerMetrics;

/// Consecutive failures that open the breaker. One may be an accident, and each costs a caller a
/// time-out.
// bound breaker_failures_max: fallback, cause `open`; tollgate_store_breaker_open
const FAILURES_MAX: u32 = 3;

/// Shared by all workers.
#[derive(Debug)]
pub(crate) struct Breaker {
    failures: AtomicU32,
    open: AtomicBool,
    /// The server left the topology; late failures of its calls must not count as an outage.
    retired: AtomicBool,
    metrics: Arc<ServerMetrics>,
}

impl Breaker {
    pub(crate) fn new(metrics: Arc<ServerMetrics>) -> Self {
        Self {
            failures: AtomicU32::new(0),
            open: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            metrics,
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Relaxed)
    }

    /// The connection broke, or no reply came in time. Returns whether this opened the breaker.
    pub(crate) fn record_failure(&self) -> bool {
        self.failures.fetch_add(1, Relaxed) + 1 >= FAILURES_MAX && self.open()
    }

    /// The server replied, even if with an error.
    pub(crate) fn record_success(&self) {
        // Without a write to the shared cache line in the usual case.
        if self.failures.load(Relaxed) > 0 {
            self.failures.store(0, Relaxed);
        }
    }

    /// Opens at once. Returns whether it was closed.
    pub(crate) fn open(&self) -> bool {
        let opens = !self.retired.load(Relaxed) && !self.open.swap(true, Relaxed);
        if opens {
            self.metrics.breakers_open.inc();
            self.metrics.breakers_opened.inc();
        }
        opens
    }

    pub(crate) fn close(&self) {
        self.failures.store(0, Relaxed);
        if self.open.swap(false, Relaxed) {
            self.metrics.breakers_open.dec();
        }
    }

    /// Closes for good.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Relaxed);
        self.close();
    }
}

impl Drop for Breaker {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metric::Metrics;

    #[test]
    fn three_consecutive_failures_open_it_and_only_close_closes_it() {
        let breaker = Breaker::new(Arc::new(ServerMetrics::new(&Metrics::new())));
        breaker.record_failure();
        breaker.record_failure();
        breaker.record_success();
        breaker.record_failure();
        breaker.record_failure();
        assert!(!breaker.is_open());
        breaker.record_failure();
        assert!(breaker.is_open());
        breaker.record_success();
        assert!(breaker.is_open(), "the reply may have been in flight");
        breaker.close();
        breaker.record_failure();
        assert!(!breaker.is_open(), "the count starts over");
        breaker.open();
        breaker.retire();
        assert!(!breaker.open() && !breaker.is_open());
    }
}
