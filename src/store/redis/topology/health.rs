//! What is wrong with a server: noticed by calls, looked at a few times a second by one task, which
//! probes a server that was given up, and logs each trouble once when it comes and once when it is
//! over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use redis::RedisError;
use tokio::sync::Notify;

use crate::store::redis::connect::address::Address;
use crate::store::redis::connect::connection::Connector;
use crate::store::redis::relocation::is_misplaced;
use crate::store::redis::topology::breaker::{Breaker, BreakerMetrics};
use crate::telemetry::metric::{Counter, Gauge, Metrics};
use crate::time::{Clock, Span, Time};

/// How soon a server that failed is tried again at first, and how often troubles are looked at.
pub const PROBE_INTERVAL: Duration = Duration::from_millis(200);
/// How often it is tried while the fault lasts: within this time of its end the server is used.
pub const PROBE_INTERVAL_MAX: Duration = Duration::from_secs(1);
/// The same for attempts by TLS that were not refused: each has cost Redis a handshake.
pub const TLS_PROBE_INTERVAL_MAX: Duration = Duration::from_secs(3);
/// A trouble that was not seen for this long is over.
const QUIET: Span = Span::from_secs(1);

/// Kinds of trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// Connections break or cannot be made, or replies do not come.
    Unreachable,
    /// Redis answers calls with errors: out of memory, read-only, loading, no permission.
    Refusing,
    /// Something else than a counter stands at a key.
    ForeignValue,
    /// Replies come, but later than callers wait.
    Slow,
}

/// The state of one server, as its callers see it.
#[derive(Debug)]
pub struct Health {
    /// Whether it is asked at all.
    pub breaker: Breaker,
    clock: Clock,
    notes: [FaultRecord; 4],
    /// Rung when somebody should look where the keys are now.
    refresh: Arc<Notify>,
    /// It answered a probe or a call at least once.
    was_reachable: AtomicBool,
    probes_failed: Counter,
}

/// What all servers tell together.
#[derive(Debug, Clone)]
pub struct HealthMetrics {
    breaker: BreakerMetrics,
    troubles: [Gauge; 4],
    probes_failed: Counter,
}

/// What was seen of one kind of trouble. Times are in µs, 0 is never.
#[derive(Debug)]
struct FaultRecord {
    first: AtomicU64,
    last: AtomicU64,
    /// As it was last seen: what came first may have been a connection that broke, and what lasts
    /// a password that is refused.
    cause: Mutex<String>,
    /// It was said to be there.
    is_told: AtomicBool,
    gauge: Gauge,
}

impl FaultKind {
    const ALL: [Self; 4] = [
        Self::Unreachable,
        Self::Refusing,
        Self::ForeignValue,
        Self::Slow,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Refusing => "refusing",
            Self::ForeignValue => "foreign_value",
            Self::Slow => "slow",
        }
    }

    /// What a log line says of it.
    fn sentence(self) -> &'static str {
        match self {
            Self::Unreachable => "Redis cannot be reached",
            Self::Refusing => "Redis refuses to count",
            Self::ForeignValue => "something else than a counter stands at a key in Redis",
            Self::Slow => "Redis answers later than callers wait",
        }
    }

    /// The kind of an error that Redis answered with.
    fn of_reply(text: &str) -> Self {
        // Redis' own, and the script's.
        let foreign = ["WRONGTYPE", "value is not "];
        if foreign.iter().any(|word| text.contains(word)) {
            Self::ForeignValue
        } else {
            Self::Refusing
        }
    }
}

impl HealthMetrics {
    /// All is well, as far as anybody knows.
    pub fn new(metrics: &Metrics) -> Self {
        let help = "Servers with this kind of trouble: 0 or 1 where there is one.";
        Self {
            breaker: BreakerMetrics::new(metrics),
            troubles: FaultKind::ALL.map(|trouble| {
                metrics.gauge_with("tollgate_store_fault", help, &[("kind", trouble.name())])
            }),
            probes_failed: metrics.counter(
                "tollgate_store_probes_failed_total",
                "Probes of a server that was given up, and is not back.",
            ),
        }
    }
}

