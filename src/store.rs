//! Where counters live.

use std::sync::Arc;

use crate::check::{Ask, Verdicts};
use crate::time::Time;

pub mod memory;
pub mod settings;

/// A place that counts. It knows keys and limits, and never a rule or a domain.
#[derive(Debug, Clone)]
pub enum Store {
    /// In this process: nothing to install, one instance.
    Memory(Arc<memory::Counters>),
}

impl Store {
    /// Answers every check of an ask, in order. Memory never waits.
    #[expect(clippy::unused_async, reason = "a store that is not in this process waits, and its callers are written for that")]
    pub async fn decide(&self, ask: &Ask, now: Time) -> Verdicts {
        match self {
            Self::Memory(counters) => counters.decide(ask, now),
        }
    }

    /// Its name in settings, logs and the start-up block.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Memory(_) => "memory",
        }
    }
}
