//! Decides one request with the candidate rules.
//!
//! Its checks are sent in the same turn as those of the rules in force, so both are in the same
//! batches. A response does not wait for them: those that are undecided by then are decided by a
//! task of the worker.

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::candidate::Worker;
use crate::candidate::side::{Sides, sides};
use crate::candidate::tally::Changed;
use crate::check::{CheckError, Decisions, Verdict, Verdicts};
use crate::report::comparison::Change;
use crate::rules::plan::{Modes, plan};
use crate::rules::query::Query;
use crate::rules::{Plan, RuleSet};
use crate::store::Store;
use crate::text::Text;
use crate::time::Time;

type Deciding = Pin<Box<dyn Future<Output = Decisions> + Send>>;

/// A request under the candidate rules.
pub(crate) struct Call {
    worker: Worker,
    rules: Arc<RuleSet>,
    sides: Sides,
    progress: Progress,
    now: Time,
}

enum Progress {
    Deciding(Deciding),
    Decided(Decisions),
}

impl Worker {
    /// Plans a request with the candidate rules; `None` without such rules, and for a request that is
    /// invalid under them.
    pub(crate) fn begin(
        &self,
        query: &Query<'_>,
        modes: Modes,
        now: Time,
        store: &Store,
    ) -> Option<Box<Call>> {
        let rules = self.shared.rules.load();
        let rules = rules.as_ref()?;
        let Ok(plan) = plan(rules, query, modes, now) else {
            self.shared.undecided.invalid.inc();
            return None;
        };
        let sides = sides(&plan);
        let (request, store) = (plan.request, store.clone());
        let deciding: Deciding = Box::pin(async move { store.decide(&request, now, None).await });
        Some(Box::new(Call {
            worker: self.clone(),
            rules: rules.clone(),
            sides,
            progress: Progress::Deciding(deciding),
            now,
        }))
    }
}

impl Call {
    /// Decides at the same time as the store decides `plan`, which ends it; compares the two.
    pub(crate) async fn beside(
        mut self: Box<Self>,
        query: &Query<'_>,
        plan: &Plan<'_>,
        decide: impl Future<Output = Decisions>,
    ) -> Decisions {
        let mut decide = pin!(decide);
        let decisions = poll_fn(|context| {
            // First, so that its checks are first in their batch.
            let decided = decide.as_mut().poll(context);
            self.poll(context);
            decided
        })
        .await;
        self.compare(query, plan, &decisions);
        decisions
    }

    fn poll(&mut self, context: &mut Context<'_>) {
        if let Progress::Deciding(deciding) = &mut self.progress
            && let Poll::Ready(decisions) = deciding.as_mut().poll(context)
        {
            self.progress = Progress::Decided(decisions);
        }
    }

    /// Counts what differs. Waits for the store in a task if it has not decided yet.
    fn compare(self, query: &Query<'_>, plan: &Plan<'_>, decisions: &Decisions) {
        let verdicts: Result<Verdicts, CheckError> = decisions.iter().copied().collect();
        let Ok(verdicts) = verdicts else {
            self.worker.shared.undecided.store_error.inc();
            return;
        };
        let deciding = match self.progress {
            Progress::Decided(decisions) => {
                let candidate = (&self.sides, decisions);
                let describe = |index: usize| {
                    let descriptors = [query.descriptors[index].clone()].into_iter().collect();
                    let query = Query {
                        descriptors,
                        ..*query
                    };
                    self.worker.shared.view.shown(&query, 1).swap_remove(0)
                };
                let request = Request {
                    rules: &self.rules,
                    domain: &Text(query.domain).shown(),
                    now: self.now,
                };
                let current = (&sides(plan), &*verdicts);
                return self.worker.count(&request, current, candidate, describe);
            }
            Progress::Deciding(deciding) => deciding,
        };
        let Ok(permit) = self.worker.pending.clone().try_acquire_owned() else {
            self.worker.shared.undecided.pending_max.inc();
            return;
        };
        let (domain, current) = (Text(query.domain).shown().into_owned(), sides(plan));
        let descriptors = self.worker.shared.view.shown(query, usize::MAX);
        let (worker, rules, candidate, now) = (self.worker, self.rules, self.sides, self.now);
        worker.tasks.clone().spawn(async move {
            let decisions = deciding.await;
            let request = Request {
                rules: &rules,
                domain: &domain,
                now,
            };
            let describe = |index: usize| descriptors[index].clone();
            worker.count(
                &request,
                (&current, &verdicts),
                (&candidate, decisions),
                describe,
            );
            drop(permit);
        });
    }
}

/// A request that is compared.
struct Request<'c> {
    rules: &'c Arc<RuleSet>,
    domain: &'c str,
    now: Time,
}

impl Worker {
    fn count(
        &self,
        request: &Request<'_>,
        (current, verdicts): (&Sides, &[Verdict]),
        (candidate, decisions): (&Sides, Decisions),
        describe: impl Fn(usize) -> String,
    ) {
        let decided: Result<Verdicts, _> = decisions.into_iter().collect();
        let Ok(decided) = decided else {
            self.shared.undecided.store_error.inc();
            return;
        };
        let &Request { rules, domain, now } = request;
        let full = self.shared.with_tally(Some(rules), |tally| {
            tally.requests += 1;
            let mut full = 0;
            for (index, (before, after)) in current.iter().zip(candidate).enumerate() {
                let Some(rule) = after.rule.as_ref().or(before.rule.as_ref()) else {
                    continue;
                };
                let Some(key_hash) = after.key_hash().or(before.key_hash()) else {
                    continue;
                };
                let changed = Changed {
                    domain,
                    rule,
                    key_hash,
                    change: Change::new(before.is_over(verdicts), after.is_over(&decided)),
                };
                full += u64::from(tally.count(changed, now, || describe(index)).is_full());
            }
            full
        });
        self.shared.keys_full.inc_by(full);
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Call")
            .field("sides", &self.sides)
            .finish_non_exhaustive()
    }
}
