//! Whether Redis is asked at all. After a few failures in a row it is not, so that an outage costs a call microseconds; whether it is
//! back is found out by probes of our own, never by a caller.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use tokio::sync::Notify;

use crate::telemetry::metric::{Counter, Gauge, Metrics};

/// So many failures in a row open it. One may be an accident, and each costs somebody a time-out.
const FAILURES_MAX: u32 = 3;

/// Open or closed. One per server and process.
#[derive(Debug)]
pub struct Breaker {
    failures: AtomicU32,
    open: AtomicBool,
    opened: Notify,
    state: Gauge,
    openings: Counter,
}

impl Breaker {
    /// Closed.
    pub fn new(metrics: &Metrics) -> Self {
        Self {
            failures: AtomicU32::new(0),
            open: AtomicBool::new(false),
            opened: Notify::new(),
            state: metrics.gauge("tollgate_store_breaker_open", "1 while Redis is not asked, because it failed; 0 else."),
            openings: metrics.counter("tollgate_store_breaker_opened_total", "How often Redis was given up for a while."),
        }
    }

    /// Whether Redis is not asked.
    pub fn is_open(&self) -> bool {
        self.open.load(Relaxed)
    }

    /// A call failed: the connection broke, or no reply came in time.
    pub fn failed(&self) {
        if self.failures.fetch_add(1, Relaxed) + 1 >= FAILURES_MAX {
            self.open();
        }
    }

    /// Redis replied, whatever it said.
    pub fn worked(&self) {
        if self.failures.load(Relaxed) > 0 {
            self.failures.store(0, Relaxed);
        }
    }

    /// Gives Redis up at once.
    pub fn open(&self) {
        if !self.open.swap(true, Relaxed) {
            self.state.set(1);
            self.openings.inc();
            self.opened.notify_one();
        }
    }

    /// Redis is back.
    pub fn close(&self) {
        self.failures.store(0, Relaxed);
        self.open.store(false, Relaxed);
        self.state.set(0);
    }

    /// Returns when it has been opened. For one waiter.
    pub async fn opened(&self) {
        self.opened.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_three_failures_in_a_row() {
        let breaker = Breaker::new(&Metrics::new());
        breaker.failed();
        breaker.failed();
        breaker.worked();
        breaker.failed();
        breaker.failed();
        assert!(!breaker.is_open());
        breaker.failed();
        assert!(breaker.is_open());
        breaker.worked();
        assert!(breaker.is_open(), "a reply that was under way is no proof");
        breaker.close();
        breaker.failed();
        assert!(!breaker.is_open(), "it counts anew");
    }
}
