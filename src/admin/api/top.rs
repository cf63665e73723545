//! `/api/v1/top`: the keys with the most hits of each rule.

use std::str::FromStr;
use std::sync::Arc;

use http::StatusCode;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio_util::task::TaskTracker;

use crate::admin::api::answer::{self, Rejected};
use crate::admin::api::fleet::reply::{Reply as _, TopReply};
use crate::admin::api::fleet::{Fleet, Replies};
use crate::admin::api::top_sums::Sums;
use crate::admin::api::viewer::Viewer;
use crate::admin::query_string::Pairs;
use crate::base::named_enum::named_enum;
use crate::base::text::Text;
use crate::http::response_budget::{RETRY_AFTER_SECS, ResponseBudget, place_of};
use crate::observe;
use crate::observe::redact::{Redaction, Values};
use crate::observe::top_keys::windows::{By, Counted, Window};
use crate::observe::top_keys::{RuleKeys, Selection, TopKeys};
use crate::report::counter::Entries;
use crate::report::top::{KeyHits, TopKeys as TopAnswer};
use crate::rules::{Descriptor, LiveRules, Query};

named_enum! {
    /// Whose hits are counted.
    pub enum Scope {
        /// Keys of this process.
        Replica = "replica",
        /// Keys of all processes whose heartbeats are known.
        Fleet = "fleet",
    }
}

/// Answers of `/api/v1/top` that are prepared at a time: the keys of thousands of rules take tens
/// of megabytes.
// bound top_queries_max: the next one waits; tollgate_admin_responses_full_total
const QUERIES_MAX: usize = 1;

/// Answers which keys have the most hits.
#[derive(Debug)]
pub(crate) struct Top {
    pub(crate) keys: TopKeys,
    rules: Arc<LiveRules>,
    /// For callers without a token; `None` shows values as they are.
    redaction: Option<Arc<Redaction>>,
    pub(crate) fleet: Arc<Fleet>,
    queries: Arc<Semaphore>,
    /// The budget of the admin listener.
    responses: ResponseBudget,
    tasks: TaskTracker,
}

/// The parameters of a request.
struct TopQuery {
    selection: Selection,
    window: Window,
    by: By,
    scope: Scope,
}

/// How the keys of this process are shown.
struct View {
    redaction: Option<Arc<Redaction>>,
    /// Whether hashes of known keys are replaced by values again, after sums were made.
    resolved: Values,
}

/// The entries of a key of this process.
pub(crate) type Key = Arc<observe::top_keys::entries::Entries>;

/// Hits of this process, and the permit that counts them among those in memory.
#[derive(Default)]
struct Prepared {
    sums: Sums,
    permit: Permit,
}

/// `None` only at the end of the process.
type Permit = Option<OwnedSemaphorePermit>;

impl Top {
    /// Without a redaction values are shown as they are.
    pub(crate) fn new(
        keys: TopKeys,
        rules: Arc<LiveRules>,
        redaction: Option<Arc<Redaction>>,
        fleet: Arc<Fleet>,
        responses: ResponseBudget,
    ) -> Self {
        Self {
            keys,
            rules,
            redaction,
            fleet,
            queries: Arc::new(Semaphore::new(QUERIES_MAX)),
            responses,
            tasks: TaskTracker::new(),
        }
    }