impl Health {
    /// Well, until something else is seen. `refresh` is rung when it may no longer be the one to
    /// ask.
    pub fn new(metrics: &HealthMetrics, clock: Clock, refresh: Arc<Notify>) -> Self {
        Self {
            breaker: Breaker::new(metrics.breaker.clone()),
            clock,
            notes: metrics.troubles.clone().map(|gauge| FaultRecord {
                first: AtomicU64::new(0),
                last: AtomicU64::new(0),
                cause: Mutex::default(),
                is_told: AtomicBool::new(false),
                gauge,
            }),
            refresh,
            was_reachable: AtomicBool::new(false),
            probes_failed: metrics.probes_failed.clone(),
        }
    }

    /// A call failed.
    pub fn record_failure(&self, cause: &str) {
        self.record_fault(FaultKind::Unreachable, cause);
        if self.breaker.record_failure() {
            self.refresh.notify_one();
        }
    }

    /// The server answered with an error.
    pub fn record_error_reply(&self, text: &str) {
        self.record_fault(FaultKind::of_reply(text), text);
        // It was the master, or there is no telling who is.
        if is_misplaced(text) || text.contains("CLUSTERDOWN") {
            self.refresh.notify_one();
        }
    }

    /// Something is wrong, but connections are not.
    pub fn record_fault(&self, trouble: FaultKind, text: &str) {
        let note = &self.notes[trouble as usize];
        let now = self.clock.now().as_micros();
        note.last.store(now, Relaxed);
        // Whoever has it at this moment has a cause that is as new.
        if let Some(mut cause) = note.cause.try_lock()
            && *cause != text
        {
            text.clone_into(&mut cause);
        }
        if note.first.load(Relaxed) == 0 {
            note.first.store(now, Relaxed);
        }
    }

    /// A call worked.
    pub fn record_success(&self) {
        if !self.was_reachable.load(Relaxed) {
            self.was_reachable.store(true, Relaxed);
        }
        self.breaker.record_success();
    }

    /// Whether the server was ever seen to be there.
    pub fn was_reachable(&self) -> bool {
        self.was_reachable.load(Relaxed)
    }

    /// Probes the server. If it does not answer, it is not asked until it does.
    ///
    /// # Errors
    /// Why it does not answer.
    pub async fn probe(&self, connector: &Connector) -> Result<(), RedisError> {
        let probed = connector.probe().await;
        match &probed {
            Ok(()) => self.was_reachable.store(true, Relaxed),
            Err(error) => self.probe_failed(&connector.address().explain(error)),
        }
        probed
    }

    /// A probe takes long. If the server was never seen to be there, calls do not wait for it.
    pub fn probe_is_slow(&self) {
        if !self.was_reachable() && self.breaker.open() {
            self.record_fault(FaultKind::Unreachable, "it does not answer");
            self.refresh.notify_one();
        }
    }

    /// Opens the breaker unless calls were answered while the probe was under way: then the probe
    /// was late, and Redis is there.
    fn probe_failed(&self, cause: &str) {
        if self.was_reachable() && !self.breaker.is_open() {
            return;
        }
        // At the start no call has failed yet, and the first caller need not be the one to find
        // out.
        if self.breaker.open() {
            self.refresh.notify_one();
        } else {
            self.probes_failed.inc();
        }
        self.record_fault(FaultKind::Unreachable, cause);
    }

    /// Logs what has come, and what is over.
    pub fn log_transitions(&self, address: &Address) {
        for trouble in FaultKind::ALL {
            self.log(trouble, address);
        }
    }

