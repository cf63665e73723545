//! Observers of decisions: metrics, top keys, over-limit feed and log.
//!
//! Decisions offline have none.

use std::sync::Arc;

use crate::base::time::{Clock, Time};
use crate::limiter::decision::{Counted, Decision};
use crate::limiter::describe;
use crate::limiter::error::LimiterError;
use crate::limiter::fallback::{Fallback, failed_calls};
use crate::limiter::over_limit_log::OverLimitLog;
use crate::limiter::queue::is_booked;
use crate::limiter::response::Response;
use crate::limiter::settings::Settings;
use crate::operator::observe::call_log::CallLog;
use crate::operator::observe::feed::{Crossing, Event, OverLimitFeed};
use crate::operator::observe::responses::{Admitted, Responses};
use crate::operator::observe::top_keys::{self, TopKeys};
use crate::operator::observe::unmatched::Unmatched;
use crate::rules::stats::StatsTable;
use crate::rules::stats::counts::Disposition;
use crate::rules::{Descriptor, Link, Query, RuleSet, Step};
use crate::telemetry::metric::{Counter, Metrics};
use crate::telemetry::traces::LiveSpan;

/// The observers of all workers.
#[derive(Debug)]
pub struct Observers {
    stats: Arc<StatsTable>,
    near_limit_ratio: f32,
    pub(crate) top_keys: TopKeys,
    pub(crate) feed: OverLimitFeed,
    pub(crate) unmatched: Unmatched,
    pub(crate) responses: Responses,
    log: OverLimitLog,
    /// `None` unless LOG_LEVEL is debug or lower.
    calls: Option<CallLog>,
    service_error: Counter,
    invalid: Counter,
    global_shadow_mode: Counter,
}

/// The observers on one worker.
#[derive(Debug, Clone)]
pub(crate) struct Worker {
    shared: Arc<Observers>,
    top_keys: top_keys::Worker,
}

impl Observers {
    /// Registers the metrics.
    pub fn new(
        stats: Arc<StatsTable>,
        feed: OverLimitFeed,
        settings: &Settings,
        clock: &Clock,
        metrics: &Metrics,
    ) -> Self {
        Self {
            stats,
            near_limit_ratio: settings.near_limit_ratio,
            top_keys: TopKeys::new(clock.clone(), metrics),
            feed,
            unmatched: Unmatched::new(metrics),
            responses: Responses::new(metrics),
            log: OverLimitLog::new(
                settings.refusals_log_sample_rate,
                settings.refusals_log_lines_per_second_max.get(),
                metrics,
            ),
            calls: CallLog::new(metrics),
            service_error: failed_calls("service_error", metrics),
            invalid: metrics.counter(
                "tollgate_invalid_requests_total",
                "Requests rejected with INVALID_ARGUMENT: more than descriptors_max descriptors, entries_max entries or checks_max checks, \
                 a limit that cannot be counted, or a holder without a name.",
            ),
            global_shadow_mode: metrics.reference_counter(
                "ratelimit.service.global_shadow_mode",
                "ratelimit_service_global_shadow_mode",
                "Requests over their limit that SHADOW_MODE admitted.",
                &[],
            ),
        }
    }

    /// For the worker that this is called on.
    pub(crate) fn open(self: &Arc<Self>) -> Worker {
        Worker { top_keys: self.top_keys.open(), shared: self.clone() }
    }

    /// Observes what is used of a limit, and the thresholds that the request crossed.
    fn used<'q>(
        &self,
        decision: &Decision<'_, 'q, '_>,
        descriptor: &Descriptor<'q>,
        counted: &Counted<'_, '_>,
    ) {
        counted.store_usage(decision);
        let Some(warn_at) = counted.link.warn_at() else {
            return;
        };
        for percent in counted.crossed(warn_at, decision.blocked) {
            self.crossed(decision, descriptor, counted, percent);
        }
    }

    /// Observes descriptors that no rule matches.
    #[cold]
    fn unmatched(&self, decision: &Decision<'_, '_, '_>) {
        let Decision { query, plan, now, .. } = *decision;
        let steps = plan.steps.iter();
        let descriptors = steps.filter(|step| matches!(step, Step::NoRule)).count() as u64;
        let domain = decision.domain();
        if plan.domain_known {
            self.stats.unmatched(&domain, descriptors);
        } else {
            self.stats.domain_not_found(&domain, descriptors);
            self.unmatched.warn_of_domain(decision.rules, query.domain, now);
        }
        self.unmatched.record(query, &plan.steps, now);
    }

    /// Observes that a request crossed a threshold.
    #[cold]
    fn crossed<'q>(
        &self,
        decision: &Decision<'_, 'q, '_>,
        descriptor: &Descriptor<'q>,
        counted: &Counted<'_, '_>,
        percent: u8,
    ) {
        let link = counted.link;
        let crossing =
            Crossing { threshold_percent: percent, used_percent: counted.used_percent() };
        match (link.further, link.own_rule()) {
            (Some(further), _) => further.stats.crossed(percent),
            (None, Some(rule)) => rule.stats.of_limit(&rule.name).crossed(percent),
            (None, None) => {}
        }
        let event = event(decision, descriptor, counted, Some(crossing));
        if self.feed.is_read() {
            self.feed.send(&event);
        }
        if let Some(dropped) = self.log.admit_crossing(decision.now) {
            self.feed.redacted(&event, |query| {
                describe::log_crossing(query, counted, crossing, dropped);
            });
        }
    }
}

