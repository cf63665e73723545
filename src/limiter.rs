//! Answers a request: one snapshot of the rules, a plan, the store's verdicts, and what they come
//! to; and not before its turn.

use std::sync::Arc;

use crate::check::{StoreError, Verdict, Verdicts};
use crate::limiter::answer::Answer;
use crate::limiter::combine::combine;
use crate::limiter::fallback::Fallback;
use crate::limiter::headers::HeaderNames;
use crate::limiter::overflow::{Place, Queue, QueueMetrics};
use crate::limiter::refusals::Refusals;
use crate::limiter::told::{Silent, Told};
use crate::rules::query::Query;
use crate::rules::stats::{Instead, Outcome, RuleStats, StatsTable};
use crate::rules::{LiveRules, Plan, Step, plan};
use crate::store::{Backend, Store};
use crate::telemetry::metric::{Counter, Metrics};
use crate::telemetry::traces::LiveSpan;
use crate::text::Text;
use crate::time::{Clock, Span, Time};

pub use crate::rules::plan::{InvalidRequest, Modes};

pub mod answer;
pub mod combine;
pub mod fallback;
pub mod headers;
pub mod metadata;
pub mod overflow;
pub mod refusals;
pub mod settings;
pub mod told;

/// How many descriptors a request may have. Envoys send a handful; a thousand is a mistake, and
/// costs a millisecond.
pub const DESCRIPTORS_MAX: usize = 1_000;
/// How many entries the descriptors of a request may have together: ten for each of a thousand.
pub const ENTRIES_MAX: usize = 10_000;

/// Everything that one answer needs, on one runtime.
#[derive(Debug, Clone)]
pub struct Limiter {
    shared: Arc<Shared>,
    store: Store,
    queue: Queue,
}

/// What the limiters of all runtimes share.
#[derive(Debug)]
pub struct Shared {
    parts: Parts,
    refusals: Refusals,
    metrics: LimiterMetrics,
}

/// What a limiter is put together from.
#[derive(Debug)]
pub struct Parts {
    /// The rules in force.
    pub rules: Arc<LiveRules>,
    /// Where to count.
    pub backend: Backend,
    /// What to answer where that has no verdict.
    pub fallback: Fallback,
    /// What everything goes by.
    pub clock: Clock,
    /// The counters of rules, by name.
    pub stats: Arc<StatsTable>,
    /// What is answered besides.
    pub policy: Policy,
}

/// What is answered besides the verdict, and in which modes; and what the log tells of it.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    /// Global modes.
    pub modes: Modes,
    /// From this part of a limit on, hits are near it.
    pub near_limit_ratio: f32,
    /// Names of the headers of the reference, if they are wanted.
    pub reference_headers: Option<HeaderNames>,
    /// Names of the same three headers on the request to the upstream, if they are wanted.
    pub reference_request_headers: Option<HeaderNames>,
    /// RateLimit-Policy and RateLimit as the IETF has them.
    pub ietf_headers: bool,
    /// Retry-After on refusals.
    pub retry_after_header: bool,
    /// By how many whole seconds at most it is lengthened.
    pub retry_after_jitter: Span,
    /// Tell Envoy what was asked, and the metadata of rules.
    pub dynamic_metadata: bool,
    /// Which refusals the log tells.
    pub refusals_log: refusals::Options,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The reference's words, and its code: UNKNOWN.
    #[error("rate limit domain must not be empty")]
    NoDomain,
    /// The reference's words, and its code: UNKNOWN.
    #[error("rate limit descriptor list must not be empty")]
    NoDescriptors,
    /// The reference's words, and its code: UNKNOWN.
    #[error("no rate limit configuration loaded")]
    NoRules,
    /// INVALID_ARGUMENT.
    #[error(
        "more than the {DESCRIPTORS_MAX} descriptors that one request may have (descriptors_max)"
    )]
    TooManyDescriptors,
    /// INVALID_ARGUMENT.
    #[error("more than the {ENTRIES_MAX} entries that one request may have (entries_max)")]
    TooManyEntries,
    /// INVALID_ARGUMENT. Of an unknown unit the reference crashes.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// UNAVAILABLE: the store gave no verdict, and a rule leaves it to the caller what to do then.
    #[error("{0}, and on_store_error is error")]
    Store(#[from] StoreError),
}

