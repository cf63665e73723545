//! `/api/v1/status`: what this replica counted lately and its state, and the same of all replicas
//! for the console.

use std::cmp::Reverse;
use std::sync::Arc;

use axum::body::Bytes;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::admin::api::fleet::{Fleet, Replies};
use crate::base::shutdown::Lifecycle;
use crate::base::time::{Clock, MICROS_PER_SECOND, Span, Time};
use crate::observe::history::History;
use crate::report;
use crate::report::status::{Latency, ReplicaStatus, RuleCounts, STATUS_RULES_MAX};
use crate::rules::LiveRules;
use crate::telemetry::metric::Metrics;

/// A status is made again after this time, however many clients ask for it.
const ASK_AGAIN: Span = Span::from_micros(900_000);
const PATH: &str = "/api/v1/status";

/// The parts of the process that a status is made of.
#[derive(Debug, Clone)]
pub(crate) struct Sources {
    /// The name of this process, as in heartbeats.
    pub(crate) replica: Arc<str>,
    pub(crate) pod: Arc<str>,
    pub(crate) rules: Arc<LiveRules>,
    pub(crate) history: History,
    pub(crate) metrics: Metrics,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) clock: Clock,
}

/// Answers with the status of this replica.
#[derive(Debug)]
pub(crate) struct Statuses {
    sources: Sources,
    pub(crate) fleet: Arc<Fleet>,
    own: Mutex<Option<(Time, Own)>>,
    of_peers: Mutex<Option<(Time, Arc<Replies<ReplicaStatus>>)>>,
}

/// The status of this replica, and its JSON.
#[derive(Debug, Clone, Default)]
struct Own {
    status: Arc<ReplicaStatus>,
    json: Bytes,
}

impl Statuses {
    pub(crate) fn new(sources: Sources, fleet: Arc<Fleet>) -> Self {
        Self {
            sources,
            fleet,
            own: Mutex::default(),
            of_peers: Mutex::default(),
        }
    }

    /// GET: JSON.
    pub(crate) async fn read(&self) -> Bytes {
        self.current().await.json
    }

    /// The status of this replica.
    pub(crate) async fn own(&self) -> Arc<ReplicaStatus> {
        self.current().await.status
    }

    /// Those of the others, at most 0.9 s old; older ones if other requests ask the fleet.
    pub(crate) async fn of_peers(&self) -> Arc<Replies<ReplicaStatus>> {
        let mut last = self.of_peers.lock().await;
        if let Some(replies) = self.recent(last.as_ref()) {
            return replies;
        }
        let own = &*self.sources.replica;
        let replies = match (self.fleet.ask(PATH, own).await, last.take()) {
            (Some(replies), _) => Arc::new(replies),
            (None, Some((_, replies))) => replies,
            (None, None) => Arc::new(self.fleet.without_replies(own)),
        };
        *last = Some((self.sources.clock.now(), replies.clone()));
        replies
    }

    async fn current(&self) -> Own {
        let mut last = self.own.lock().await;
        if let Some(own) = self.recent(last.as_ref()) {
            return own;
        }
        let sources = self.sources.clone();
        // Rules may be many, and this thread answers liveness probes.
        let make = move || {
            let status = sources.status();
            let json = report::json(&status).into();
            let status = Arc::new(status);
            Own { status, json }
        };
        let own = spawn_blocking(make).await.unwrap_or_default();
        *last = Some((self.sources.clock.now(), own.clone()));
        own
    }

    fn recent<T: Clone>(&self, last: Option<&(Time, T)>) -> Option<T> {
        let (at, answer) = last?;
        let age = self.sources.clock.now().since(*at);
        (age < ASK_AGAIN).then(|| answer.clone())
    }
}

impl Sources {
    fn status(&self) -> ReplicaStatus {
        let Self { history, .. } = self;
        let snapshot = self.metrics.snapshot();
        let recent = history.recent(&history.sample(&snapshot));
        let state = self.lifecycle.state();
        let started = snapshot.count("process_start_time_seconds") * MICROS_PER_SECOND;
        ReplicaStatus {
            replica: self.replica.to_string(),
            pod: self.pod.to_string(),
            started: Time::from_micros(started).to_rfc3339_secs(),
            ready: state.serving(),
            store: state.store_note,
            store_faults: snapshot.count("tollgate_store_fault"),
            rules: snapshot.count("tollgate_rules"),
            rules_hash: snapshot.count("tollgate_rules_hash"),
            rules_rejected: self.rules.last_error().is_some(),
            hits_per_second: recent.hits_per_second,
            last_minute: recent.hits,
            latency: recent.latency.map(|[p50, p99]| Latency { p50, p99 }),
            seconds: history.seconds(),
            minutes: history.chart(),
            last_hour: self.last_hour(),
        }
    }

    fn last_hour(&self) -> Vec<RuleCounts> {
        let mut counted = Vec::new();
        for domain in self.rules.load().iter().flat_map(|rules| rules.domains()) {
            domain.visit(&mut |nodes| {
                let rule = nodes.last().and_then(|node| node.rule.as_deref());
                let Some(rule) = rule.filter(|rule| rule.stats.hits()[0] > 0) else {
                    return;
                };
                let counts = self.history.last_hour(&rule.path, rule.stats.hits());
                counted.extend((counts.hits > 0).then(|| RuleCounts {
                    domain: domain.name.to_string(),
                    rule: rule.path.to_string(),
                    counts,
                }));
            });
        }
        counted.sort_by_key(|rule| Reverse((rule.counts.over_limit, rule.counts.hits)));
        counted.truncate(STATUS_RULES_MAX);
        counted
    }
}
