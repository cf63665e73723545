//! What is wrong with Redis: noticed by calls, looked after by one task, which probes, logs each trouble once when it comes and once
//! when it is over, and tells the process' lifecycle.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use crate::shutdown::Lifecycle;
use crate::store::redis::address::Address;
use crate::store::redis::breaker::Breaker;
use crate::store::redis::connection::Manager;
use crate::telemetry::metric::{Counter, Gauge, Metrics};
use crate::time::{Clock, Span, Time};

/// How often a server that failed is tried again, and troubles are looked at.
const PROBE_INTERVAL: Duration = Duration::from_millis(200);
/// How long a probe may take to connect. One that takes longer would be no use to callers.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// A trouble that was not seen for this long is over.
const QUIET: Span = Span::from_secs(1);

/// Kinds of trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
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
    notes: [Note; 4],
    /// How often the server was there again.
    recoveries: AtomicU64,
    /// It answered a probe at least once.
    has_come: AtomicBool,
    probes_failed: Counter,
}

/// What was seen of one kind of trouble. Times are in µs, 0 is never.
#[derive(Debug)]
struct Note {
    first: AtomicU64,
    last: AtomicU64,
    text: Mutex<String>,
    gauge: Gauge,
}

/// What was said already.
#[derive(Debug, Default)]
struct Told {
    logged: [bool; 4],
    /// Whether it may serve, and the line of /ready.
    state: Option<(bool, String)>,
}

impl Trouble {
    const ALL: [Self; 4] = [Self::Unreachable, Self::Refusing, Self::ForeignValue, Self::Slow];

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
    pub fn of_reply(text: &str) -> Self {
        let foreign = ["WRONGTYPE", "not an integer", "not a bucket", "not a number"];
        if foreign.iter().any(|word| text.contains(word)) { Self::ForeignValue } else { Self::Refusing }
    }
}

impl Health {
    /// Well, until something else is seen.
    pub fn new(metrics: &Metrics) -> Self {
        let help = "1 while there is this kind of trouble with Redis; 0 else.";
        Self {
            breaker: Breaker::new(metrics),
            clock: Clock::system(),
            notes: Trouble::ALL.map(|trouble| Note {
                first: AtomicU64::new(0),
                last: AtomicU64::new(0),
                text: Mutex::default(),
                gauge: metrics.gauge_with("tollgate_store_trouble", help, &[("kind", trouble.name())]),
            }),
            recoveries: AtomicU64::new(0),
            has_come: AtomicBool::new(false),
            probes_failed: metrics.counter("tollgate_store_probes_failed_total", "Probes of a server that was given up, and is not back."),
        }
    }

    /// A call failed.
    pub fn failed(&self, cause: &str) {
        self.see(Trouble::Unreachable, cause);
        self.breaker.failed();
    }

