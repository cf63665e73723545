//! The rule set in force. It is replaced as a whole or not at all.

use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};
use parking_lot::Mutex;

use crate::rules::tree::RuleSet;

/// A request loads the rule set once and uses it from start to end.
#[derive(Debug, Default)]
pub struct LiveRules {
    current: ArcSwapOption<RuleSet>,
    last_error: Mutex<Option<String>>,
}

impl LiveRules {
    /// `None` until the first valid rules.
    pub fn load(&self) -> Guard<Option<Arc<RuleSet>>> {
        self.current.load()
    }

    /// Puts rules in force.
    pub fn replace(&self, rules: RuleSet) {
        self.current.store(Some(Arc::new(rules)));
        *self.last_error.lock() = None;
    }

    /// Keeps the rules in force and stores why newer ones were rejected.
    pub fn reject(&self, error: String) {
        *self.last_error.lock() = Some(error);
    }

    /// Why the newest rules were rejected; `None` if they are in force.
    pub fn last_error(&self) -> Option<String> {
        self.last_error.lock().clone()
    }
}