    /// The answer to a GET with this query string, as `show` shows it.
    pub(crate) async fn read<T: Default + Send + 'static>(
        self: &Arc<Self>,
        replica: &str,
        query: &str,
        viewer: &Viewer,
        show: impl FnOnce(TopAnswer) -> T + Send + 'static,
    ) -> Result<T, Rejected> {
        let query = TopQuery::read(query)?;
        let mut answer = TopAnswer {
            replica: replica.to_owned(),
            replicas: None,
            missing: None,
            rules: Vec::new(),
        };
        let mut replies = Vec::new();
        if query.scope == Scope::Fleet {
            // First: a replica that asks this one must not wait until all others have answered.
            let fleet = self.fleet.ask::<TopReply>(&query.path(), replica).await;
            let Replies { answers, missing } = fleet.ok_or_else(busy)?;
            let names = answers.iter().map(TopReply::replica);
            let names = std::iter::once(replica).chain(names);
            answer.replicas = Some(names.map(str::to_owned).collect());
            answer.missing = Some(missing);
            replies = answers;
        }
        let view = match query.scope {
            Scope::Replica => View::of(viewer),
            // Other replicas answer with hashes. Those of keys that this one has counted, too, are
            // resolved.
            Scope::Fleet => View {
                redaction: self.redaction.clone(),
                resolved: viewer.values(),
            },
        };
        let own = self.sums(query.selection, query.window, view).await?;
        let shown = move || {
            let Prepared { mut sums, permit } = own;
            for reply in replies {
                sums.add_answer(reply.rules);
            }
            answer.rules = sums.first(query.by);
            (show(answer), permit)
        };
        let (shown, _permit) = spawn_blocking(shown).await.unwrap_or_default();
        Ok(shown)
    }

    /// The keys of one rule of this process.
    pub(crate) async fn of_rule(
        self: &Arc<Self>,
        selection: Selection,
        window: Window,
        by: By,
        viewer: &Viewer,
    ) -> Result<Vec<KeyHits>, Rejected> {
        let prepared = self.sums(selection, window, View::of(viewer)).await?;
        let rule = prepared.sums.first(by).into_iter().next();
        Ok(rule.map_or_else(Vec::new, |rule| rule.keys))
    }

    /// The key that is shown like this to callers without a token, if it is among the top keys of
    /// the last hour.
    pub(crate) async fn hashed(
        self: &Arc<Self>,
        domain: &str,
        shown: Entries,
    ) -> Result<Option<Key>, Rejected> {
        let Some(redaction) = self.redaction.clone() else {
            return Ok(None);
        };
        let selection = Selection {
            domain: Some(domain.to_owned()),
            rule: None,
        };
        let view = View {
            redaction: Some(redaction),
            resolved: Values::Redacted,
        };
        let find = move |top: &Self, read: &[RuleKeys], _| {
            let keys = read.iter().flat_map(|rule| {
                let keys = rule.keys.iter();
                keys.map(|key| (&*rule.domain, key))
            });
            let is_shown = |(domain, key): &(&str, &Counted)| {
                top.shown(&query_of(domain, &key.entries), &view) == Some(shown.clone())
            };
            let (_, key) = keys.into_iter().find(is_shown)?;
            Some(key.entries.clone())
        };
        self.prepare(selection, Window::Hour, find).await
    }

    /// The hits that this process counted.
    async fn sums(
        self: &Arc<Self>,
        selection: Selection,
        window: Window,
        view: View,
    ) -> Result<Prepared, Rejected> {
        let add = move |top: &Self, read: &[RuleKeys], permit| {
            let mut sums = Sums::default();
            for rule in read {
                top.add(&mut sums, rule, &view);
            }
            Prepared { sums, permit }
        };
        self.prepare(selection, window, add).await
    }

    /// Reads keys on other threads: they may be many, and this one answers liveness probes. What
    /// was begun is finished, even if its request is cancelled meanwhile. Requests of clients that
    /// are gone may wait: the end of a connection is not noticed behind a pipelined request.
    async fn prepare<T: Default + Send + 'static>(
        self: &Arc<Self>,
        selection: Selection,
        window: Window,
        prepare: impl FnOnce(&Self, &[RuleKeys], Permit) -> T + Send + 'static,
    ) -> Result<T, Rejected> {
        let permit = place_of(&self.queries).await;
        if permit.is_none() {
            return Err(self.responses.rejected(answer::full));
        }
        let top = self.clone();
        let prepare = async move {
            let read = top.keys.read(selection, window).await;
            let prepare = move || prepare(&top, &read, permit);
            spawn_blocking(prepare).await.unwrap_or_default()
        };
        Ok(self.tasks.spawn(prepare).await.unwrap_or_default())
    }

    fn add(&self, sums: &mut Sums, rule: &RuleKeys, view: &View) {
        for key in &rule.keys {
            let query = query_of(&rule.domain, &key.entries);
            // Without rules those that counted it were withdrawn.
            let Some(shown) = self.shown(&query, view) else {
                continue;
            };
            if view.is_resolved() {
                sums.resolve(shown.clone(), key_of(&query));
            }
            sums.add(&rule.domain, &rule.rule, shown, key.counts);
        }
    }

    /// The entries of a key for a caller; `None` if there are no rules.
    pub(crate) fn entries_for(&self, query: &Query<'_>, viewer: &Viewer) -> Option<Entries> {
        self.shown(query, &View::of(viewer))
    }

    /// `None` if values cannot be redacted, because there are no rules.
    fn shown(&self, query: &Query<'_>, view: &View) -> Option<Entries> {
        match (&view.redaction, self.rules.load().as_ref()) {
            (None, _) => Some(key_of(query)),
            (Some(redaction), Some(rules)) => Some(key_of(&redaction.of(query, rules).query())),
            (Some(_), None) => None,
        }
    }

    /// The path at which other replicas have the counter of a request, with values as callers
    /// without a token see them; `None` if these see none.
    pub(crate) fn counter_path(&self, query: &Query<'_>) -> Option<String> {
        let (entries, hashed) = match self.redaction {
            None => (key_of(query), "0"),
            Some(_) => (self.as_hashed(query)?.swap_remove(0), "1"),
        };
        let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let domain = encoded(&Text(query.domain).shown());
        let mut path = format!("/api/v1/counters?hashed={hashed}&domain={domain}");
        for [key, value] in entries {
            path += &format!("&e={}", encoded(&format!("{key}={value}")));
        }
        Some(path)
    }

    /// The descriptors of a request as callers without a token see them; `None` unless values are
    /// replaced by hashes.
    pub(crate) fn as_hashed(&self, query: &Query<'_>) -> Option<Vec<Entries>> {
        let redaction = self.redaction.as_ref().filter(|one| one.hashes())?;
        let rules = Option::clone(&self.rules.load())?;
        let redacted = redaction.of(query, &rules);
        Some(
            redacted
                .query()
                .descriptors
                .iter()
                .map(entries_of)
                .collect(),
        )
    }
}