    /// Something is wrong, but connections are not.
    pub fn see(&self, trouble: Trouble, text: &str) {
        let note = &self.notes[trouble as usize];
        let now = self.clock.now().as_micros();
        note.last.store(now, Relaxed);
        if note.first.load(Relaxed) == 0 && note.first.swap(now, Relaxed) == 0 {
            text.clone_into(&mut note.text.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// A call worked.
    pub fn worked(&self) {
        self.breaker.worked();
    }

    /// How often the server, once given up, was there again.
    pub fn recoveries(&self) -> u64 {
        self.recoveries.load(Relaxed)
    }

    /// Whether the server was ever seen to be there.
    pub fn has_come(&self) -> bool {
        self.has_come.load(Relaxed)
    }

    /// Looks after one server for as long as the process lives. `required` is whether the process may only serve while the server can
    /// be reached. `back` is what has to go well before a server that is back is asked again.
    pub async fn look_after<B: Future<Output = bool> + Send>(
        self: Arc<Self>,
        manager: Manager,
        required: bool,
        lifecycle: Lifecycle,
        back: impl Fn() -> B + Send,
    ) {
        let mut told = Told::default();
        let mut interval = tokio::time::interval(PROBE_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Whether it is there at the start is worth knowing before the first caller finds out.
        match manager.probe(PROBE_TIMEOUT).await {
            Ok(()) => self.has_come.store(true, Relaxed),
            Err(error) => {
                self.see(Trouble::Unreachable, &manager.address().explain(&error));
                self.breaker.open();
            }
        }
        loop {
            self.tell(&mut told, manager.address(), required, &lifecycle);
            tokio::select! {
                _ = interval.tick() => {
                    if self.breaker.is_open() {
                        self.probe(&manager, &back).await;
                    }
                }
                // Not at once: one that answers probes and fails calls would be given up, and asked again, a hundred times a second.
                () = self.breaker.opened() => interval.reset(),
            }
        }
    }

    async fn probe<B: Future<Output = bool> + Send>(&self, manager: &Manager, back: impl Fn() -> B) {
        match manager.probe(PROBE_TIMEOUT).await {
            Ok(()) if !back().await => {
                self.probes_failed.inc();
                self.see(Trouble::Unreachable, "it answers probes, and does not take what was counted meanwhile");
            }
            Ok(()) => {
                // Calls go there at once; that the trouble is over is told when that has gone well for a while.
                self.breaker.close();
                self.has_come.store(true, Relaxed);
                self.recoveries.fetch_add(1, Relaxed);
            }
            Err(error) => {
                self.probes_failed.inc();
                self.see(Trouble::Unreachable, &manager.address().explain(&error));
            }
        }
    }

    fn tell(&self, told: &mut Told, address: &Address, required: bool, lifecycle: &Lifecycle) {
        for (trouble, logged) in Trouble::ALL.into_iter().zip(&mut told.logged) {
            self.log(trouble, logged, address);
        }
        let troubles: Vec<&str> =
            Trouble::ALL.into_iter().zip(told.logged).filter(|(_, logged)| *logged).map(|(trouble, _)| trouble.sentence()).collect();
        let note = if troubles.is_empty() { address.to_string() } else { format!("{address}: {}", troubles.join(", ")) };
        let state = (!required || !self.breaker.is_open(), note);
        if told.state.as_ref() != Some(&state) {
            lifecycle.set_store(state.0, state.1.clone());
            told.state = Some(state);
        }
    }

    /// Logs a trouble that has come, or gone.
    fn log(&self, trouble: Trouble, logged: &mut bool, address: &Address) {
        let note = &self.notes[trouble as usize];
        let now = self.clock.now();
        let (first, last) = (note.first.load(Relaxed), note.last.load(Relaxed));
        let lasting = |since: u64| now.since(Time::from_micros(since));
        let over = match trouble {
            // The breaker knows. A single failure that did not open it was an accident; and one that opens again and again, because some
            // connections work and others break, is one trouble.
            Trouble::Unreachable => !self.breaker.is_open() && (first == 0 || lasting(last) > QUIET),
            Trouble::Refusing | Trouble::ForeignValue => first == 0 || lasting(last) > QUIET,
            // Who gave up waiting before it was known to be gone is not to be told of when it is back.
            Trouble::Slow => first == 0 || lasting(last) > QUIET || self.breaker.is_open(),
        };
        let comes = match trouble {
            Trouble::Unreachable => self.breaker.is_open(),
            Trouble::Refusing | Trouble::ForeignValue => first > 0,
            // Of a single slow call nobody needs to be told.
            Trouble::Slow => first > 0 && lasting(first) > QUIET,
        };
        if over {
            note.clear();
            if std::mem::take(logged) {
                note.gauge.set(0);
                tracing::warn!(%address, "over: {}", trouble.sentence());
            }
        } else if comes && !*logged {
            *logged = true;
            note.gauge.set(1);
            let cause = note.text.lock().unwrap_or_else(PoisonError::into_inner).clone();
            tracing::warn!(%address, cause, "{}; calls are answered as on_store_error says", trouble.sentence());
        }
    }
}

impl Note {
    fn clear(&self) {
        self.first.store(0, Relaxed);
    }
}
