//! `/api/v1/top`: the keys with the most hits of each rule.

use std::str::FromStr;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio_util::task::TaskTracker;

use crate::base::http::response_budget::{ResponseBudget, place_of};
use crate::base::removed::replacement;
use crate::operator::admin::api::answer::{self, Rejected};
use crate::operator::admin::api::top_sums::Sums;
use crate::operator::admin::query_string::Pairs;
use crate::operator::observe::redact::{Redacted, Values};
use crate::operator::observe::top_keys::windows::{By, Window};
use crate::operator::observe::top_keys::{RuleKeys, Selection, TopKeys};
use crate::report::counter::Entries;
use crate::report::top::{KeyHits, RuleHits};
use crate::rules::{Descriptor, LiveRules, Query};

/// Answers of `/api/v1/top` that are prepared at a time: the keys of thousands of rules take tens
/// of megabytes.
// bound top_queries_max: the next one waits; tollgate_admin_responses_full_total
const QUERIES_MAX: usize = 1;

/// Answers which keys have the most hits.
#[derive(Debug)]
pub(crate) struct Top {
    pub(crate) keys: TopKeys,
    rules: Arc<LiveRules>,
    queries: Arc<Semaphore>,
    /// The budget of the admin listener.
    responses: ResponseBudget,
    tasks: TaskTracker,
}

/// The parameters of a request.
pub(crate) struct TopQuery {
    selection: Selection,
    window: Window,
    by: By,
}

impl Top {
    pub(crate) fn new(keys: TopKeys, rules: Arc<LiveRules>, responses: ResponseBudget) -> Self {
        Self {
            keys,
            rules,
            queries: Arc::new(Semaphore::new(QUERIES_MAX)),
            responses,
            tasks: TaskTracker::new(),
        }
    }

    /// The keys of one rule of this process.
    pub(crate) async fn of_rule(
        self: &Arc<Self>,
        domain: &str,
        rule: &str,
        window: Window,
        by: By,
        values: Values,
    ) -> Result<Vec<KeyHits>, Rejected> {
        let [domain, rule] = [domain, rule].map(|name| Some(name.to_owned()));
        let query = TopQuery { selection: Selection { domain, rule }, window, by };
        let keys = |rules: Vec<RuleHits>| rules.into_iter().next().map(|rule| rule.keys);
        Ok(self.read(query, values, keys).await?.unwrap_or_default())
    }

    /// The hits that this process counted, as `show` shows them. Reads keys on other threads: they
    /// may be many, and this one answers liveness probes. What was begun is finished, even if its
    /// request is cancelled meanwhile. Requests of clients that are gone may wait: the end of a
    /// connection is not noticed behind a pipelined request.
    pub(crate) async fn read<T: Default + Send + 'static>(
        self: &Arc<Self>,
        query: TopQuery,
        values: Values,
        show: impl FnOnce(Vec<RuleHits>) -> T + Send + 'static,
    ) -> Result<T, Rejected> {
        let permit = place_of(&self.queries).await;
        if permit.is_none() {
            return Err(self.responses.rejected(answer::full));
        }
        let top = self.clone();
        let prepare = async move {
            let read = top.keys.read(query.selection, query.window).await;
            let sum = move || {
                let rules = read.iter().filter_map(|rule| top.first(rule, query.by, values));
                // The permit counts the hits until they are shown.
                (show(rules.collect()), permit)
            };
            spawn_blocking(sum).await.unwrap_or_default()
        };
        let (shown, _permit) = self.tasks.spawn(prepare).await.unwrap_or_default();
        Ok(shown)
    }

    /// The first keys of a rule; `None` without hits.
    fn first(&self, rule: &RuleKeys, by: By, values: Values) -> Option<RuleHits> {
        let mut sums = Sums::default();
        for key in &rule.keys {
            let query = Query::of(&*rule.domain, Descriptor::new(key.entries.iter()));
            // Without rules those that counted it were withdrawn.
            if let Some(shown) = self.shown(&query, values) {
                sums.add(shown, key.counts);
            }
        }
        let keys = sums.first(by);
        let [domain, rule] = [&*rule.domain, &*rule.rule].map(str::to_owned);
        (!keys.is_empty()).then_some(RuleHits { domain, rule, keys })
    }

    /// `None` if values cannot be left out, because there are no rules.
    fn shown(&self, query: &Query<'_>, values: Values) -> Option<Entries> {
        match (values, self.rules.load().as_ref()) {
            (Values::Clear, _) => Some(key_of(query)),
            (Values::Dropped, Some(rules)) => Some(key_of(&Redacted::of(query, rules).query())),
            (Values::Dropped, None) => None,
        }
    }
}

