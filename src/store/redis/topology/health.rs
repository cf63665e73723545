//! Faults of one Redis server: calls record them, and each is logged once when it starts and once
//! when it ends.
//!
//! Recording is lock-free on the request path; one background task calls `log_transitions` every
//! `PROBE_INTERVAL`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bb8_redis::redis::RedisError;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::base::time::{Clock, Time};
use crate::store::redis::connect::address::{Address, short};
use crate::store::redis::connect::relocation::is_unwritable;
use crate::store::redis::connect::reply_bound::OversizedReplies;
use crate::store::redis::topology::breaker::Breaker;
use crate::store::redis::topology::fault::FaultKind;
use crate::store::redis::topology::metrics::ServerMetrics;
use crate::store::redis::topology::refusals::{Refusals, refused_by};
use crate::store::redis::topology::rejection::{self, QUIET};
use crate::telemetry::metric::Gauge;

/// The first pause between probes, and how often fault records are evaluated.
pub(crate) const PROBE_INTERVAL: Duration = Duration::from_millis(200);
/// Pause between probes: a server is used again within this time of its recovery.
// bound probe_interval_max: tried again; tollgate_store_probes_failed_total
pub(crate) const PROBE_INTERVAL_MAX: Duration = Duration::from_secs(1);
/// Pause after TLS attempts that reached the server: each costs Redis a handshake.
// bound tls_probe_interval_max: tried again; tollgate_store_probes_failed_total
pub(crate) const TLS_PROBE_INTERVAL_MAX: Duration = Duration::from_secs(3);

/// The state of one server, shared by all workers.
#[derive(Debug)]
pub(crate) struct Health {
    pub(crate) breaker: Breaker,
    clock: Clock,
    faults: [FaultRecord; FaultKind::ALL.len()],
    /// Notified when the keys of this server may have moved.
    refresh: Arc<Notify>,
    was_reachable: AtomicBool,
    /// When a command was last served while others were rejected, in µs.
    served: AtomicU64,
    /// Whether calls had no reply in time, and nothing failed in another way since.
    fails_late: AtomicBool,
    pub(crate) refusals: Refusals,
    /// Recorded where bytes are read.
    oversized: OversizedReplies,
    metrics: Arc<ServerMetrics>,
}

/// A kind of fault of a server. Times are in µs; 0 is none.
#[derive(Debug)]
struct FaultRecord {
    first: AtomicU64,
    last: AtomicU64,
    /// The most recent cause: a fault that starts as a broken connection may last as a wrong
    /// password.
    cause: Mutex<String>,
    is_logged: AtomicBool,
    gauge: Gauge,
}

impl Health {
    pub(crate) fn new(
        metrics: Arc<ServerMetrics>,
        clock: Clock,
        refresh: Arc<Notify>,
        oversized: OversizedReplies,
    ) -> Self {
        Self {
            breaker: Breaker::new(metrics.clone()),
            clock,
            faults: metrics.faults.clone().map(|gauge| FaultRecord {
                first: AtomicU64::new(0),
                last: AtomicU64::new(0),
                cause: Mutex::default(),
                is_logged: AtomicBool::new(false),
                gauge,
            }),
            refresh,
            was_reachable: AtomicBool::new(false),
            served: AtomicU64::new(0),
            fails_late: AtomicBool::new(false),
            refusals: Refusals::default(),
            oversized,
            metrics,
        }
    }

    /// A call got no reply in time.
    pub(crate) fn record_timeout(&self) {
        self.fails_late.store(true, Relaxed);
        self.record_no_reply(FaultKind::Unreachable, "timed out");
    }

    /// Connecting or a call failed.
    pub(crate) fn record_failure(&self, error: &RedisError, address: &Address) {
        self.record_kind(error);
        self.record_no_reply(FaultKind::of_failure(error), &address.explain(error));
    }

    /// A connection that was not made in time does not show that Redis is unreachable: a Redis that
    /// replies late is late to the first command of a connection as well.
    fn record_kind(&self, error: &RedisError) {
        if !error.is_timeout() {
            self.fails_late.store(false, Relaxed);
        }
    }