/// What a request came to.
struct Concluded<'c, 'r> {
    plan: &'c Plan<'r>,
    verdicts: &'c Verdicts,
    /// A check that may refuse was over, and the others were to stand still then: whoever was not
    /// over has only looked.
    vetoed: bool,
    answer: &'c Answer,
    /// Where somebody may be told: what the store did not say.
    silent: Option<Silent>,
}

#[derive(Debug)]
struct LimiterMetrics {
    service_error: Counter,
    invalid: Counter,
    global_shadow_mode: Counter,
    queue: QueueMetrics,
}

impl Shared {
    /// Puts the parts together.
    pub fn new(parts: Parts, metrics: &Metrics) -> Self {
        let refusals = Refusals::new(parts.policy.refusals_log, metrics);
        let metrics = LimiterMetrics {
            service_error: fallback::failed_calls("service_error", metrics),
            invalid: metrics.counter(
                "tollgate_invalid_requests_total",
                "Calls refused with INVALID_ARGUMENT: more than descriptors_max descriptors or entries_max entries, a limit that cannot be counted, a holder without a name.",
            ),
            global_shadow_mode: metrics.reference_counter(
                "ratelimit.service.global_shadow_mode",
                "ratelimit_service_global_shadow_mode",
                "Requests over their limit that SHADOW_MODE let through.",
                &[],
            ),
            queue: QueueMetrics::new(metrics),
        };
        Self {
            parts,
            refusals,
            metrics,
        }
    }

    /// A limiter for the runtime that this is called on.
    pub fn open(self: Arc<Self>) -> Limiter {
        Limiter {
            store: self.parts.backend.open(),
            queue: Queue::new(self.metrics.queue.clone()),
            shared: self,
        }
    }

    /// The clock that everything here goes by.
    pub fn clock(&self) -> &Clock {
        &self.parts.clock
    }
}

impl Limiter {
    /// Answers one request. If it has to wait for its turn, the answer comes when it is there;
    /// dropped meanwhile, it has used its slot.
    ///
    /// # Errors
    /// [`Refusal`], counted in the metrics.
    pub async fn answer(&self, query: &Query<'_>) -> Result<Answer, Refusal> {
        self.answer_within(query, None).await
    }

    /// The same, as a part of what is recorded of a call.
    ///
    /// # Errors
    /// [`Refusal`], counted in the metrics.
    pub async fn answer_within(
        &self,
        query: &Query<'_>,
        call: Option<&LiveSpan>,
    ) -> Result<Answer, Refusal> {
        let mut span = call.map(|call| told::execution(call, query));
        let (answer, turn) = self
            .decide(query, span.as_mut())
            .await
            .inspect_err(|refusal| {
                if let Some(span) = &mut span {
                    span.fail(refusal.to_string());
                }
                self.count(refusal);
            })?;
        if let Some((place, wait)) = turn {
            place.wait(wait).await;
        }
        Ok(answer)
    }

    /// Counts why a request has no answer. [`Self::answer`] does so itself.
    pub fn count(&self, refusal: &Refusal) {
        match refusal {
            Refusal::NoDomain | Refusal::NoDescriptors | Refusal::NoRules => {
                self.shared.metrics.service_error.inc()
            }
            Refusal::TooManyDescriptors | Refusal::TooManyEntries | Refusal::Invalid(_) => {
                self.shared.metrics.invalid.inc()
            }
            // Counted where it is decided what to answer.
            Refusal::Store(_) => {}
        }
    }

    /// The clock that everything here goes by.
    pub fn clock(&self) -> &Clock {
        self.shared.clock()
    }