    /// It is not asked any more: what was told to be wrong with it is over.
    pub fn retire(&self, address: &Address) {
        self.breaker.retire();
        for trouble in FaultKind::ALL {
            let note = &self.notes[trouble as usize];
            if note.is_told.swap(false, Relaxed) {
                note.gauge.dec();
                tracing::warn!(%address, "over: {}; it is not asked any more", trouble.sentence());
            }
        }
    }

    /// What was told to be wrong with it and is not over, with what it was last seen by.
    pub fn active_faults(&self) -> impl Iterator<Item = String> {
        let there = FaultKind::ALL
            .into_iter()
            .filter(|trouble| self.notes[*trouble as usize].is_told.load(Relaxed));
        there.map(|trouble| {
            format!(
                "{} ({})",
                trouble.sentence(),
                self.notes[trouble as usize].cause()
            )
        })
    }

    /// Logs a trouble that has come, or gone.
    fn log(&self, trouble: FaultKind, address: &Address) {
        let note = &self.notes[trouble as usize];
        let now = self.clock.now();
        let (first, last) = (note.first.load(Relaxed), note.last.load(Relaxed));
        let lasting = |since: u64| now.since(Time::from_micros(since));
        let over = match trouble {
            // The breaker knows. A single failure that did not open it was an accident; and one
            // that opens again and again, because some connections work and others
            // break, is one trouble.
            FaultKind::Unreachable => {
                !self.breaker.is_open() && (first == 0 || lasting(last) > QUIET)
            }
            FaultKind::Refusing | FaultKind::ForeignValue => first == 0 || lasting(last) > QUIET,
            // Who gave up waiting before it was known to be gone is not to be told of when it is
            // back.
            FaultKind::Slow => first == 0 || lasting(last) > QUIET || self.breaker.is_open(),
        };
        let comes = match trouble {
            FaultKind::Unreachable => self.breaker.is_open(),
            FaultKind::Refusing | FaultKind::ForeignValue => first > 0,
            // Of a single slow call nobody needs to be told.
            FaultKind::Slow => first > 0 && lasting(first) > QUIET,
        };
        if over {
            note.first.store(0, Relaxed);
            if note.is_told.swap(false, Relaxed) {
                note.gauge.dec();
                tracing::warn!(%address, "over: {}", trouble.sentence());
            }
        } else if comes && !note.is_told.swap(true, Relaxed) {
            note.gauge.inc();
            tracing::warn!(%address, cause = note.cause(), "{}; calls are answered as on_store_error says", trouble.sentence());
        }
    }
}

impl FaultRecord {
    fn cause(&self) -> String {
        self.cause.lock().clone()
    }
}

impl Drop for FaultRecord {
    fn drop(&mut self) {
        if *self.is_told.get_mut() {
            self.gauge.dec();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_other_programs_are_foreign_whatever_the_algorithm() {
        let foreign = [
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "ERR value is not an integer or out of range",
            "ERR value is not a bucket",
            "ERR value is not a log",
            "ERR value is not a sliding window",
            "ERR value is not a sliding window of as many buckets",
        ];
        for text in foreign {
            assert_eq!(FaultKind::of_reply(text), FaultKind::ForeignValue, "{text}");
        }
        for text in [
            "OOM command not allowed when used memory > 'maxmemory'.",
            "READONLY You can't write against a read only replica.",
        ] {
            assert_eq!(FaultKind::of_reply(text), FaultKind::Refusing, "{text}");
        }
    }

    #[test]
    fn a_failed_probe_opens_the_breaker_unless_calls_are_answered_meanwhile() {
        let health = || {
            Health::new(
                &HealthMetrics::new(&Metrics::new()),
                Clock::system(),
                Arc::default(),
            )
        };
        let (starting, serving) = (health(), health());
        serving.record_success();
        for health in [&starting, &serving] {
            health.probe_failed("no connection");
        }
        assert!(starting.breaker.is_open());
        assert!(!serving.breaker.is_open());
    }
}