    fn record_no_reply(&self, kind: FaultKind, cause: &str) {
        self.record_fault(kind, cause);
        if self.breaker.record_failure() {
            self.refresh.notify_one();
        }
    }

    /// A call got an error reply.
    pub(crate) fn record_error_reply(&self, text: &str) {
        if let Some(command) = refused_by(text) {
            return self.refusals.record(command, short(text));
        }
        self.record_fault(FaultKind::of_reply(text), text);
        if is_unwritable(text) || text.contains("CLUSTERDOWN") {
            self.refresh.notify_one();
        }
    }

    /// Does not affect the breaker.
    pub(crate) fn record_fault(&self, kind: FaultKind, cause: &str) {
        let record = &self.faults[kind as usize];
        let cause = short(cause);
        let now = self.clock.now().as_micros();
        record.last.store(now, Relaxed);
        // Another holder of the lock has a cause that is as new.
        if let Some(mut known) = record.cause.try_lock()
            && *known != cause
        {
            cause.clone_into(&mut known);
        }
        if record.first.load(Relaxed) == 0 {
            record.first.store(now, Relaxed);
        }
    }

    pub(crate) fn record_success(&self) {
        if !self.was_reachable.load(Relaxed) {
            self.was_reachable.store(true, Relaxed);
        }
        self.breaker.record_success();
    }

    /// Whether commands were rejected, and none was served since.
    pub(crate) fn rejects(&self) -> bool {
        self.faults[FaultKind::ErrorReplies as usize].first.load(Relaxed) > 0
    }

    /// A command was served that could have been rejected.
    pub(crate) fn record_served(&self) {
        self.served.store(self.clock.now().as_micros(), Relaxed);
    }

    /// The error, and its cure, if the last failure was one that the server has replied.
    pub(crate) fn rejection(&self) -> Option<String> {
        let [unreachable, rejected] = [FaultKind::Unreachable, FaultKind::ErrorReplies]
            .map(|kind| &self.faults[kind as usize]);
        let is_last = rejected.last.load(Relaxed) > unreachable.last.load(Relaxed);
        (self.rejects() && is_last).then(|| rejected.cause_and_cure())
    }

    /// A probe of a server whose breaker is open was successful.
    pub(crate) fn mark_recovered(&self) {
        if self.rejection().is_some() {
            self.record_served();
        }
        self.breaker.close();
    }

    /// Whether calls had no reply in time, and nothing failed in another way since.
    pub(crate) fn fails_late(&self) -> bool {
        self.fails_late.load(Relaxed)
    }

    /// Whether the server has ever replied.
    pub(crate) fn was_reachable(&self) -> bool {
        self.was_reachable.load(Relaxed)
    }

    /// Why the server did not serve the last time, if it ever did not.
    pub(crate) fn last_failure(&self) -> Option<String> {
        let kinds = [FaultKind::Unreachable, FaultKind::ErrorReplies];
        let records = kinds.map(|kind| &self.faults[kind as usize]);
        let failed = records.into_iter().filter(|one| one.last.load(Relaxed) > 0);
        let last = failed.max_by_key(|one| one.last.load(Relaxed));
        last.map(|record| record.cause.lock().clone())
    }

    /// Records the result of a probe; a failure may open the breaker.
    pub(crate) fn record_probe(&self, probed: &Result<(), RedisError>, address: &Address) {
        match probed {
            Ok(()) => self.was_reachable.store(true, Relaxed),
            Err(error) => {
                self.record_kind(error);
                self.probe_failed(FaultKind::of_failure(error), &address.explain(error));
            }
        }
    }

    /// The first probe takes long: calls do not wait for a server that has never replied.
    pub(crate) fn probe_is_slow(&self) {
        if !self.was_reachable() && self.breaker.open() {
            self.record_fault(FaultKind::Unreachable, "no reply");
            self.refresh.notify_one();
        }
    }

    fn probe_failed(&self, kind: FaultKind, cause: &str) {
        if kind == FaultKind::ErrorReplies {
            self.record_fault(kind, cause);
        }
        // Calls were answered during the probe, so only the probe was late.
        if self.was_reachable() && !self.breaker.is_open() {
            return;
        }
        // At the start no call has failed yet, and no caller has to be the first.
        if self.breaker.open() {
            self.refresh.notify_one();
        } else {
            self.metrics.probes_failed.inc();
        }
        self.record_fault(kind, cause);
    }