impl View {
    fn of(viewer: &Viewer) -> Self {
        Self {
            redaction: viewer.redaction.clone(),
            resolved: Values::Redacted,
        }
    }

    /// Dropped values are all the same.
    fn is_resolved(&self) -> bool {
        let hashes = self.redaction.as_ref().is_some_and(|one| one.hashes());
        hashes && self.resolved == Values::Clear
    }
}

pub(crate) fn query_of<'k>(domain: &'k str, entries: &'k Key) -> Query<'k> {
    Query {
        domain: domain.as_bytes(),
        descriptors: [Descriptor::new(entries.iter())].into_iter().collect(),
        ..Query::default()
    }
}

pub(crate) fn busy() -> Rejected {
    let reason = "other requests ask the fleet at this moment (fleet_queries_max); repeat it";
    Rejected::new(StatusCode::SERVICE_UNAVAILABLE, reason).retry_after(RETRY_AFTER_SECS)
}

/// The key of a request with one descriptor.
fn key_of(query: &Query<'_>) -> Entries {
    query.descriptors.iter().flat_map(entries_of).collect()
}

pub(crate) fn entries_of(descriptor: &Descriptor<'_>) -> Entries {
    let shown = |bytes| Text(bytes).shown().into_owned();
    let entries = descriptor.entries.iter();
    entries
        .map(|entry| [shown(entry.key), shown(entry.value)])
        .collect()
}

impl TopQuery {
    fn read(query: &str) -> Result<Self, Rejected> {
        let pairs = Pairs::new(query);
        let text = |name: &str| {
            let value = pairs.first(name);
            (!value.is_empty()).then(|| Text(value).shown().into_owned())
        };
        Ok(Self {
            selection: Selection {
                domain: text("domain"),
                rule: text("rule"),
            },
            window: one_of(&pairs, "window", Window::Minute)?,
            by: one_of(&pairs, "by", By::OverLimit)?,
            scope: one_of(&pairs, "scope", Scope::Replica)?,
        })
    }

    /// The same of one replica.
    fn path(&self) -> String {
        let (window, by) = (self.window.name(), self.by.name());
        let mut path = format!("/api/v1/top?window={window}&by={by}");
        let Selection { domain, rule } = &self.selection;
        for (name, value) in [("domain", domain), ("rule", rule)] {
            if let Some(value) = value {
                path += &format!("&{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC));
            }
        }
        path
    }
}

/// The value of a parameter that has a few.
pub(crate) fn one_of<T: FromStr<Err = String>>(
    pairs: &Pairs,
    name: &str,
    default: T,
) -> Result<T, Rejected> {
    let value = Text(pairs.first(name)).shown();
    if value.is_empty() {
        return Ok(default);
    }
    value
        .parse()
        .map_err(|error| Rejected::bad_request(format!("{name} is {value:?}: {error}")))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::base::time::{Clock, Time};
    use crate::store::Backend;
    use crate::store::memory::Counters;
    use crate::telemetry::metric::Metrics;

    /// Of no keys.
    fn top(metrics: &Metrics) -> Arc<Top> {
        let backend = Backend::Memory(Arc::new(Counters::new(1 << 20, "store", metrics)));
        let own = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        Arc::new(Top::new(
            TopKeys::new(Clock::starting_at(Time::default()), metrics),
            Arc::default(),
            None,
            Arc::new(Fleet::new(backend, own, metrics)),
            ResponseBudget::new(metrics),
        ))
    }

    #[tokio::test(start_paused = true)]
    async fn queries_do_not_wait_for_others_for_ever() {
        let metrics = Metrics::new();
        let top = top(&metrics);
        let viewer = Viewer {
            redaction: None,
            may_reveal: false,
        };
        let read = async || {
            top.read("a", "", &viewer, |answer| answer.rules.len())
                .await
        };
        let other = top.queries.clone().acquire_owned().await;
        let rejected = timeout(Duration::from_secs(6), read()).await;
        let rejected = rejected.expect("it waits for 5 s").err();
        let status = rejected.map(|rejected| rejected.status);
        assert_eq!(status, Some(StatusCode::SERVICE_UNAVAILABLE));
        let page = metrics.page();
        assert!(
            page.contains("tollgate_admin_responses_full_total 1"),
            "{page}"
        );
        drop(other);
        assert_eq!(read().await.ok(), Some(0));
    }

    #[test]
    fn parameters_are_read_and_written_for_peers() {
        let query = TopQuery::read("domain=a%26b&rule=r+s&window=60m&scope=fleet");
        let query = query.unwrap_or_else(|rejected| panic!("{rejected:?}"));
        let expected = "/api/v1/top?window=60m&by=over_limit&domain=a%26b&rule=r%20s";
        assert_eq!((query.scope, &*query.path()), (Scope::Fleet, expected));
        for invalid in ["window=2m", "by=keys", "scope=all"] {
            assert!(TopQuery::read(invalid).is_err(), "{invalid}");
        }
    }
}
