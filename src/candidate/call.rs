//! A request with the candidate rules, beside the same request with the rules in force.
//!
//! Its checks are sent in the same turn as those of the rules in force, so both are in the same
//! batches. A response does not wait for them: those that are undecided by then are decided by a
//! task of the worker.

use std::future::poll_fn;
use std::hash::Hasher as _;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use siphasher::sip::SipHasher13;

use crate::base::text::Text;
use crate::base::time::Time;
use crate::candidate::tally::Changed;
use crate::candidate::{PENDING_BYTES, Undecided, Worker};
use crate::check::{Decisions, Key};
use crate::observe::redact::Quoted;
use crate::report::comparison::OverLimitChange;
use crate::report::outcome::Outcome;
use crate::rules::RuleSet;
use crate::rules::query::{OwnedQuery, Query};

/// A decision by candidate rules.
#[derive(Debug)]
pub(crate) struct Decided {
    pub(crate) rules: Arc<RuleSet>,
    /// An outcome for each descriptor, in order.
    pub(crate) outcomes: Vec<Outcome>,
}

/// `None` if there are no candidate rules any more.
pub(crate) type Deciding = Pin<Box<dyn Future<Output = Option<Result<Decided, Undecided>>> + Send>>;

/// A request with the candidate rules.
pub(crate) struct Call {
    worker: Worker,
    query: Arc<OwnedQuery>,
    progress: Progress,
    now: Time,
}

enum Progress {
    Deciding(Deciding),
    Decided(Option<Result<Decided, Undecided>>),
}

impl Worker {
    /// Begins to decide a request that came `now`; `None` without candidate rules.
    pub(crate) fn begin(
        &self,
        query: &Query<'_>,
        now: Time,
        decide: impl FnOnce(Arc<OwnedQuery>) -> Deciding,
    ) -> Option<Box<Call>> {
        self.shared.rules.load().as_ref()?;
        let query = Arc::new(OwnedQuery::of(query));
        Some(Box::new(Call {
            worker: self.clone(),
            progress: Progress::Deciding(decide(query.clone())),
            query,
            now,
        }))
    }
}

impl Call {
    /// Decides at the same time as the store decides for the rules in force, which ends it. Without
    /// a verdict of the store for these there is nothing to compare.
    pub(crate) async fn beside(
        mut self: Box<Self>,
        decide: impl Future<Output = Decisions>,
    ) -> (Decisions, Option<Box<Self>>) {
        let mut decide = pin!(decide);
        let decisions = poll_fn(|context| {
            // First, so that its checks are first in their batch.
            let decided = decide.as_mut().poll(context);
            self.poll(context);
            decided
        })
        .await;
        if decisions.iter().all(Result::is_ok) {
            return (decisions, Some(self));
        }
        self.worker.shared.count_undecided(Undecided::StoreError);
        (decisions, None)
    }

    fn poll(&mut self, context: &mut Context<'_>) {
        if let Progress::Deciding(deciding) = &mut self.progress
            && let Poll::Ready(decided) = deciding.as_mut().poll(context)
        {
            self.progress = Progress::Decided(decided);
        }
    }

    /// Counts what differs from the outcomes by the rules in force. Waits in a task if this is not
    /// decided yet.
    pub(crate) fn compare(self, current: Vec<Outcome>) {
        let Self {
            worker,
            query,
            progress,
            now,
        } = self;
        let deciding = match progress {
            Progress::Decided(decided) => {
                return worker.count(&query.query(), now, &current, decided);
            }
            Progress::Deciding(deciding) => deciding,
        };
        let weight = u32::try_from(1 + query.bytes() / PENDING_BYTES).unwrap_or(u32::MAX);
        let Ok(permit) = worker.pending.clone().try_acquire_many_owned(weight) else {
            return worker.shared.count_undecided(Undecided::PendingMax);
        };
        worker.tasks.clone().spawn(async move {
            let decided = deciding.await;
            worker.count(&query.query(), now, &current, decided);
            drop(permit);
        });
    }
}

impl Worker {
    fn count(
        &self,
        query: &Query<'_>,
        now: Time,
        current: &[Outcome],
        decided: Option<Result<Decided, Undecided>>,
    ) {
        let Decided { rules, outcomes } = match decided {
            Some(Ok(decided)) => decided,
            Some(Err(reason)) => return self.shared.count_undecided(reason),
            None => return,
        };
        let domain = &Text(query.domain).shown();
        let full = self.shared.with_tally(Some(&rules), |tally| {
            tally.requests += 1;
            let mut full = 0;
            for (index, (before, after)) in current.iter().zip(&outcomes).enumerate() {
                let rule = after.rule.as_ref().or(before.rule.as_ref());
                let key = after.key.as_ref().or(before.key.as_ref());
                let (Some(rule), Some(key)) = (rule, key) else {
                    continue;
                };
                let changed = Changed {
                    domain,
                    rule,
                    key_hash: hash(key),
                    change: OverLimitChange::new(before.over_limit, after.over_limit),
                };
                let describe = || self.describe(query, index);
                full += u64::from(!tally.count(changed, now, describe));
            }
            full
        });
        self.shared.keys_full.inc_by(full);
    }

    fn describe(&self, query: &Query<'_>, index: usize) -> Quoted<String> {
        let query = Query {
            descriptors: [query.descriptors[index].clone()].into_iter().collect(),
            ..*query
        };
        let shown = self.shared.view.shown(&query, 1);
        shown.map(|_, mut descriptors| descriptors.swap_remove(0))
    }
}

fn hash(key: &Key) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(key.as_bytes());
    hasher.finish()
}
