//! Errors and warnings of the newest rules, for operators: the log has them too, but not for long.

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::report::Finding;

/// The findings of the last load. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastFindings(Arc<ArcSwap<Findings>>);

/// Errors are those of rules that were rejected, warnings those of rules in force.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) errors: Vec<Finding>,
    pub(crate) warnings: Vec<Finding>,
}

impl LastFindings {
    pub(crate) fn load(&self) -> Arc<Findings> {
        self.0.load_full()
    }

    pub(crate) fn set(&self, errors: Vec<Finding>, warnings: Vec<Finding>) {
        self.0.store(Arc::new(Findings { errors, warnings }));
    }
}
