//! Decides one request: rules snapshot, plan, store, fallback, response.
//!
//! [`Limiter::decide`] is the whole path, top to bottom. What a step does is in its own file: the
//! plan in `rules/plan.rs`, missing verdicts in `fallback.rs`, the response in `combine.rs`,
//! waiting in `queue.rs`.

use std::sync::Arc;

use crate::base::time::{Clock, Span, Time};
use crate::limiter::combine::combine;
use crate::limiter::decision::Decision;
use crate::limiter::fallback::{Fallback, WaitingCall};
use crate::limiter::queue::{Queue, QueueMetrics, QueuePermit};
use crate::limiter::response::Response;
use crate::limits::check::Blocked;
use crate::rules::query::Query;
use crate::rules::{LiveRules, Plan};
use crate::store::{Backend, Store};
use crate::telemetry::metric::Metrics;
use crate::telemetry::traces::LiveSpan;

pub use crate::rules::plan::{InvalidRequest, Modes};
pub use error::{LimiterError, validate};
pub use observers::Observers;
pub use settings::Settings;

mod combine;
pub(crate) mod decision;
mod describe;
mod error;
pub mod fallback;
mod headers;
mod metadata;
mod observers;
mod over_limit_log;
pub mod queue;
pub mod response;
pub mod settings;
mod warnings;

/// Decides the requests of one worker.
#[derive(Debug, Clone)]
pub struct Limiter {
    shared: Arc<Shared>,
    store: Store,
    queue: Queue,
    observers: Option<observers::Worker>,
}

/// Parts that the limiters of all workers share.
#[derive(Debug)]
pub struct Shared {
    parts: Parts,
    queue: QueueMetrics,
}

/// The components that a limiter uses.
#[derive(Debug, Clone)]
pub struct Parts {
    /// The rules in force.
    pub rules: Arc<LiveRules>,
    /// The store of the counters.
    pub backend: Backend,
    /// Fills verdicts that the store did not give.
    pub fallback: Fallback,
    /// The time of every decision.
    pub clock: Clock,
    /// Settings of the response.
    pub settings: Settings,
    /// `None` for decisions without metrics: offline.
    pub observers: Option<Arc<Observers>>,
}

/// The right to wait for a booked slot, and how long that is.
pub(crate) type Wait<'q> = Option<(QueuePermit<'q>, Span)>;

impl Shared {
    /// Builds what the limiters of all workers share.
    pub fn new(parts: Parts, metrics: &Metrics) -> Self {
        Self { queue: QueueMetrics::new(metrics), parts }
    }

    /// A limiter for the worker that this is called on.
    pub fn open(self: Arc<Self>) -> Limiter {
        Limiter {
            store: self.parts.backend.open(),
            queue: Queue::new(self.queue.clone()),
            observers: self.parts.observers.as_ref().map(Observers::open),
            shared: self,
        }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.parts.clock
    }
}

impl Limiter {
    /// Decides one request. A request that booked a slot gets its response when the slot begins; if
    /// the future is dropped before, the slot stays booked. `call` is the span of the request, if
    /// it is traced.
    ///
    /// # Errors
    /// [`LimiterError`], counted in the metrics.
    pub async fn decide(
        &self,
        query: &Query<'_>,
        call: Option<&LiveSpan>,
    ) -> Result<Response, LimiterError> {
        let mut span = call.map(|call| describe::start_span(call, query));
        let now = self.clock().now();
        match self.decide_at_once(query, now, span.as_mut(), |_| ()).await {
            Ok((response, wait, ())) => {
                if let Some((permit, wait)) = wait {
                    permit.wait(wait).await;
                }
                Ok(response)
            }
            Err(error) => {
                if let Some(span) = &mut span {
                    span.fail(error.to_string());
                }
                self.count(&error);
                if let Some(observers) = &self.observers {
                    let rules = self.shared.parts.rules.load();
                    observers.log_failed(query, rules.as_ref(), &error, now);
                }
                Err(error)
            }
        }
    }

    /// Everything but the wait, which must not keep the rules snapshot alive. The request came
    /// `now`. `inspect` reads the decision before it is dropped.
    pub(crate) async fn decide_at_once<T>(
        &self,
        query: &Query<'_>,
        now: Time,
        span: Option<&mut LiveSpan>,
        inspect: impl FnOnce(&Decision<'_, '_, '_>) -> T,
    ) -> Result<(Response, Wait<'_>, T), LimiterError> {
        validate(query)?;
        let Parts { fallback, clock, settings, .. } = &self.shared.parts;
        let rules = self.shared.parts.rules.load();
        let rules = rules.as_ref().ok_or(LimiterError::NoRules)?;
        let mut plan = Plan::default();
        plan.make(rules, query, settings.modes(), now)?;
        let permit = self.queue.permit_for(&mut plan.request);

        let waiting = WaitingCall {
            fallback,
            store: &self.store,
            clock,
            request: &plan.request,
            received: now,
        };
        let decisions = self.store.decide(&plan.request, now, span.as_deref()).await;
        waiting.end();
        let (mut verdicts, store_errors) = fallback.fill(&plan, decisions, &self.store, clock)?;
        let over = verdicts.iter().map(|verdict| verdict.over);
        let blocked = Blocked::of(plan.request.checks.iter().zip(over));
        // A blocked request has booked nothing.
        if let Some(permit) = permit.as_ref().filter(|_| blocked.is_empty()) {
            permit.reject_expired(&mut verdicts, clock.now(), query.deadline);
        }

        let decision = Decision {
            query,
            rules,
            plan: &plan,
            verdicts: &verdicts,
            store_errors: &store_errors,
            blocked: &blocked,
            now,
        };
        let jitter = queue::jitter(settings.retry_after_jitter);
        let response = combine(&decision, settings, jitter);
        if let Some(observers) = &self.observers {
            observers.decided(&decision, &response, fallback, span);
        }
        // A response of OVER_LIMIT is sent at once.
        let wait =
            permit.filter(|_| !response.over_limit).map(|permit| (permit, queue::wait(&verdicts)));
        let inspected = inspect(&decision);
        Ok((response, wait, inspected))
    }

    /// Counts why a request has no response. [`Self::decide`] calls it itself.
    pub(crate) fn count(&self, error: &LimiterError) {
        if let Some(observers) = &self.observers {
            observers.failed(error);
        }
    }

    /// Counts a request that is too large to be decided.
    pub(crate) fn count_invalid(&self) {
        if let Some(observers) = &self.observers {
            observers.invalid();
        }
    }

    /// The clock of every decision.
    pub fn clock(&self) -> &Clock {
        self.shared.clock()
    }
}
