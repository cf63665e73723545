//! Decides one request: rules snapshot, plan, store, fallback, response.
//!
//! [`Limiter::decide`] is the whole path, top to bottom. What a step does is in its own file: the plan in
//! `rules/plan.rs`, missing verdicts in `fallback.rs`, the response in `combine.rs`, waiting in `queue.rs`.

use std::sync::Arc;

use crate::candidate::{self, Candidate};
use crate::check::Check;
use crate::limiter::combine::combine;
use crate::limiter::decision::Decision;
use crate::limiter::fallback::Fallback;
use crate::limiter::over_limit_log::OverLimitLog;
use crate::limiter::queue::{Queue, QueueMetrics, QueuePermit};
use crate::limiter::response::Response;
use crate::over_limit_feed::OverLimitFeed;
use crate::record::Recorder;
use crate::rules::query::Query;
use crate::rules::stats::StatsTable;
use crate::rules::{LiveRules, RuleSet, plan};
use crate::store::{Backend, Store};
use crate::telemetry::metric::{Counter, Metrics};
use crate::telemetry::traces::LiveSpan;
use crate::time::{Clock, Span, Time};
use crate::top_keys::{self, TopKeys};

pub use crate::rules::plan::{InvalidRequest, Modes};
pub use error::{LimiterError, validate};
pub use settings::Settings;

mod combine;
pub(crate) mod decision;
mod error;
pub mod fallback;
mod headers;
mod metadata;
mod observe;
mod over_limit_log;
pub mod queue;
pub mod response;
pub mod settings;

/// Decides the requests of one worker.
#[derive(Debug, Clone)]
pub struct Limiter {
    shared: Arc<Shared>,
    store: Store,
    /// `None` without a source of candidate rules.
    candidate: Option<candidate::Worker>,
    /// `None` if no operator can read them.
    top_keys: Option<top_keys::Worker>,
    queue: Queue,
}

/// What the limiters of all workers share.
#[derive(Debug)]
pub struct Shared {
    parts: Parts,
    candidate: Option<Candidate>,
    /// `None` without RECORD_FILE.
    recorder: Option<Recorder>,
    /// `None` if no operator can read them.
    observers: Option<Observers>,
    over_limit_log: OverLimitLog,
    service_error: Counter,
    invalid: Counter,
    global_shadow_mode: Counter,
    queue: QueueMetrics,
}

/// The components that a limiter uses.
#[derive(Debug)]
pub struct Parts {
    /// The rules in force.
    pub rules: Arc<LiveRules>,
    /// Where hits are counted.
    pub backend: Backend,
    /// Fills verdicts that the store did not give.
    pub fallback: Fallback,
    /// The time of every decision.
    pub clock: Clock,
    /// Metrics of rules.
    pub stats: Arc<StatsTable>,
    /// What a response contains, and what is logged.
    pub settings: Settings,
}

/// What operators read of the decisions of all workers.
#[derive(Debug, Clone)]
pub struct Observers {
    /// The keys with the most hits.
    pub top_keys: TopKeys,
    /// Responses of OVER_LIMIT.
    pub feed: OverLimitFeed,
}

/// The right to wait for a booked slot, and how long that is.
pub(crate) type Wait<'q> = Option<(QueuePermit<'q>, Span)>;

impl Shared {
    /// Builds what the limiters of all workers share.
    pub fn new(parts: Parts, metrics: &Metrics) -> Self {
        Self {
            over_limit_log: OverLimitLog::new(
                parts.settings.refusals_log_sample_rate,
                parts.settings.refusals_log_lines_per_second_max.get(),
                metrics,
            ),
            service_error: fallback::failed_calls("service_error", metrics),
            invalid: metrics.counter(
                "tollgate_invalid_requests_total",
                "Requests rejected with INVALID_ARGUMENT: more than descriptors_max descriptors or entries_max entries, \
                 a limit that cannot be counted, or a holder without a name.",
            ),
            global_shadow_mode: metrics.reference_counter(
                "ratelimit.service.global_shadow_mode",
                "ratelimit_service_global_shadow_mode",
                "Requests over their limit that SHADOW_MODE admitted.",
                &[],
            ),
            queue: QueueMetrics::new(metrics),
            candidate: None,
            recorder: None,
            observers: None,
            parts,
        }
    }

    /// Decides each request with candidate rules, too.
    pub(crate) fn with_candidate(self, candidate: Option<Candidate>) -> Self {
        Self { candidate, ..self }
    }

    /// Records each request.
    pub(crate) fn with_recorder(self, recorder: Option<Recorder>) -> Self {
        Self { recorder, ..self }
    }

    /// Shows each decision to operators.
    #[must_use]
    pub fn with_observers(self, observers: Observers) -> Self {
        Self {
            observers: Some(observers),
            ..self
        }
    }

    /// A limiter for the worker that this is called on.
    pub fn open(self: Arc<Self>) -> Limiter {
        Limiter {
            store: self.parts.backend.open(),
            candidate: self.candidate.as_ref().map(Candidate::open),
            top_keys: self
                .observers
                .as_ref()
                .map(|observers| observers.top_keys.open()),
            queue: Queue::new(self.queue.clone()),
            shared: self,
        }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.parts.clock
    }
}

