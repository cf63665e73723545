//! Fills the verdicts that the store did not give, by each rule's `on_store_error`.
//!
//! `local` asks the store again, which then counts in this process: it has the last known usage of
//! a counter and this replica's share of its limit.

use smallvec::SmallVec;

use crate::base::time::{Clock, Span, Time};
use crate::limiter::decision::StoreErrors;
use crate::limits::check::{
    Blocked, Check, CheckError, CheckRequest, Decisions, Hits, Source, StoreError, Verdict,
    Verdicts,
};
use crate::rules::{Link, OnStoreError, Plan};
use crate::store::Store;
use crate::store::watch;
use crate::telemetry::metric::{self, Metrics};

/// When a call that was rejected only because the store failed may try again.
const DENIED_FOR: Span = Span::from_secs(1);

/// Decides checks without a verdict of the store.
#[derive(Debug, Clone)]
pub struct Fallback {
    /// For rules without `on_store_error`.
    policy: OnStoreError,
    store_errors: metric::Counter,
    /// Checks that the store decided.
    by_store: metric::Counter,
    /// Indexed by policy, then by cause.
    verdicts: [ByCause; OnStoreError::ALL.len()],
    /// Checks of calls that were canceled.
    canceled: ByCause,
}

type ByCause = [metric::Counter; StoreError::ALL.len()];

/// A call that waits for the store. Dropping it counts its checks as undecided, if its caller gave
/// up because the store was late.
#[derive(Debug)]
pub(crate) struct WaitingCall<'w> {
    pub(crate) fallback: &'w Fallback,
    pub(crate) store: &'w Store,
    pub(crate) clock: &'w Clock,
    pub(crate) request: &'w CheckRequest,
    pub(crate) received: Time,
}

impl Fallback {
    /// `policy` is for rules without `on_store_error`.
    pub fn new(policy: OnStoreError, metrics: &Metrics) -> Self {
        let by_cause = |policy: &str| {
            StoreError::ALL.map(|cause| {
                metrics.counter_with(
                    watch::FALLBACKS,
                    "Checks without a verdict from the store, by the policy that decided them and the cause. \
                     No policy decides if the caller gives up first (canceled).",
                    &[("policy", policy), ("cause", cause.name())],
                )
            })
        };
        Self {
            policy,
            store_errors: failed_calls("redis_error", metrics),
            by_store: metrics.counter(watch::VERDICTS, "Checks that the store decided."),
            verdicts: OnStoreError::ALL.map(|policy| by_cause(policy.name())),
            canceled: by_cause("canceled"),
        }
    }

    /// A verdict for each check, and why the store gave none.
    ///
    /// # Errors
    /// The store's error, if the policy of a check without a verdict is `error`.
    pub(crate) fn fill(
        &self,
        plan: &Plan<'_>,
        decisions: Decisions,
        store: &Store,
        clock: &Clock,
    ) -> Result<(Verdicts, StoreErrors), StoreError> {
        let by_store = decisions.iter().filter(|decision| decision.is_ok()).count();
        self.by_store.inc_by(by_store as u64);
        if by_store == decisions.len() {
            let mut verdicts = Verdicts::with_capacity(by_store);
            verdicts.extend(decisions.into_iter().flatten());
            return Ok((verdicts, StoreErrors::new()));
        }
        self.store_errors.inc();
        let checks = &plan.request.checks;
        let mut policies: SmallVec<[OnStoreError; 4]> =
            SmallVec::from_elem(self.policy, checks.len());
        for step in &plan.steps {
            for link in step.links() {
                policies[link.check] = self.policy(link);
            }
        }
        // A peek in place of each check that another one blocks, which was decided without a call:
        // it consumes nothing here either.
        let blocked = Blocked::of_decided(checks, &decisions);
        let peek = |check: &Check| blocked.has(check).then(|| check.as_peek_alone());
        let peeks: SmallVec<[Option<Check>; 2]> = checks.iter().map(peek).collect();
        let asked = checks.iter().zip(&peeks);
        let asked = asked.map(|(check, peek)| peek.as_ref().unwrap_or(check));
        let mut returned = None;
        let mut local: SmallVec<[(&Check, CheckError); 2]> = SmallVec::new();
        for ((decision, policy), check) in decisions.iter().zip(&policies).zip(asked) {
            let &Err(failed) = decision else { continue };
            self.verdicts[*policy as usize][failed.error as usize].inc();
            match policy {
                OnStoreError::Error => returned = returned.or(Some(failed.error)),
                OnStoreError::Local => local.push((check, failed)),
                // What is settled is written back, whatever is answered.
                OnStoreError::Deny if check.settles => local.push((check, failed)),
                OnStoreError::Allow | OnStoreError::Deny => {}
            }
        }
        if let Some(error) = returned {
            return Err(error);
        }
        let mut local = store.decide_locally(&local, clock.now()).into_iter();
        let verdicts = decisions.iter().zip(&policies).zip(checks);
        let verdicts = verdicts.map(|((decision, policy), check)| {
            decision.unwrap_or_else(|_| {
                let verdict = match policy {
                    OnStoreError::Local => local.next().expect("one verdict for each local check"),
                    OnStoreError::Deny => {
                        if check.settles {
                            local.next();
                        }
                        denied(check)
                    }
                    OnStoreError::Allow | OnStoreError::Error => allowed(check),
                };
                Verdict { source: Source::Fallback, ..verdict }
            })
        });
        let errors = decisions.iter().map(|decision| decision.err().map(|failed| failed.error));
        Ok((verdicts.collect(), errors.collect()))
    }

    /// The policy of a limit's rule.
    pub(crate) fn policy(&self, link: &Link<'_>) -> OnStoreError {
        let of_rule = link.rule.and_then(|rule| rule.on_store_error);
        of_rule.unwrap_or(self.policy)
    }
}

impl WaitingCall<'_> {
    /// The store has decided, or failed.
    pub(crate) fn end(self) {
        std::mem::forget(self);
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        let request = self.request;
        let now = self.clock.now();
        if let Some(cause) = self.store.cause_of_cancel(request, self.received, now) {
            let checks = request.checks.len() as u64;
            self.fallback.canceled[cause as usize].inc_by(checks);
        }
    }
}

/// Counts the calls that fail for this `kind` of error in envoyproxy/ratelimit, under its names.
pub fn failed_calls(kind: &'static str, metrics: &Metrics) -> metric::Counter {
    metrics.reference_counter(
        &format!("ratelimit.service.call.should_rate_limit.{kind}"),
        "ratelimit_service_should_rate_limit_error",
        "Calls with a check that the store did not decide, whatever on_store_error is (redis_error), and calls without a domain, \
         descriptors or loaded rules (service_error).",
        &[("err_type", kind)],
    )
}

fn allowed(check: &Check) -> Verdict {
    Verdict { remaining: check.limit.capacity, reset_after: DENIED_FOR, ..Verdict::default() }
}

fn denied(check: &Check) -> Verdict {
    let over = !matches!(check.hits, Hits::Refund(_));
    Verdict { over, remaining: 0, retry_after: over.then_some(DENIED_FOR), ..allowed(check) }
}
