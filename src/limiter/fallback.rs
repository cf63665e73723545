//! The store did not answer in time: what is answered instead, as each rule says.
//!
//! `local` leaves it to the store, which knows what it was last told of a counter and which share
//! of its limit is this replica's.

use smallvec::SmallVec;

use crate::check::{Check, CheckError, Decisions, Hits, StoreError, Verdict, Verdicts};
use crate::rules::{OnStoreError, Plan, Step};
use crate::store::Store;
use crate::telemetry::metric::{self, Metrics};
use crate::time::{Clock, Span};

/// When a call that was refused only because the store is gone may try again.
const DENIED_FOR: Span = Span::from_secs(1);

/// Policies.
#[derive(Debug)]
pub struct Fallback {
    /// Where a rule does not say.
    policy: OnStoreError,
    store_errors: metric::Counter,
    /// By policy, then by cause.
    verdicts: [[metric::Counter; 4]; 4],
}

impl Fallback {
    /// `policy` is for rules that do not say.
    pub fn new(policy: OnStoreError, metrics: &Metrics) -> Self {
        let help =
            "Checks that the store gave no verdict on, by what was answered instead and why.";
        let counter = |policy: OnStoreError, cause: StoreError| {
            metrics.counter_with(
                "tollgate_store_fallbacks_total",
                help,
                &[("policy", policy.name()), ("cause", cause.name())],
            )
        };
        Self {
            policy,
            store_errors: failed_calls("redis_error", metrics),
            verdicts: OnStoreError::ALL
                .map(|policy| StoreError::ALL.map(|cause| counter(policy, cause))),
        }
    }

    /// Puts a verdict wherever the store has none.
    ///
    /// # Errors
    /// The store's error, if a rule wants the caller to have it.
    pub fn fill(
        &self,
        plan: &Plan<'_>,
        decisions: Decisions,
        store: &Store,
        clock: &Clock,
    ) -> Result<Verdicts, StoreError> {
        if decisions.iter().all(Result::is_ok) {
            return Ok(decisions.into_iter().flatten().collect());
        }
        self.store_errors.inc();
        let policies = self.policies(plan);
        let mut failed = None;
        for (decision, policy) in decisions.iter().zip(&policies) {
            if let Err(CheckError { error, .. }) = decision {
                self.verdicts[*policy as usize][*error as usize].inc();
                failed = failed.or((*policy == OnStoreError::Error).then_some(*error));
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        let local = plan
            .request
            .checks
            .iter()
            .zip(&decisions)
            .zip(&policies)
            .filter(|(_, policy)| **policy == OnStoreError::Local);
        let local: SmallVec<[(&Check, CheckError); 2]> = local
            .filter_map(|((check, decision), _)| Some((check, decision.err()?)))
            .collect();
        let mut local = store
            .decide_locally(&local, plan.request.all_or_nothing, clock.now())
            .into_iter();
        let verdicts = decisions
            .into_iter()
            .zip(&policies)
            .zip(&plan.request.checks)
            .map(|((decision, policy), check)| match decision {
                Ok(verdict) => verdict,
                Err(_) if *policy == OnStoreError::Local => {
                    local.next().expect("there is a verdict for each")
                }
                Err(_) => without_counting(check, *policy == OnStoreError::Deny),
            });
        Ok(verdicts.collect())
    }

    /// What a step's rule wants where the store has no verdict.
    pub fn policy(&self, step: &Step<'_>) -> OnStoreError {
        step.rule()
            .and_then(|rule| rule.on_store_error)
            .unwrap_or(self.policy)
    }

    /// What each check's rule wants.
    fn policies(&self, plan: &Plan<'_>) -> SmallVec<[OnStoreError; 4]> {
        let mut policies: SmallVec<[OnStoreError; 4]> =
            plan.request.checks.iter().map(|_| self.policy).collect();
        for step in &plan.steps {
            if let Some(check) = step.check() {
                policies[check] = self.policy(step);
            }
        }
        policies
    }
}

/// The counter of calls that fail in this way in envoyproxy/ratelimit, under its names. There each
/// of them is an error for the caller.
pub fn failed_calls(kind: &'static str, metrics: &Metrics) -> metric::Counter {
    metrics.reference_counter(
        &format!("ratelimit.service.call.should_rate_limit.{kind}"),
        "ratelimit_service_should_rate_limit_error",
        "Calls with a check that the store did not decide, whatever on_store_error answered (redis_error), and calls without a domain, \
         descriptors or loaded rules (service_error).",
        &[("err_type", kind)],
    )
}

/// The verdict of a policy that does not count.
fn without_counting(check: &Check, deny: bool) -> Verdict {
    let over = deny && !matches!(check.hits, Hits::Refund(_));
    Verdict {
        over,
        used: 0,
        remaining: if deny { 0 } else { check.limit.capacity() },
        start_after: Span::ZERO,
        retry_after: over.then_some(DENIED_FOR),
        reset_after: DENIED_FOR,
        from_cache: false,
    }
}