    /// Logs faults that have started or ended since the last call.
    pub(crate) fn log_transitions(&self, address: &Address) {
        if let Some(what) = self.oversized.take() {
            self.record_fault(FaultKind::Oversized, &what);
        }
        for kind in FaultKind::ALL {
            self.log_transition(kind, address);
        }
    }

    /// The server left the topology: its faults are cleared, and its breaker stays closed.
    pub(crate) fn retire(&self, address: &Address) {
        self.breaker.retire();
        for kind in FaultKind::ALL {
            if self.faults[kind as usize].clear() {
                let [fault, _] = kind.messages();
                tracing::warn!(%address, fault, "fault cleared: node removed from the topology");
            }
        }
    }

    /// Each logged fault that has not ended, with its cause.
    pub(crate) fn active_faults(&self) -> impl Iterator<Item = String> {
        let active = FaultKind::ALL
            .into_iter()
            .filter(|kind| self.faults[*kind as usize].is_logged.load(Relaxed));
        active.map(|kind| {
            let fault = match kind {
                FaultKind::Unreachable if self.fails_late() => "Redis does not answer in time",
                _ => kind.messages()[0],
            };
            format!("{fault} ({})", self.faults[kind as usize].cause_and_cure())
        })
    }

    fn log_transition(&self, kind: FaultKind, address: &Address) {
        let record = &self.faults[kind as usize];
        let now = self.clock.now();
        let first = record.first.load(Relaxed);
        let last = record.last.load(Relaxed);
        let age = |since: u64| now.since(Time::from_micros(since));
        let is_quiet = first == 0 || age(last) > QUIET;
        let is_open = self.breaker.is_open();
        let rejects = || self.rejection().is_some();
        let (has_started, has_ended) = match kind {
            // A failure that did not open the breaker was an accident. A breaker that opens again
            // and again, because only some connections work, is one fault.
            FaultKind::Unreachable => (is_open && !rejects(), rejects() || !is_open && is_quiet),
            // Nothing recovers because there are no calls.
            FaultKind::ErrorReplies => {
                let is_served = self.served.load(Relaxed) > last
                    && age(last) > rejection::quiet(&record.cause.lock());
                (first > 0, first == 0 || is_served)
            }
            FaultKind::ForeignValue | FaultKind::Oversized => (first > 0, is_quiet),
            // One slow call is no fault, and time-outs before the breaker opened do not count as
            // slowness after the recovery.
            FaultKind::Slow => (first > 0 && age(first) > QUIET, is_quiet || is_open),
        };
        let [fault, recovery] = kind.messages();
        if has_ended {
            record.first.store(0, Relaxed);
            if record.clear() {
                tracing::warn!(%address, fault, "recovered: {recovery}");
            }
        } else if has_started && !record.is_logged.swap(true, Relaxed) {
            record.gauge.inc();
            let cause = record.cause_and_cure();
            tracing::warn!(%address, cause, "{fault}; on_store_error decides requests");
        }
    }
}

impl FaultRecord {
    fn cause_and_cure(&self) -> String {
        rejection::with_cure(&self.cause.lock())
    }

    /// Returns whether the fault was logged.
    fn clear(&self) -> bool {
        let was_logged = self.is_logged.swap(false, Relaxed);
        if was_logged {
            self.gauge.dec();
        }
        was_logged
    }
}

impl Drop for FaultRecord {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metric::Metrics;

    #[test]
    fn failed_probe_opens_the_breaker_unless_calls_were_answered() {
        let metrics = Arc::new(ServerMetrics::new(&Metrics::new()));
        let health = || {
            Health::new(
                metrics.clone(),
                Clock::system(),
                Arc::default(),
                OversizedReplies::new(metrics.oversized.clone()),
            )
        };
        let starting = health();
        let serving = health();
        serving.record_success();
        for health in [&starting, &serving] {
            health.probe_failed(FaultKind::Unreachable, "no connection");
        }
        assert!(starting.breaker.is_open());
        assert!(!serving.breaker.is_open());
    }
}