impl Limiter {
    /// Decides one request. A request that booked a slot gets its response when the slot begins; if
    /// the future is dropped before, the slot stays booked. `call` is the span of the request, if it
    /// is traced.
    ///
    /// # Errors
    /// [`LimiterError`], counted in the metrics.
    pub async fn decide(
        &self,
        query: &Query<'_>,
        call: Option<&LiveSpan>,
    ) -> Result<Response, LimiterError> {
        let mut span = call.map(|call| observe::start_span(call, query));
        let decided = self.decide_at_once(query, span.as_mut(), |_| ()).await;
        let (response, wait, ()) = decided.inspect_err(|error| {
            if let Some(span) = &mut span {
                span.fail(error.to_string());
            }
            self.count(error);
        })?;
        if let Some((permit, wait)) = wait {
            permit.wait(wait).await;
        }
        Ok(response)
    }

    /// Everything but the wait, which must not keep the rules snapshot alive. `inspect` reads the
    /// decision before it is dropped.
    pub(crate) async fn decide_at_once<T>(
        &self,
        query: &Query<'_>,
        span: Option<&mut LiveSpan>,
        inspect: impl FnOnce(&Decision<'_, '_, '_>) -> T,
    ) -> Result<(Response, Wait<'_>, T), LimiterError> {
        validate(query)?;
        let Parts {
            fallback,
            clock,
            settings,
            ..
        } = &self.shared.parts;
        let rules = self.shared.parts.rules.load();
        let rules = rules.as_ref().ok_or(LimiterError::NoRules)?;
        let now = clock.now();
        if let Some(recorder) = &self.shared.recorder {
            recorder.record(query, rules, now);
        }
        let mut plan = plan(rules, query, settings.modes(), now)?;
        let permit = self.queue.permit_for(&mut plan.request);

        let candidate = self
            .candidate
            .as_ref()
            .and_then(|candidate| candidate.begin(query, settings.modes(), now, &self.store));
        let decide = || self.store.decide(&plan.request, now, span.as_deref());
        let decisions = match candidate {
            None => decide().await,
            // Boxed to keep the future of requests without candidate rules small.
            Some(call) => Box::pin(call.beside(query, &plan, decide())).await,
        };
        let (mut verdicts, store_errors) = fallback.fill(&plan, decisions, &self.store, clock)?;
        let blocked = plan.request.is_blocked(&verdicts);
        // A blocked request has booked nothing.
        if let Some(permit) = permit.as_ref().filter(|_| !blocked) {
            permit.reject_expired(&mut verdicts, clock.now(), query.deadline);
        }

        let decision = Decision {
            query,
            plan: &plan,
            verdicts: &verdicts,
            store_errors: &store_errors,
            blocked,
        };
        let response = combine(
            &decision,
            settings,
            queue::jitter(settings.retry_after_jitter),
        );
        self.record(&decision, &response, rules, now);
        if let Some(span) = span {
            observe::describe(span, &decision, &response, fallback);
        }
        if response.over_limit
            && let Some(left_out) = self.shared.over_limit_log.admit(now)
        {
            observe::log_over_limit(&decision, &response, fallback, left_out);
        }
        // A response of OVER_LIMIT is sent at once.
        let wait = permit
            .filter(|_| !response.over_limit)
            .map(|permit| (permit, queue::wait(&verdicts)));
        let inspected = inspect(&decision);
        Ok((response, wait, inspected))
    }

    /// Adds a decision to the metrics, and to what operators read.
    fn record(
        &self,
        decision: &Decision<'_, '_, '_>,
        response: &Response,
        rules: &RuleSet,
        now: Time,
    ) {
        let parts = &self.shared.parts;
        if !decision.plan.domain_known {
            let descriptors = decision.query.descriptors.len() as u64;
            parts
                .stats
                .domain_not_found(&decision.domain(), descriptors);
        }
        if response.shadowed {
            self.shared.global_shadow_mode.inc();
        }
        let (query, steps) = (decision.query, &decision.plan.steps);
        let near_ratio = parts.settings.near_limit_ratio;
        let mut top_keys = self.top_keys.as_ref().map(top_keys::Worker::lock);
        let count = |index: usize, check: &Check, counts| {
            if let Some(top_keys) = &mut top_keys {
                top_keys.record(rules, (query, index), &steps[index], &check.key, counts);
            }
        };
        decision.record(response, &parts.stats, near_ratio, now, count);
        if let Some(index) = response.rejected_by
            && let Some(Observers { feed, .. }) = &self.shared.observers
        {
            feed.send(rules, (query, index), &steps[index], now);
        }
    }

    /// Counts why a request has no response. [`Self::decide`] calls it itself.
    pub(crate) fn count(&self, error: &LimiterError) {
        match error {
            LimiterError::NoDomain | LimiterError::NoDescriptors | LimiterError::NoRules => {
                self.shared.service_error.inc();
            }
            LimiterError::Invalid(_) => self.count_invalid(),
            // Counted by the fallback.
            LimiterError::Store(_) => {}
        }
    }

    /// Counts a request that is invalid, or too large to be decided.
    pub(crate) fn count_invalid(&self) {
        self.shared.invalid.inc();
    }

    /// The clock of every decision.
    pub fn clock(&self) -> &Clock {
        self.shared.clock()
    }
}
