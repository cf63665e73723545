//! Answers a request: one snapshot of the rules, a plan, the store's verdicts, and what they come
//! to; and not before its turn.

use std::sync::Arc;

use crate::check::{StoreError, Verdict, Verdicts};
use crate::limiter::combine::combine;
use crate::limiter::fallback::Fallback;
use crate::limiter::headers::HeaderNames;
use crate::limiter::observe::{DecisionRecord, StoreErrors};
use crate::limiter::over_limit_log::OverLimitLog;
use crate::limiter::queue::{Queue, QueueMetrics, QueuePermit};
use crate::limiter::response::Response;
use crate::rules::query::Query;
use crate::rules::stats::{Disposition, Outcome, RuleStats, StatsTable};
use crate::rules::{LiveRules, Plan, Step, plan};
use crate::store::{Backend, Store};
use crate::telemetry::metric::{Counter, Metrics};
use crate::telemetry::traces::LiveSpan;
use crate::text::Text;
use crate::time::{Clock, Span, Time};

pub use crate::rules::plan::{InvalidRequest, Modes};

pub mod combine;
pub mod fallback;
pub mod headers;
pub mod metadata;
pub mod observe;
pub mod over_limit_log;
pub mod queue;
pub mod response;
pub mod settings;

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
    over_limit_log: OverLimitLog,
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
    pub over_limit_log: over_limit_log::Options,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimiterError {
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
struct Decision<'c, 'r> {
    plan: &'c Plan<'r>,
    verdicts: &'c Verdicts,
    /// A check that may refuse was over, and the others were to stand still then: whoever was not
    /// over has only looked.
    blocked: bool,
    answer: &'c Response,
    /// Where somebody may be told: what the store did not say.
    store_errors: Option<StoreErrors>,
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
        let over_limit_log = OverLimitLog::new(parts.policy.over_limit_log, metrics);
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
            over_limit_log,
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
    /// Decides one request. If it has to wait for its slot, this returns when the slot begins; dropped
    /// before, the slot stays used. `call` is the span of the request, if it is traced.
    ///
    /// # Errors
    /// [`LimiterError`], counted in the metrics.
    pub async fn decide(
        &self,
        query: &Query<'_>,
        call: Option<&LiveSpan>,
    ) -> Result<Response, LimiterError> {
        let mut span = call.map(|call| observe::start_span(call, query));
        let (answer, turn) = self
            .conclude(query, span.as_mut())
            .await
            .inspect_err(|refusal| {
                if let Some(span) = &mut span {
                    span.fail(refusal.to_string());
                }
                self.count(refusal);
            })?;
        if let Some((permit, wait)) = turn {
            permit.wait(wait).await;
        }
        Ok(answer)
    }

    /// Counts why a request has no answer. [`Self::decide`] does so itself.
    pub fn count(&self, refusal: &LimiterError) {
        match refusal {
            LimiterError::NoDomain | LimiterError::NoDescriptors | LimiterError::NoRules => {
                self.shared.metrics.service_error.inc()
            }
            LimiterError::TooManyDescriptors
            | LimiterError::TooManyEntries
            | LimiterError::Invalid(_) => self.shared.metrics.invalid.inc(),
            // Counted where it is decided what to answer.
            LimiterError::Store(_) => {}
        }
    }

    /// The clock that everything here goes by.
    pub fn clock(&self) -> &Clock {
        self.shared.clock()
    }

    /// The answer, and how long it is to be held back, if it may be. The rules are let go of: new
    /// ones may come while somebody waits.
    async fn conclude(
        &self,
        query: &Query<'_>,
        span: Option<&mut LiveSpan>,
    ) -> Result<(Response, Option<(QueuePermit<'_>, Span)>), LimiterError> {
        validate(query)?;
        let Parts {
            rules,
            fallback,
            clock,
            policy,
            ..
        } = &self.shared.parts;
        let rules = rules.load();
        let rules = rules.as_ref().ok_or(LimiterError::NoRules)?;
        let now = clock.now();
        let mut plan = plan(rules, query, policy.modes, now)?;
        let permit = self.queue.permit_for(&mut plan.request);
        let trip = span
            .as_ref()
            .and_then(|span| Some(observe::redis(span, self.store.trip(&plan.request)?)));
        let decisions = self.store.decide(&plan.request, now).await;
        if let Some(trip) = trip {
            observe::redis_said(trip, &decisions);
        }
        let store_errors = (span.is_some() || self.shared.over_limit_log.are_told())
            .then(|| observe::store_errors(&decisions));
        let mut verdicts = fallback.fill(&plan, decisions, &self.store, clock)?;
        let blocked = plan.request.all_or_nothing
            && plan
                .request
                .checks
                .iter()
                .zip(&verdicts)
                .any(|(check, verdict)| check.enforcing && verdict.over);
        // In a blocked request nothing was booked.
        if let Some(permit) = permit.as_ref().filter(|_| !blocked) {
            permit.reject_expired(&mut verdicts, clock.now(), query.deadline);
        }
        let answer = combine(
            query,
            &plan,
            &verdicts,
            policy,
            queue::jitter(policy.retry_after_jitter),
        );
        let decision = Decision {
            plan: &plan,
            verdicts: &verdicts,
            blocked,
            answer: &answer,
            store_errors,
        };
        self.record(query, &decision);
        self.tell(query, &decision, span, now);
        // Whoever is refused need not wait to hear it.
        let turn = permit
            .filter(|_| !answer.over_limit)
            .map(|permit| (permit, queue::wait(&verdicts)));
        Ok((answer, turn))
    }

    fn record(&self, query: &Query<'_>, decision: &Decision<'_, '_>) {
        let &Decision {
            plan,
            verdicts,
            blocked,
            answer,
            ..
        } = decision;
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
            let (check, verdict) = (&plan.request.checks[index], &verdicts[index]);
            let outcome = Outcome {
                limit: &check.limit,
                hits: check.hits,
                verdict,
                not_consumed: blocked && !verdict.over,
                disposition: disposition(step, verdict, answer),
                near_ratio: self.shared.parts.policy.near_limit_ratio,
            };
            self.with_stats(query, step, |stats| stats.record(&outcome));
        }
    }

    /// Tells the trace and the log, if they are to know.
    fn tell(
        &self,
        query: &Query<'_>,
        decision: &Decision<'_, '_>,
        span: Option<&mut LiveSpan>,
        now: Time,
    ) {
        let Decision {
            plan,
            verdicts,
            answer,
            store_errors: Some(store_errors),
            ..
        } = decision
        else {
            return;
        };
        let told = DecisionRecord {
            query,
            plan,
            verdicts,
            store_errors,
            fallback: &self.shared.parts.fallback,
            answer,
        };
        if let Some(span) = span {
            told.tell(span);
        }
        if answer.over_limit
            && let Some(left_out) = self.shared.over_limit_log.admit(now)
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
                rule,
                metric_name: None,
                ..
            } => run(&rule.stats),
            Step::Counted {
                metric_name: Some(name),
                ..
            }
            | Step::Override {
                metric_name: name, ..
            } => {
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
fn disposition(step: &Step<'_>, verdict: &Verdict, answer: &Response) -> Disposition {
    match step.rule() {
        _ if step.in_shadow() => Disposition::Shadowed,
        Some(rule) if answer.degraded && rule.degrades() => Disposition::Degraded,
        _ if queue::is_booked(verdict) && !answer.over_limit => Disposition::Queued,
        _ => Disposition::Nothing,
    }
}

/// Checks what a request needs whatever the rules are.
///
/// # Errors
/// No domain, no descriptors, or too many.
pub fn validate(query: &Query<'_>) -> Result<(), LimiterError> {
    match query.descriptors.len() {
        _ if query.domain.is_empty() => Err(LimiterError::NoDomain),
        0 => Err(LimiterError::NoDescriptors),
        1..=DESCRIPTORS_MAX => Ok(()),
        _ => Err(LimiterError::TooManyDescriptors),
    }
}
