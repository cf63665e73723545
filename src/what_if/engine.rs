//! Decides requests offline: the limiter that serves, over the memory store that serves, at the
//! times of the requests.
//!
//! Nothing waits: a request that would be queued gets its response at once.

use std::sync::Arc;

use futures_util::FutureExt as _;

use crate::base::time::{Clock, ManualClock, Span, Time};
use crate::limiter::decision::Decision;
use crate::limiter::fallback::Fallback;
use crate::limiter::response::Response;
use crate::limiter::{self, Limiter, LimiterError, Parts};
use crate::rules::{LiveRules, Query, RuleSet};
use crate::store::Backend;
use crate::store::memory::Counters;
use crate::telemetry::metric::Metrics;

/// Decisions between two sweeps of expired counters; more if there are more counters, because a
/// sweep examines all of them.
const SWEEP_AFTER_MIN: usize = 1 << 16;

/// Decides requests by one set of rules.
#[derive(Debug)]
pub(crate) struct Engine {
    limiter: Limiter,
    rules: Arc<LiveRules>,
    counters: Arc<Counters>,
    clock: ManualClock,
    sweep_after: usize,
}

impl Engine {
    /// Decides by these rules, with counters of at most `memory_bytes_max`. Retry-After has no
    /// jitter, so that the same requests get the same answers.
    pub(crate) fn new(rules: RuleSet, settings: &limiter::Settings, memory_bytes_max: u64) -> Self {
        let metrics = Metrics::new();
        let counters = Arc::new(Counters::new(memory_bytes_max, "store", &metrics));
        let live = Arc::new(LiveRules::default());
        live.replace(rules);
        let (clock, handle) = Clock::manual(Time::default());
        let parts = Parts {
            rules: live.clone(),
            backend: Backend::Memory(counters.clone()),
            fallback: Fallback::new(settings.on_store_error, &metrics),
            clock,
            settings: limiter::Settings { retry_after_jitter: Span::ZERO, ..settings.clone() },
            observers: None,
        };
        Self {
            limiter: Arc::new(limiter::Shared::new(parts, &metrics)).open(),
            rules: live,
            counters,
            clock: handle,
            sweep_after: SWEEP_AFTER_MIN,
        }
    }

    /// The rules that decide.
    pub(crate) fn rules(&self) -> Arc<RuleSet> {
        let rules = self.rules.load();
        rules.as_ref().expect("they were given at the start").clone()
    }

    /// Decides a request at `now`, which must not be before that of the last one. `inspect` reads
    /// the decision.
    ///
    /// # Errors
    /// The service would answer with this error.
    pub(crate) fn decide(
        &mut self,
        query: &Query<'_>,
        now: Time,
        inspect: impl FnOnce(&Decision<'_, '_, '_>),
    ) -> Result<Response, LimiterError> {
        self.clock.set(now);
        self.sweep(now);
        let decided = self.limiter.decide_at_once(query, now, None, inspect);
        let (response, _, ()) = decided.now_or_never().expect("memory never waits")?;
        Ok(response)
    }

    /// Forgets all counters. The next request may have any time.
    pub(crate) fn restart(&self) {
        self.counters.clear();
    }

    /// The number of counters that were removed early, because memory had reached its bound.
    pub(crate) fn evicted(&self) -> u64 {
        self.counters.evicted()
    }

    fn sweep(&mut self, now: Time) {
        self.sweep_after -= 1;
        if self.sweep_after == 0 {
            self.counters.sweep(now);
            self.sweep_after = self.counters.len().max(SWEEP_AFTER_MIN);
        }
    }
}
