//! The process lifecycle: readiness of rules and store, draining, stopping.
//!
//! Every health endpoint reads this state. Stopping has a token of its own, so that a change of the
//! state does not wake a task of every connection.

use std::fmt;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// After the stop, a connection that owes no answer at this many looks in a row is closed. Half a
/// second: a request that is arriving can still be received, and the last answer be sent.
const STOP_LOOKS: u32 = 2;
const STOP_LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// The state of the process. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Lifecycle {
    state: watch::Sender<State>,
    stopping: CancellationToken,
}

/// A snapshot of the lifecycle.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct State {
    /// Whether the loaded rules are good enough to serve.
    pub rules_ready: bool,
    /// Status of the rules, for `/ready`.
    pub rules_note: String,
    /// Whether the store prevents serving. It rarely does: while it is unreachable, requests are
    /// answered by `on_store_error`.
    pub store_missing: bool,
    /// Status of the store, for `/ready`.
    pub store_note: String,
    /// What keeps the store from deciding checks as it should.
    pub store_problem: Option<StoreProblem>,
    /// Progress towards the end of the process.
    pub phase: Phase,
}

/// Why limits are not what they should be, and what to do. The process serves as before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreProblem {
    /// A few words.
    pub summary: String,
    /// Cause and cure.
    pub explanation: String,
    /// The section of docs/operations.md, which the console has.
    pub runbook: &'static str,
    /// Whether the store leaves checks undecided. Otherwise it decides them, but not well.
    pub is_undecided: bool,
}

/// Phases of the process, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Phase {
    /// Serves requests.
    #[default]
    Running,
    /// Serves requests, and reports NOT_SERVING.
    Draining,
    /// Accepts no connections, and finishes requests in flight.
    Stopping,
}

/// Returns when the process stops and a connection owes no answer any more: unfinished requests and
/// clients that do not read must not delay the end of the process.
pub(crate) async fn nothing_owed(stopping: &CancellationToken, is_owed: impl Fn() -> bool) {
    stopping.cancelled().await;
    // A notification would cost each call some instructions.
    let mut looks = 0;
    while looks < STOP_LOOKS {
        sleep(STOP_LOOK_INTERVAL).await;
        looks = if is_owed() { 0 } else { looks + 1 };
    }
}

impl State {
    /// Whether the process should receive requests.
    pub fn serving(&self) -> bool {
        self.rules_ready && !self.store_missing && self.phase == Phase::Running
    }

    /// The body of `/ready`.
    pub fn report(&self) -> String {
        let serving = if self.serving() { "ready" } else { "not ready" };
        let problem = self.store_problem.as_ref();
        let problem = problem.map(|problem| format!("; {problem}"));
        format!(
            "{serving}\n{}\nstore: {}{}\nrules: {}\n",
            self.phase.line(),
            self.store_note,
            problem.unwrap_or_default(),
            self.rules_note
        )
    }
}

impl Phase {
    /// Its line in the body of `/ready`.
    pub(crate) fn line(self) -> &'static str {
        match self {
            Self::Running => "process: running",
            Self::Draining => "process: draining",
            Self::Stopping => "process: stopping",
        }
    }
}

impl fmt::Display for StoreProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.summary, self.explanation)
    }
}

impl Lifecycle {
    /// Whether the process should receive requests.
    pub fn serving(&self) -> bool {
        self.state.borrow().serving()
    }

    /// The current state.
    pub fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// The current state and every change of it.
    pub fn watch(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Cancelled when [`Phase::Stopping`] begins.
    pub(crate) fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    /// Records the status of the rules.
    pub fn set_rules(&self, ready: bool, note: String) {
        self.state.send_modify(|state| {
            state.rules_ready = ready;
            state.rules_note = note;
        });
    }

    /// Records the status of the store.
    pub fn set_store(&self, ready: bool, note: String) {
        self.state.send_modify(|state| {
            state.store_missing = !ready;
            state.store_note = note;
        });
    }

    /// Records what keeps the store from deciding checks, if anything does. Watchers of the state
    /// are not notified, because the process serves as before.
    pub(crate) fn set_store_problem(&self, problem: Option<StoreProblem>) {
        self.state.send_if_modified(|state| {
            state.store_problem = problem;
            false
        });
    }

    /// Enters a later phase. An earlier one is ignored.
    pub fn enter(&self, phase: Phase) {
        self.state.send_modify(|state| state.phase = state.phase.max(phase));
        if phase == Phase::Stopping {
            self.stopping.cancel();
        }
    }

    /// Waits until a phase has begun.
    pub async fn reached(&self, phase: Phase) {
        // It cannot fail: the sender is here.
        let _ = self.watch().wait_for(|state| state.phase >= phase).await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn connection_is_closed_within_a_second_of_its_last_answer() {
        const ANSWER: Duration = Duration::from_secs(30);
        let lifecycle = Lifecycle::default();
        let began = Instant::now();
        let is_owed = Cell::new(true);
        let answered = async {
            lifecycle.enter(Phase::Stopping);
            sleep(ANSWER).await;
            is_owed.set(false);
        };
        tokio::join!(answered, nothing_owed(lifecycle.stopping(), || is_owed.get()));
        let closed = began.elapsed();
        assert!(closed > ANSWER && closed < ANSWER + Duration::from_secs(1), "{closed:?}");
    }
}
