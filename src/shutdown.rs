//! The life of the process: what it still waits for, that it drains, that it stops.
//!
//! Health is read from here, so that no door has an opinion of its own.

use tokio::sync::watch;

/// How far the process is. Clones are the same.
#[derive(Debug, Clone)]
pub struct Lifecycle(watch::Sender<State>);

/// What is known at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct State {
    /// Whether the rules allow to serve.
    pub rules_ready: bool,
    /// What to say of the rules.
    pub rules_note: String,
    /// Whether the store is in the way of serving. It rarely is: while it is gone, calls are
    /// answered by policy.
    pub store_missing: bool,
    /// What to say of the store.
    pub store_note: String,
    /// How far the end is.
    pub phase: Phase,
}

/// From start to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Phase {
    /// Takes calls.
    #[default]
    Running,
    /// Takes calls, and tells everybody to go elsewhere.
    Draining,
    /// Takes no new connections, and finishes what it has.
    Stopping,
}

impl State {
    /// Whether calls should come here.
    pub fn serving(&self) -> bool {
        self.rules_ready && !self.store_missing && self.phase == Phase::Running
    }

    /// Everything as text, a line a part.
    pub fn report(&self) -> String {
        let serving = if self.serving() { "ready" } else { "not ready" };
        let phase = match self.phase {
            Phase::Running => "running",
            Phase::Draining => "draining",
            Phase::Stopping => "stopping",
        };
        format!(
            "{serving}\nprocess: {phase}\nstore: {}\nrules: {}\n",
            self.store_note, self.rules_note
        )
    }
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self(watch::Sender::new(State {
            rules_note: "waiting for the first rules".to_owned(),
            ..State::default()
        }))
    }
}

impl Lifecycle {
    /// Whether calls should come here.
    pub fn serving(&self) -> bool {
        self.0.borrow().serving()
    }

    /// Everything that is known.
    pub fn state(&self) -> State {
        self.0.borrow().clone()
    }

    /// Every change from now on.
    pub fn watch(&self) -> watch::Receiver<State> {
        self.0.subscribe()
    }

    /// The rules allow to serve, or do not.
    pub fn set_rules(&self, ready: bool, note: String) {
        self.0.send_modify(|state| {
            state.rules_ready = ready;
            state.rules_note = note;
        });
    }

    /// The store allows to serve, or does not.
    pub fn set_store(&self, ready: bool, note: String) {
        self.0.send_modify(|state| {
            state.store_missing = !ready;
            state.store_note = note;
        });
    }

    /// Goes on to a later phase; there is no way back.
    pub fn enter(&self, phase: Phase) {
        self.0
            .send_modify(|state| state.phase = state.phase.max(phase));
    }

    /// Returns when that phase has begun.
    pub async fn reached(&self, phase: Phase) {
        // It cannot fail: the sender is here.
        let _ = self.watch().wait_for(|state| state.phase >= phase).await;
    }
}
