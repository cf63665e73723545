//! Counters of descriptors: the plan that serves finds the check of a descriptor, and the store
//! reads its counter.

use std::sync::{Arc, OnceLock};

use axum::body::Body;
use futures_util::future::join_all;
use http::StatusCode;

use crate::api::body::read_body;
use crate::api::decode;
use crate::api::messages::{self, EXAMPLE};
use crate::base::text::Text;
use crate::base::time::{Clock, Time};
use crate::limiter::{self, Modes};
use crate::limits::Limit;
use crate::limits::check::{Check, CheckError, Effect, Hits, Reading};
use crate::operator::admin::api::answer::{Answer, Rejected};
use crate::operator::admin::api::change::{Action, CounterAction};
use crate::operator::admin::api::limit_name::{chosen, only_above};
use crate::operator::admin::api::top::reject_removed;
use crate::operator::admin::explain::{BODY_BYTES_MAX, NO_RULES};
use crate::operator::admin::query_string::Pairs;
use crate::report::counter::{CountedIn, CounterChange, CounterLimit, CounterList, CounterView};
use crate::rules::explain::explain;
use crate::rules::query::{Descriptor, Entry, Query};
use crate::rules::{LiveRules, Plan, RuleSet, Step, plan};
use crate::store::{Backend, Store};

const GET_USAGE: &str =
    "write ?domain=DOMAIN&e=KEY%3DVALUE with an `e` for each entry, key and value percent-encoded";
const UNREAD: &str = "the change is done, and the counter could not be read afterwards";

/// Finds and reads the counters of descriptors.
#[derive(Debug)]
pub(crate) struct Counters {
    pub(super) rules: Arc<LiveRules>,
    modes: Modes,
    backend: Backend,
    pub(super) clock: Clock,
    /// Opened by the first request, on the thread of the admin listener.
    store: OnceLock<Store>,
}

impl Counters {
    pub(crate) fn new(rules: Arc<LiveRules>, modes: Modes, backend: Backend, clock: Clock) -> Self {
        Self { rules, modes, backend, clock, store: OnceLock::new() }
    }

    /// GET: one descriptor, with an entry for each `e` in the query string.
    pub(crate) async fn read_by_query(&self, pairs: &Pairs) -> Answer<CounterView> {
        reject_removed(pairs, "scope")?;
        let query = query_of_pairs(pairs)?;
        let limit = pairs.text("limit");
        let read = self.read(query, Some(&*limit).filter(|name| !name.is_empty())).await;
        Ok(read?.swap_remove(0))
    }

    /// POST: a request in the form of `/json`.
    pub(crate) async fn read_by_body(&self, body: Body) -> Answer<CounterList> {
        let body = read_body(body, BODY_BYTES_MAX, |_| true).await?;
        let invalid = |reason: String| Rejected::bad_request(format!("{reason}; write {EXAMPLE}"));
        let request = messages::read(&body).map_err(|error| invalid(format!("{error:#}")))?;
        let (query, _) = decode::query(&request).map_err(|error| invalid(error.to_string()))?;
        let counters = self.read(query, None).await?;
        Ok(CounterList { counters })
    }

    /// Changes the counter of a descriptor. Concurrent hits may come between the change and the
    /// counters before and after it.
    pub(crate) async fn change(&self, change: &CounterAction) -> Result<CounterChange, Rejected> {
        let entries = change.entries.iter().map(|[key, value]| Entry::new(key, value));
        let query = Query::of(&change.domain, Descriptor::new(entries));
        let rules = self.rules.load();
        let rules = rules.as_ref().ok_or_else(no_rules)?;
        let now = self.clock.now();
        let plan = self.plan(rules, &query, now)?;
        let step = &plan.steps[0];
        let link = chosen(step, change.limit.as_deref())?;
        let check = &plan.request.checks[link.ok_or_else(only_above)?.check];
        check_grant(change, &check.limit)?;
        let store = self.store();
        let counted_in = match store {
            Store::Memory(_) => CountedIn::Memory,
            Store::Redis(_) => CountedIn::Redis,
        };
        let shown = |reading: &Reading| {
            let leased = store.leased(check);
            counter(&query, step, check, reading, leased, counted_in)
        };
        let before = store.peek(check, now).await.map_err(unchanged)?;
        match change.action {
            Action::Reset => store.reset(check, now).await,
            Action::Grant => store.grant(check, change.hits, now).await,
        }
        .map_err(|error| match error.effect {
            Effect::None => unchanged(error),
            Effect::Unknown => maybe_changed(error),
        })?;
        let after = store.peek(check, self.clock.now()).await;
        Ok(CounterChange {
            before: shown(&before),
            note: after.is_err().then(|| UNREAD.to_owned()),
            after: after.ok().map(|after| shown(&after)),
        })
    }

    /// A counter for each descriptor: that of the limit with this name, or else of the innermost
    /// rule.
    pub(crate) async fn read(
        &self,
        mut query: Query<'_>,
        limit: Option<&str>,
    ) -> Result<Vec<CounterView>, Rejected> {
        let rules = self.rules.load();
        let rules = rules.as_ref().ok_or_else(no_rules)?;
        for descriptor in &mut query.descriptors {
            descriptor.hits = Hits::Peek;
        }
        let now = self.clock.now();
        let plan = self.plan(rules, &query, now)?;
        let links = plan.steps.iter().map(|step| chosen(step, limit));
        let links = links.collect::<Result<Vec<_>, _>>()?;
        let query = &query;
        let plan = &plan;
        let counters = plan.steps.iter().zip(links).map(|(step, link)| async move {
            let Some(link) = link.or(step.links().last()) else {
                return uncounted(query, step);
            };
            let check = &plan.request.checks[link.check];
            let (reading, counted_in) = self.read_check(check, now).await;
            let leased = self.store().leased(check);
            counter(query, step, check, &reading, leased, counted_in)
        });
        Ok(join_all(counters).await)
    }

