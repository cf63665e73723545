//! Whether Redis is asked at all. After a few failures in a row it is not, so that an outage costs
//! a call microseconds; whether it is back is found out by probes of our own, never by a caller.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use crate::telemetry::metric::{Counter, Gauge, Metrics};

/// So many failures in a row open it. One may be an accident, and each costs somebody a time-out.
const FAILURES_MAX: u32 = 3;

/// Open or closed. One per server and process.
#[derive(Debug)]
pub struct Breaker {
    failures: AtomicU32,
    open: AtomicBool,
    /// Nobody is to ask the server any more, so it does not matter.
    retired: AtomicBool,
    metrics: BreakerMetrics,
}

/// What the breakers of all servers tell together.
#[derive(Debug, Clone)]
pub struct BreakerMetrics {
    open: Gauge,
    openings: Counter,
}

impl BreakerMetrics {
    /// Nothing was given up yet.
    pub fn new(metrics: &Metrics) -> Self {
        Self {
            open: metrics.gauge(
                "tollgate_store_breaker_open",
                "Servers that are not asked, because they failed: 0 or 1 where there is one.",
            ),
            openings: metrics.counter(
                "tollgate_store_breaker_opened_total",
                "How often a server was given up for a while.",
            ),
        }
    }
}

impl Breaker {
    /// Closed.
    pub fn new(metrics: BreakerMetrics) -> Self {
        Self {
            failures: AtomicU32::new(0),
            open: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            metrics,
        }
    }

    /// Whether Redis is not asked.
    pub fn is_open(&self) -> bool {
        self.open.load(Relaxed)
    }

    /// A call failed: the connection broke, or no reply came in time. Says whether that opened it.
    pub fn record_failure(&self) -> bool {
        self.failures.fetch_add(1, Relaxed) + 1 >= FAILURES_MAX && self.open()
    }

    /// Redis replied, whatever it said.
    pub fn record_success(&self) {
        if self.failures.load(Relaxed) > 0 {
            self.failures.store(0, Relaxed);
        }
    }

    /// Gives Redis up at once. Says whether it was not given up before.
    pub fn open(&self) -> bool {
        let opens = !self.retired.load(Relaxed) && !self.open.swap(true, Relaxed);
        if opens {
            self.metrics.open.inc();
            self.metrics.openings.inc();
        }
        opens
    }

    /// Redis is back.
    pub fn close(&self) {
        self.failures.store(0, Relaxed);
        if self.open.swap(false, Relaxed) {
            self.metrics.open.dec();
        }
    }

    /// Another server has taken its place. Calls that are still under way say nothing of anybody
    /// who is asked.
    pub fn retire(&self) {
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

    #[test]
    fn it_opens_after_three_failures_in_a_row() {
        let breaker = Breaker::new(BreakerMetrics::new(&Metrics::new()));
        breaker.record_failure();
        breaker.record_failure();
        breaker.record_success();
        breaker.record_failure();
        breaker.record_failure();
        assert!(!breaker.is_open());
        breaker.record_failure();
        assert!(breaker.is_open());
        breaker.record_success();
        assert!(breaker.is_open(), "a reply that was under way is no proof");
        breaker.close();
        breaker.record_failure();
        assert!(!breaker.is_open(), "it counts anew");
        breaker.open();
        breaker.retire();
        assert!(!breaker.open() && !breaker.is_open(), "nobody is to ask it");
    }
}
