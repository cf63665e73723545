//! The store did not answer in time: what is answered instead, as each rule says.
//!
//! `local` counts on in this process, from what the store last said of a counter, against this replica's share of its limit: all
//! replicas together then let through no more than the limit once more. Nothing is written back when the store returns; what was
//! counted here is forgotten.

use std::num::NonZeroU32;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use smallvec::SmallVec;

use crate::algorithm::Counter;
use crate::check::{Check, Decisions, Hits, StoreError, Verdict, Verdicts};
use crate::limit::Limit;
use crate::rules::{OnStoreError, Plan, Step};
use crate::store::Store;
use crate::store::memory::Counters;
use crate::telemetry::metric::{self, Metrics};
use crate::time::{Clock, Span, Time};

/// How much memory counting in place of the store may take.
const FALLBACK_BYTES_MAX: u64 = 64 << 20;
/// When a call that was refused only because the store is gone may try again.
const DENIED_FOR: Span = Span::from_secs(1);

/// Policies, and the counters of `local`.
#[derive(Debug)]
pub struct Fallback {
    /// Where a rule does not say.
    policy: OnStoreError,
    replicas: NonZeroU32,
    counters: Counters,
    /// It is worth one line.
    small_limits: Once,
    /// How often the store had come back when `counters` was last emptied.
    recoveries: AtomicU64,
    store_errors: metric::Counter,
    /// By policy, then by cause.
    verdicts: [[metric::Counter; 4]; 4],
}

impl Fallback {
    /// `policy` is for rules that do not say; `replicas` is how many processes share the limits.
    pub fn new(policy: OnStoreError, replicas: NonZeroU32, metrics: &Metrics) -> Self {
        let help = "Checks that the store gave no verdict on, by what was answered instead and why.";
        let counter = |policy: OnStoreError, cause: StoreError| {
            metrics.counter_with("tollgate_store_fallbacks_total", help, &[("policy", policy.name()), ("cause", cause.name())])
        };
        Self {
            policy,
            replicas,
            counters: Counters::new(FALLBACK_BYTES_MAX, "fallback", metrics),
            small_limits: Once::new(),
            recoveries: AtomicU64::new(0),
            store_errors: metrics.reference_counter(
                "ratelimit.service.call.should_rate_limit.redis_error",
                "ratelimit_service_should_rate_limit_error",
                "Calls without an answer, by cause.",
                &[("err_type", "redis_error")],
            ),
            verdicts: OnStoreError::ALL.map(|policy| StoreError::ALL.map(|cause| counter(policy, cause))),
        }
    }