    /// The plan of a request, of which at least one descriptor has a counter.
    pub(super) fn plan<'r>(
        &self,
        rules: &'r RuleSet,
        query: &Query<'_>,
        now: Time,
    ) -> Result<Plan<'r>, Rejected> {
        limiter::validate(query).map_err(|invalid| Rejected::bad_request(invalid.to_string()))?;
        let plan = plan(rules, query, self.modes, now)
            .map_err(|invalid| Rejected::bad_request(invalid.to_string()))?;
        if plan.request.checks.is_empty() {
            let explanation = explain(rules, query, self.modes);
            let none = Rejected::new(StatusCode::NOT_FOUND, "no rule counts the descriptor");
            return Err(none.explained(explanation));
        }
        Ok(plan)
    }

    pub(super) async fn read_check(&self, check: &Check, now: Time) -> (Reading, CountedIn) {
        let store = self.store();
        match (store.peek(check, now).await, store) {
            (Ok(reading), Store::Memory(_)) => (reading, CountedIn::Memory),
            (Ok(reading), Store::Redis(_)) => (reading, CountedIn::Redis),
            (Err(error), _) => {
                let local = store.decide_locally(&[(check, error)], now);
                (Reading::new(local[0], None), CountedIn::Fallback)
            }
        }
    }

    fn store(&self) -> &Store {
        self.store.get_or_init(|| self.backend.open())
    }
}

/// Rejects what would not leave exactly the granted hits.
fn check_grant(change: &CounterAction, limit: &Limit) -> Result<(), Rejected> {
    let unprocessable = |reason| Err(Rejected::new(StatusCode::UNPROCESSABLE_ENTITY, reason));
    if change.action != Action::Grant {
        return Ok(());
    }
    if limit.algorithm.counts_holders() {
        let reason = "a concurrency limit has holders instead of hits; reset removes all of them";
        return unprocessable(reason.to_owned());
    }
    if change.hits > limit.capacity {
        let capacity = limit.capacity;
        return unprocessable(format!(
            "a counter gives back at most its limit, {capacity} hits, and an unused one none; write hits of at most {capacity}, and grant again when they are used. For more in each period change the rule"
        ));
    }
    Ok(())
}

/// 503 for an action that was not done.
fn unchanged(error: CheckError) -> Rejected {
    let reason = format!("{}; nothing was changed", error.error);
    Rejected::new(StatusCode::SERVICE_UNAVAILABLE, reason)
}

/// 503 for an action without a reply.
fn maybe_changed(error: CheckError) -> Rejected {
    let reason = format!("{}; the counter may have changed, so read it", error.error);
    Rejected::new(StatusCode::SERVICE_UNAVAILABLE, reason)
}

pub(super) fn no_rules() -> Rejected {
    Rejected::new(StatusCode::SERVICE_UNAVAILABLE, NO_RULES.trim_end())
}

/// A descriptor with a counter.
fn counter(
    query: &Query<'_>,
    step: &Step<'_>,
    check: &Check,
    reading: &Reading,
    leased: u64,
    counted_in: CountedIn,
) -> CounterView {
    let verdict = &reading.verdict;
    CounterView {
        key: Some(check.key.to_string()),
        algorithm: Some(check.limit.algorithm),
        limit: Some(limit(&check.limit)),
        used: Some(verdict.used),
        leased: Some(leased),
        remaining: Some(verdict.remaining),
        resets_in_seconds: Some(verdict.reset_after.ceil_secs()),
        over_limit: reading.is_exhausted,
        counted_in: Some(counted_in),
        ..uncounted(query, step)
    }
}

/// A descriptor without a counter.
fn uncounted(query: &Query<'_>, step: &Step<'_>) -> CounterView {
    CounterView {
        domain: Text(query.domain).shown().into_owned(),
        rule: step.path().as_deref().map(str::to_owned),
        ..CounterView::default()
    }
}

/// The descriptor that a query string names.
pub(super) fn query_of_pairs(pairs: &Pairs) -> Result<Query<'_>, Rejected> {
    reject_removed(pairs, "hashed")?;
    let domain = pairs.first("domain");
    if domain.is_empty() || pairs.all("e").next().is_none() {
        let reason = format!("a domain and at least one entry are needed; {GET_USAGE}");
        return Err(Rejected::bad_request(reason));
    }
    Query::of_entries(domain, pairs.all("e"))
        .map_err(|invalid| Rejected::bad_request(format!("{invalid}; {GET_USAGE}")))
}

/// A lease is no period.
fn limit(limit: &Limit) -> CounterLimit {
    let is_held = limit.algorithm.counts_holders();
    CounterLimit {
        requests: limit.requests,
        period_seconds: (!is_held).then(|| limit.period.ceil_secs()),
        burst: limit.algorithm.is_bucket().then_some(limit.capacity),
    }
}
