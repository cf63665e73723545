//! `/api/v1/status`: what this replica counted lately and its state, and the same of all replicas
//! for the console.

use std::cmp::Reverse;
use std::sync::Arc;

use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::admin::api::fleet::{Fleet, Replies};
use crate::base::shutdown::Lifecycle;
use crate::base::time::{Clock, Span, Time};
use crate::observe::history::History;
use crate::report::status::{Latency, ReplicaStatus, RuleCounts, STATUS_RULES_MAX};
use crate::rules::LiveRules;
use crate::telemetry::metric::Metrics;

/// Replicas are asked again after this time, however many pages are open.
const ASK_AGAIN: Span = Span::from_micros(900_000);
const PATH: &str = "/api/v1/status";

/// The parts of the process that a status is made of.
#[derive(Debug)]
pub(crate) struct Sources {
    /// The name of this process, as in heartbeats.
    pub(crate) replica: Arc<str>,
    pub(crate) pod: Arc<str>,
    pub(crate) rules: Arc<LiveRules>,
    pub(crate) history: History,
    pub(crate) metrics: Metrics,
    pub(crate) lifecycle: Lifecycle,
}

/// Answers with the status of this replica, and with those of the others.
#[derive(Debug)]
pub(crate) struct Statuses {
    sources: Arc<Sources>,
    /// Locked while a status is made, because rules may be many.
    one_at_a_time: Mutex<()>,
    pub(crate) fleet: Arc<Fleet>,
    of_peers: Mutex<Option<(Time, Arc<Replies<ReplicaStatus>>)>>,
    clock: Clock,
}

impl Statuses {
    pub(crate) fn new(sources: Sources, fleet: Arc<Fleet>, clock: &Clock) -> Self {
        Self {
            sources: Arc::new(sources),
            one_at_a_time: Mutex::default(),
            fleet,
            of_peers: Mutex::default(),
            clock: clock.clone(),
        }
    }

    /// The status of this replica, as `show` shows it.
    pub(crate) async fn own<T: Default + Send + 'static>(
        &self,
        show: impl FnOnce(ReplicaStatus) -> T + Send + 'static,
    ) -> T {
        let _one = self.one_at_a_time.lock().await;
        let sources = self.sources.clone();
        // This thread answers liveness probes.
        let shown = spawn_blocking(move || show(sources.status())).await;
        shown.unwrap_or_default()
    }

    /// Those of the others, at most 0.9 s old; older ones if other requests ask the fleet.
    pub(crate) async fn of_peers(&self) -> Arc<Replies<ReplicaStatus>> {
        let mut last = self.of_peers.lock().await;
        if let Some((at, replies)) = &*last
            && self.clock.now().since(*at) < ASK_AGAIN
        {
            return replies.clone();
        }
        let own = &self.sources.replica;
        let replies = match (self.fleet.ask(PATH, own).await, last.take()) {
            (Some(replies), _) => Arc::new(replies),
            (None, Some((_, replies))) => replies,
            (None, None) => Arc::new(self.fleet.without_replies(own)),
        };
        *last = Some((self.clock.now(), replies.clone()));
        replies
    }
}

impl Sources {
    fn status(&self) -> ReplicaStatus {
        let Self { history, .. } = self;
        let snapshot = self.metrics.snapshot();
        let recent = history.recent(&snapshot);
        let state = self.lifecycle.state();
        ReplicaStatus {
            replica: self.replica.to_string(),
            pod: self.pod.to_string(),
            store: state.store_note,
            store_faults: snapshot.count("tollgate_store_fault"),
            rules: snapshot.count("tollgate_rules"),
            rules_hash: snapshot.count("tollgate_rules_hash"),
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