    /// Puts a verdict wherever the store has none.
    ///
    /// # Errors
    /// The store's error, if a rule wants the caller to have it.
    pub fn fill(&self, plan: &Plan<'_>, decisions: Decisions, store: &Store, clock: &Clock) -> Result<Verdicts, StoreError> {
        if decisions.iter().all(Result::is_ok) {
            return Ok(decisions.into_iter().flatten().collect());
        }
        self.store_errors.inc();
        let policies = self.policies(plan);
        let mut failed = None;
        for (decision, policy) in decisions.iter().zip(&policies) {
            if let Err(cause) = decision {
                self.verdicts[*policy as usize][*cause as usize].inc();
                failed = failed.or((*policy == OnStoreError::Error).then_some(*cause));
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        let is_local = |index: usize| decisions[index].is_err() && policies[index] == OnStoreError::Local;
        let local = (0..decisions.len()).filter(|&index| is_local(index)).map(|index| self.own(&plan.ask.checks[index]));
        let local: SmallVec<[Check; 2]> = local.collect();
        let mut local = self.count(&local, plan.ask.together, store, clock.now()).into_iter();
        let verdicts = decisions.into_iter().zip(&policies).zip(&plan.ask.checks).map(|((decision, policy), check)| match decision {
            Ok(verdict) => verdict,
            Err(_) if *policy == OnStoreError::Local => local.next().expect("there is a verdict for each"),
            Err(_) => without_counting(check, *policy == OnStoreError::Deny),
        });
        Ok(verdicts.collect())
    }

    /// Keeps its counters in order for as long as the process lives.
    pub async fn look_after(&self, clock: Clock) {
        self.counters.sweep_on(clock).await;
    }

    /// What a step's rule wants where the store has no verdict.
    pub fn policy(&self, step: &Step<'_>) -> OnStoreError {
        match step {
            Step::Counted { rule, .. } => rule.on_store_error.unwrap_or(self.policy),
            Step::NoRule | Step::Unlimited(_) | Step::Replaced(_) | Step::Override { .. } => self.policy,
        }
    }

    /// What each check's rule wants.
    fn policies(&self, plan: &Plan<'_>) -> SmallVec<[OnStoreError; 4]> {
        let mut policies: SmallVec<[OnStoreError; 4]> = plan.ask.checks.iter().map(|_| self.policy).collect();
        for step in &plan.steps {
            if let Some(check) = step.check() {
                policies[check] = self.policy(step);
            }
        }
        policies
    }

    /// A check against this replica's share.
    fn own(&self, check: &Check) -> Check {
        let (whole, replicas) = (check.limit.requests(), self.replicas);
        if whole > 0 && whole < replicas.get() {
            self.small_limits.call_once(|| {
                tracing::warn!(whole, replicas, "a limit is less than REPLICAS: while the store is gone each replica lets one through");
            });
        }
        // No slot is booked where others book theirs without being seen.
        Check { limit: check.limit.share(replicas), book_ahead: Span::ZERO, ..check.clone() }
    }

    fn count(&self, checks: &[Check], together: bool, store: &Store, now: Time) -> Verdicts {
        let recoveries = store.recoveries();
        if self.recoveries.swap(recoveries, Relaxed) != recoveries {
            self.counters.clear();
        }
        self.counters.decide_from(checks, together, now, |check, known| {
            let seen = store.last_seen(check).map(|(used, at)| self.remembered(&check.limit, used, at));
            // Whichever is more: some calls may still reach the store.
            let most = known.into_iter().chain(seen).max_by_key(|counter| counter.spent_at(&check.limit, now));
            most.unwrap_or_else(|| Counter::untouched(&check.limit))
        })
    }

    /// This replica's part of what all of them had used at that time.
    fn remembered(&self, limit: &Limit, used: u64, at: Time) -> Counter {
        let charge = Counter::charge(limit, Hits::Add(used.div_ceil(self.replicas.get().into())));
        Counter::of(limit, at, charge.charged(0))
    }
}

/// The verdict of a policy that does not count.
fn without_counting(check: &Check, deny: bool) -> Verdict {
    let over = deny && !matches!(check.hits, Hits::GiveBack(_));
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::check::{Ask, Key};
    use crate::limit::{Algorithm, Terms, Unit};
    use crate::time::MICROS_PER_SECOND;

    /// One of two replicas, whose store is gone.
    struct Alone {
        fallback: Fallback,
        store: Store,
        clock: Clock,
    }

    impl Alone {
        fn new() -> Self {
            let metrics = Metrics::new();
            let fallback = Fallback::new(OnStoreError::Local, NonZeroU32::new(2).expect("two is not zero"), &metrics);
            let store = Store::Memory(Arc::new(Counters::new(1 << 20, "store", &metrics)));
            let (clock, _) = Clock::manual(Time::from_micros(1_700_000_000 * MICROS_PER_SECOND));
            Self { fallback, store, clock }
        }

        /// What is answered instead.
        fn ask(&self, check: Check) -> Verdict {
            let ask = Ask { checks: [check].into_iter().collect(), ..Ask::default() };
            let plan = Plan { domain_known: true, steps: SmallVec::new(), ask };
            let decisions = [Err(StoreError::Unreachable)].into_iter().collect();
            self.fallback.fill(&plan, decisions, &self.store, &self.clock).expect("the policy is local")[0]
        }

        /// Takes a place of four, or gives it back.
        fn hold(&self, holder: &str, hits: Hits) -> Verdict {
            let terms = Terms { lease: Some(Span::from_secs(30)), ..Terms::new(4, Unit::Second, Algorithm::Concurrency) };
            let limit = Limit::new(&terms).expect("it can be counted");
            self.ask(Check { holder: Some(holder.as_bytes().into()), ..Check::new(Key::from("k"), limit, hits) })
        }
    }

    #[test]
    fn of_what_is_held_at_once_a_replica_gives_its_share_to_whoever_comes_new() {
        let alone = Alone::new();
        assert_eq!(["a", "b", "c"].map(|holder| alone.hold(holder, Hits::Add(1)).over), [false, false, true]);
        assert!(!alone.hold("a", Hits::Add(1)).over, "it has its place");
        // Somebody whom the store knew before it went.
        assert_eq!(alone.hold("z", Hits::GiveBack(1)).used, 2);
        assert!(alone.hold("c", Hits::Add(1)).over);
        assert_eq!(alone.hold("a", Hits::GiveBack(1)).used, 1);
        assert!(!alone.hold("c", Hits::Add(1)).over);
    }

    #[test]
    fn no_slot_is_booked() {
        let alone = Alone::new();
        let max_wait = Span::from_secs(5);
        let terms = Terms { max_wait: Some(max_wait), ..Terms::new(10, Unit::Second, Algorithm::LeakyBucket) };
        let limit = Limit::new(&terms).expect("it can be counted");
        let check = || Check { book_ahead: max_wait, ..Check::new(Key::from("k"), limit, Hits::Add(1)) };
        assert!(!alone.ask(check()).over);
        let refused = alone.ask(check());
        assert_eq!((refused.over, refused.start_after), (true, Span::ZERO));
    }
}
