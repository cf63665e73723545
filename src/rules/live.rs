//! The rules that serve. New ones take their place whole, or not at all.

use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};
use parking_lot::{Mutex, MutexGuard};

use crate::rules::tree::RuleSet;

/// Whoever serves looks here once per request, and sees one set from start to end.
#[derive(Debug, Default)]
pub struct LiveRules {
    current: ArcSwapOption<RuleSet>,
    last_error: Mutex<Option<String>>,
}

impl LiveRules {
    /// The rules that serve now; none until the first good ones came.
    pub fn load(&self) -> Guard<Option<Arc<RuleSet>>> {
        self.current.load()
    }

    /// Puts new rules in force.
    pub fn replace(&self, rules: RuleSet) {
        self.current.store(Some(Arc::new(rules)));
        *self.error() = None;
    }

    /// Keeps the rules in force, and remembers why newer ones were refused.
    pub fn reject(&self, error: String) {
        *self.error() = Some(error);
    }

    /// Why the newest rules were refused; `None` if they serve.
    pub fn last_error(&self) -> Option<String> {
        self.error().clone()
    }

    fn error(&self) -> MutexGuard<'_, Option<String>> {
        self.last_error.lock()
    }
}
