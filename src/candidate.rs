//! Candidate rules: decided for every request beside the rules in force, and never part of an
//! answer.
//!
//! ```text
//!  query --> plan ------------ checks --\               /--> verdicts --> response
//!       \                                 same batches                       |
//!        -> candidate plan --- checks --/               \--> verdicts --> compare --> counts
//! ```
//! The limiter decides both. Counters of candidate rules are separate, by [`KEY_PREFIX`]. A request
//! without a verdict of the store on either side is not compared: it would say nothing about the
//! rules.
//!
//! [`call`] compares a request, and [`tally`] counts what changes.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::base::named_enum::named_enum;
use crate::candidate::tally::Tally;
use crate::observe::redact::{DescriptorView, Values};
use crate::report::comparison::CandidateView;
use crate::rules::{LiveRules, RuleSet};
use crate::telemetry::metric::{Counter, Metrics, Series, Source};

pub(crate) mod call;
mod tally;

/// The start of the keys of candidate counters, before CACHE_KEY_PREFIX.
pub(crate) const KEY_PREFIX: &str = "candidate:";
/// Requests of one worker whose candidate checks are still undecided when their response is sent. A
/// large one counts as several.
// bound candidate_pending_max: not compared;
// tollgate_candidate_undecided_total{reason="pending_max"}
pub(crate) const PENDING_MAX: usize = 1_024;
/// Bytes of a request that count as one.
pub(crate) const PENDING_BYTES: usize = 16 << 10;

/// The candidate rules of the process, and what they change. Clones share it.
#[derive(Debug, Clone)]
pub struct Candidate(Arc<Shared>);

/// Candidate rules on one worker. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Worker {
    shared: Arc<Shared>,
    pending: Arc<Semaphore>,
    tasks: TaskTracker,
}

#[derive(Debug)]
struct Shared {
    rules: Arc<LiveRules>,
    tally: Mutex<Tally>,
    view: DescriptorView,
    /// By [`Undecided`].
    undecided: [Counter; 3],
    keys_full: Counter,
}

named_enum! {
    /// Why a request is not compared.
    pub enum Undecided {
        /// The request is invalid with the candidate rules.
        Invalid = "invalid",
        /// The store gave no verdict.
        StoreError = "store_error",
        /// Too many are undecided.
        PendingMax = "pending_max",
    }
}

impl Candidate {
    /// Registers the metrics.
    pub fn new(rules: Arc<LiveRules>, view: DescriptorView, metrics: &Metrics) -> Self {
        let undecided = |reason: Undecided| {
            metrics.counter_with(
                "tollgate_candidate_undecided_total",
                "Requests that were not compared with the candidate rules: the request is invalid under them, the store gave no verdict, \
                 or too many were undecided when their response was sent (candidate_pending_max).",
                &[("reason", reason.name())],
            )
        };
        let shared = Arc::new(Shared {
            rules,
            tally: Mutex::default(),
            view,
            undecided: Undecided::ALL.map(undecided),
            keys_full: metrics.counter(
                "tollgate_candidate_keys_full_total",
                "Changed decisions whose key was not counted as a distinct key, because there were too many (candidate_keys_max).",
            ),
        });
        metrics.add_source(shared.clone());
        Self(shared)
    }

    pub(crate) fn rules(&self) -> &Arc<LiveRules> {
        &self.0.rules
    }

    /// For the worker that this is called on.
    pub(crate) fn open(&self) -> Worker {
        Worker {
            shared: self.0.clone(),
            pending: Arc::new(Semaphore::new(PENDING_MAX)),
            tasks: TaskTracker::new(),
        }
    }

    /// Whether there are any.
    pub(crate) fn has_rules(&self) -> bool {
        self.0.rules.load().is_some()
    }

    /// The results.
    pub(crate) fn results(&self, values: Values) -> CandidateView {
        self.0.with_tally(None, |tally| tally.results(values))
    }
}

impl Shared {
    fn count_undecided(&self, reason: Undecided) {
        self.undecided[reason as usize].inc();
    }

    /// The counts of the rules in force, which begin again when these are replaced. Without `rules`
    /// those of the current ones; nothing is done for rules that are no longer the current ones.
    fn with_tally<T: Default>(
        &self,
        rules: Option<&Arc<RuleSet>>,
        use_tally: impl FnOnce(&mut Tally) -> T,
    ) -> T {
        let current = self.rules.load();
        if let Some(rules) = rules
            && !current.as_ref().is_some_and(|now| Arc::ptr_eq(now, rules))
        {
            return T::default();
        }
        let mut tally = self.tally.lock();
        tally.restart_if_not_of(current.as_ref());
        use_tally(&mut tally)
    }
}

impl Source for Shared {
    fn collect(&self, series: &mut Vec<Series>) {
        self.with_tally(None, |tally| tally.collect(series));
    }
}