fn event<'o, 'q>(
    decision: &'o Decision<'_, 'q, '_>,
    descriptor: &'o Descriptor<'q>,
    counted: &Counted<'o, 'o>,
    crossing: Option<Crossing>,
) -> Event<'o, 'q> {
    Event {
        rules: decision.rules,
        domain: decision.query.domain,
        descriptor,
        link: counted.link,
        check: counted.check,
        verdict: counted.verdict,
        crossing,
        now: decision.now,
    }
}

/// Whether a limit that is exceeded does not reject the request.
fn admits(link: &Link<'_>, response: &Response) -> bool {
    link.passes && (link.admits() || !response.over_limit)
}

/// Why the response is OK although this limit is exceeded.
#[cold]
fn admitted_by(link: &Link<'_>, response: &Response) -> Admitted {
    match link.rule {
        _ if link.in_shadow() || response.shadowed => Admitted::Shadow,
        Some(rule) if rule.degrades() => Admitted::Degrade,
        _ => Admitted::Quota,
    }
}

impl Worker {
    /// Observes a decision. `span` is that of its request, if it is traced.
    pub(crate) fn decided(
        &self,
        decision: &Decision<'_, '_, '_>,
        response: &Response,
        fallback: &Fallback,
        span: Option<&mut LiveSpan>,
    ) {
        let observers = &*self.shared;
        let Decision { query, now, .. } = *decision;
        if decision.plan.has_unmatched {
            observers.unmatched(decision);
        }
        observers.responses.record(response.over_limit);
        if response.shadowed {
            observers.global_shadow_mode.inc();
        }
        self.count(decision, response);
        if let Some(span) = span {
            describe::end_span(span, decision, response, fallback);
        }
        if let Some(calls) = &observers.calls {
            let answer = || Ok((decision.outcomes(), response.over_limit));
            calls.log(query, decision.rules, now, &observers.feed, answer);
        }
        let Some(index) = response.rejected_by else {
            return;
        };
        let step = &decision.plan.steps[index];
        let descriptor = &query.descriptors[index];
        if observers.feed.is_read()
            && let Some(counted) = decision.counted(step)
        {
            let event = event(decision, descriptor, &counted, None);
            observers.feed.send(&event);
        }
        if let Some(dropped) = observers.log.admit(now) {
            describe::log_over_limit(decision, index, fallback, dropped);
        }
    }

    /// Adds every counted step to the metrics of its rule, and to the top keys.
    fn count(&self, decision: &Decision<'_, '_, '_>, response: &Response) {
        let Decision { query, plan, .. } = *decision;
        let observers = &*self.shared;
        let mut top_keys = self.top_keys.lock();
        let mut admitted = None;
        for (step, descriptor) in plan.steps.iter().zip(&query.descriptors) {
            for limits in step.links().chunk_by(Link::is_of_same_rule) {
                for link in limits {
                    observers.used(decision, descriptor, &decision.of(link));
                }
                let Some(counted) = decision.decisive(limits) else {
                    continue;
                };
                let Counted { link, check, verdict } = counted;
                let of_client;
                let counters = match (&link.metric_name, link.own_rule()) {
                    (Some(name), _) => {
                        of_client = observers.stats.of_client(&decision.domain(), name);
                        &of_client
                    }
                    (None, Some(rule)) => &rule.stats,
                    (None, None) => continue,
                };
                let disposition = match link.rule {
                    _ if decision.blocked.has(check) && !verdict.over => Disposition::NotConsumed,
                    _ if link.in_shadow() => Disposition::Shadowed,
                    Some(rule) if response.degraded && rule.degrades() => Disposition::Degraded,
                    _ if verdict.over && admits(link, response) => Disposition::Admitted,
                    _ if is_booked(verdict) && !response.over_limit => Disposition::Queued,
                    _ => Disposition::Nothing,
                };
                let near_limit_ratio = observers.near_limit_ratio;
                let counts = counters.record(check, verdict, disposition, near_limit_ratio);
                if counts.over_limit > 0 && !response.over_limit {
                    admitted = admitted.or_else(|| Some(admitted_by(link, response)));
                }
                let rules = decision.rules;
                let domain = query.domain;
                top_keys.record(rules, domain, descriptor, link, &check.key, counts);
            }
        }
        if let Some(by) = admitted {
            observers.responses.record_admitted(by);
        }
    }

    /// Observes why a request has no response.
    pub(crate) fn failed(&self, error: &LimiterError) {
        match error {
            LimiterError::NoDomain | LimiterError::NoDescriptors | LimiterError::NoRules => {
                self.shared.service_error.inc();
            }
            LimiterError::Invalid(_) => self.invalid(),
            // Counted by the fallback.
            LimiterError::Store(_) => {}
        }
    }

    /// Logs a request that has no response, if calls are logged.
    pub(crate) fn log_failed(
        &self,
        query: &Query<'_>,
        rules: Option<&Arc<RuleSet>>,
        error: &LimiterError,
        now: Time,
    ) {
        let Observers { calls, feed, .. } = &*self.shared;
        if let Some(calls) = calls {
            let rules = rules.map_or_else(Arc::default, Arc::clone);
            calls.log(query, &rules, now, feed, || Err(error.to_string()));
        }
    }

    /// Observes a request that is too large to be decided, or invalid.
    pub(crate) fn invalid(&self) {
        self.shared.invalid.inc();
    }
}