    /// The answer, and how long it is to be held back, if it may be. The rules are let go of: new
    /// ones may come while somebody waits.
    async fn decide(
        &self,
        query: &Query<'_>,
        span: Option<&mut LiveSpan>,
    ) -> Result<(Answer, Option<(Place<'_>, Span)>), Refusal> {
        validate(query)?;
        let Parts {
            rules,
            fallback,
            clock,
            policy,
            ..
        } = &self.shared.parts;
        let rules = rules.load();
        let rules = rules.as_ref().ok_or(Refusal::NoRules)?;
        let now = clock.now();
        let mut plan = plan(rules, query, policy.modes, now)?;
        let place = self.queue.place_for(&mut plan.ask);
        let trip = span
            .as_ref()
            .and_then(|span| Some(told::redis(span, self.store.trip(&plan.ask)?)));
        let decisions = self.store.decide(&plan.ask, now).await;
        if let Some(trip) = trip {
            told::redis_said(trip, &decisions);
        }
        let silent =
            (span.is_some() || self.shared.refusals.are_told()).then(|| told::silent(&decisions));
        let mut verdicts = fallback.fill(&plan, decisions, &self.store, clock)?;
        let vetoed = plan.ask.together
            && plan
                .ask
                .checks
                .iter()
                .zip(&verdicts)
                .any(|(check, verdict)| check.veto && verdict.over);
        // With a veto nothing was booked.
        if let Some(place) = place.as_ref().filter(|_| !vetoed) {
            place.refuse_late(&mut verdicts, clock.now(), query.deadline);
        }
        let answer = combine(
            query,
            &plan,
            &verdicts,
            policy,
            overflow::some_of(policy.retry_after_jitter),
        );
        let concluded = Concluded {
            plan: &plan,
            verdicts: &verdicts,
            vetoed,
            answer: &answer,
            silent,
        };
        self.record(query, &concluded);
        self.tell(query, &concluded, span, now);
        // Whoever is refused need not wait to hear it.
        let turn = place
            .filter(|_| !answer.over_limit)
            .map(|place| (place, overflow::wait(&verdicts)));
        Ok((answer, turn))
    }

    fn record(&self, query: &Query<'_>, concluded: &Concluded<'_, '_>) {
        let &Concluded {
            plan,
            verdicts,
            vetoed,
            answer,
            ..
        } = concluded;
        if !plan.domain_known {
            self.shared
                .parts
                .stats
                .domain_not_found(&Text(query.domain).shown(), query.descriptors.len() as u64);
        }
        if answer.shadowed {
            self.shared.metrics.global_shadow_mode.inc();
        }
        for step in &plan.steps {
            let Some(index) = step.check() else { continue };
            let (check, verdict) = (&plan.ask.checks[index], &verdicts[index]);
            let outcome = Outcome {
                limit: &check.limit,
                hits: check.hits,
                verdict,
                stood_still: vetoed && !verdict.over,
                instead: instead(step, verdict, answer),
                near_ratio: self.shared.parts.policy.near_limit_ratio,
            };
            self.with_stats(query, step, |stats| stats.record(&outcome));
        }
    }

    /// Tells the trace and the log, if they are to know.
    fn tell(
        &self,
        query: &Query<'_>,
        concluded: &Concluded<'_, '_>,
        span: Option<&mut LiveSpan>,
        now: Time,
    ) {
        let Concluded {
            plan,
            verdicts,
            answer,
            silent: Some(silent),
            ..
        } = concluded
        else {
            return;
        };
        let told = Told {
            query,
            plan,
            verdicts,
            silent,
            fallback: &self.shared.parts.fallback,
            answer,
        };
        if let Some(span) = span {
            told.tell(span);
        }
        if answer.over_limit
            && let Some(left_out) = self.shared.refusals.admit(now)
            && let Some(refused) = told.refused()
        {
            refused.log(query.domain, left_out);
        }
    }

    /// Runs something on the counters of a step: its rule's, or those of a name that the request
    /// made.
    fn with_stats(&self, query: &Query<'_>, step: &Step<'_>, run: impl FnOnce(&RuleStats)) {
        match step {
            Step::Counted {
                rule, series: None, ..
            } => run(&rule.stats),
            Step::Counted {
                series: Some(name), ..
            }
            | Step::Override { series: name, .. } => {
                run(&self
                    .shared
                    .parts
                    .stats
                    .of_client(&Text(query.domain).shown(), name));
            }
            Step::NoRule | Step::Unlimited(_) | Step::Replaced(_) => {}
        }
    }
}

/// What was done instead of refusing a check.
fn instead(step: &Step<'_>, verdict: &Verdict, answer: &Answer) -> Instead {
    match step.rule() {
        _ if step.in_shadow() => Instead::Shadowed,
        Some(rule) if answer.degraded && rule.degrades() => Instead::Degraded,
        _ if overflow::is_booked(verdict) && !answer.over_limit => Instead::Queued,
        _ => Instead::Nothing,
    }
}

/// Checks what a request needs whatever the rules are.
///
/// # Errors
/// No domain, no descriptors, or too many.
pub fn validate(query: &Query<'_>) -> Result<(), Refusal> {
    match query.descriptors.len() {
        _ if query.domain.is_empty() => Err(Refusal::NoDomain),
        0 => Err(Refusal::NoDescriptors),
        1..=DESCRIPTORS_MAX => Ok(()),
        _ => Err(Refusal::TooManyDescriptors),
    }
}