/// The key of a request with one descriptor.
fn key_of(query: &Query<'_>) -> Entries {
    let entries = query.descriptors.iter().flat_map(|descriptor| &descriptor.entries);
    entries.map(|entry| entry.shown()).collect()
}

impl TopQuery {
    pub(crate) fn read(pairs: &Pairs) -> Result<Self, Rejected> {
        reject_removed(pairs, "scope")?;
        let text = |name| Some(pairs.text(name).into_owned()).filter(|text| !text.is_empty());
        Ok(Self {
            selection: Selection { domain: text("domain"), rule: text("rule") },
            window: one_of(pairs, "window", Window::Minute)?,
            by: one_of(pairs, "by", By::OverLimit)?,
        })
    }
}

/// Rejects a parameter of earlier versions.
pub(crate) fn reject_removed(pairs: &Pairs, name: &str) -> Result<(), Rejected> {
    let value = pairs.text(name);
    let written = [format!("{name}="), format!("{name}={value}")];
    let removed = written.iter().find_map(|written| Some((written, replacement(written)?)));
    match removed.filter(|_| !value.is_empty()) {
        None => Ok(()),
        Some((written, replacement)) => {
            Err(Rejected::bad_request(format!("unknown parameter {written}; {replacement}")))
        }
    }
}

/// The value of a parameter that has a few.
pub(crate) fn one_of<T: FromStr<Err = String>>(
    pairs: &Pairs,
    name: &str,
    default: T,
) -> Result<T, Rejected> {
    let value = pairs.text(name);
    if value.is_empty() {
        return Ok(default);
    }
    value.parse().map_err(|error| Rejected::bad_request(format!("{name} is {value:?}: {error}")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::StatusCode;
    use tokio::time::timeout;

    use super::*;
    use crate::base::time::{Clock, Time};
    use crate::telemetry::metric::Metrics;

    /// Of no keys.
    fn top(metrics: &Metrics) -> Arc<Top> {
        Arc::new(Top::new(
            TopKeys::new(Clock::starting_at(Time::default()), metrics),
            Arc::default(),
            ResponseBudget::new(metrics),
        ))
    }

    #[tokio::test(start_paused = true)]
    async fn queries_do_not_wait_for_others_for_ever() {
        let metrics = Metrics::new();
        let top = top(&metrics);
        let read = async || {
            let query = TopQuery::read(&Pairs::new("")).unwrap_or_else(|error| panic!("{error:?}"));
            top.read(query, Values::Clear, |rules| rules.len()).await
        };
        let other = top.queries.clone().acquire_owned().await;
        let rejected = timeout(Duration::from_secs(6), read()).await;
        let rejected = rejected.expect("it waits for 5 s").err();
        let status = rejected.map(|rejected| rejected.status);
        assert_eq!(status, Some(StatusCode::SERVICE_UNAVAILABLE));
        let page = metrics.page();
        assert!(page.contains("tollgate_admin_responses_full_total 1"), "{page}");
        drop(other);
        assert_eq!(read().await.ok(), Some(0));
    }

    #[test]
    fn parameters_are_read() {
        let read = |query| TopQuery::read(&Pairs::new(query));
        let query = read("domain=a%26b&rule=r+s&window=60m");
        let query = query.unwrap_or_else(|rejected| panic!("{rejected:?}"));
        let Selection { domain, rule } = &query.selection;
        assert_eq!((domain.as_deref(), rule.as_deref()), (Some("a&b"), Some("r s")));
        assert_eq!((query.window, query.by), (Window::Hour, By::OverLimit));
        for invalid in ["window=2m", "by=keys", "scope=fleet"] {
            assert!(read(invalid).is_err(), "{invalid}");
        }
    }
}
