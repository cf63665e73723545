//! The parts of the process that the views read.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::join_all;
use maud::{Markup, html};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::base::shutdown::Lifecycle;
use crate::base::time::{Clock, MICROS_PER_SECOND, Span, Time};
use crate::limiter::Modes;
use crate::operator::admin::api::Api;
use crate::operator::console::frame::{Head, Status};
use crate::operator::console::widgets::since;
use crate::operator::observe::history::History;
use crate::operator::observe::unmatched::Unmatched;
use crate::rules::source::edit::{Listed, RuleFiles};
use crate::rules::source::findings::LastFindings;
use crate::rules::tree::{Domain, Node};
use crate::rules::{Descriptor, Entry, LiveRules, Query, Rule, RuleSet};
use crate::store::memory::COUNTS_ALONE;
use crate::store::watch::StoreWatch;
use crate::store::{Backend, NodeStatus};
use crate::telemetry::metric::{Metrics, Snapshot};
use crate::trial::Trial;

/// Servers, counters and files are read again after this time, however many pages are open.
const ASK_AGAIN: Span = Span::from_micros(900_000);
/// Rules whose counters are read for utilization.
const USAGE_RULES_MAX: usize = 1_000;

/// The state of the console.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) rules: Arc<LiveRules>,
    /// `None` where rules come from a control plane.
    pub(crate) files: Option<Arc<RuleFiles>>,
    /// Their folder.
    pub(crate) folder: Option<PathBuf>,
    /// Findings about the newest rules.
    pub(crate) findings: LastFindings,
    /// `None` without TRIAL_UPSTREAM.
    pub(crate) trial: Option<Trial>,
    pub(crate) modes: Modes,
    pub(crate) backend: Backend,
    /// With the name of this process.
    pub(crate) api: Api,
    pub(crate) history: History,
    pub(crate) unmatched: Unmatched,
    pub(crate) metrics: Metrics,
    /// Of the store.
    pub(crate) watch: StoreWatch,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) clock: Clock,
    pub(crate) reads: RecentReads,
}

/// The last reads, and when they were made.
#[derive(Debug, Default)]
pub(crate) struct RecentReads {
    nodes: Mutex<Option<(Time, Arc<[NodeStatus]>)>>,
    usage: Mutex<Option<(Time, Arc<Usages>)>>,
    files: Mutex<Option<(Time, Files)>>,
}

/// The rules files, or why they cannot be listed.
pub(crate) type Files = Result<Arc<[Listed]>, Arc<str>>;

/// By the path of a rule.
pub(crate) type Usages = HashMap<Arc<str>, Usage>;

/// The counter of a rule that has one only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) used: u64,
    /// The limit, or the burst of a bucket.
    pub(crate) capacity: u64,
}

/// What is wrong with the rules.
#[derive(Debug)]
pub(crate) struct RulesFault {
    status: Status,
    /// For the top of pages.
    note: &'static str,
    pub(crate) text: &'static str,
    /// Its section of the runbook.
    pub(crate) anchor: &'static str,
}

const NO_RULES: RulesFault = RulesFault {
    status: Status::Bad,
    note: "no rules",
    text: "No rules are loaded: calls get an error, and Envoy's failure_mode_deny decides",
    anchor: "tollgatenorules",
};
const REJECTED: RulesFault = RulesFault {
    status: Status::Warning,
    note: "new rules rejected",
    text: "New rules are rejected; the last good ones serve",
    anchor: "tollgaterulesrejected",
};

impl Parts {
    /// Whose numbers a page shows, such as `this replica, one of 3`.
    pub(crate) fn this_replica(&self) -> String {
        match self.backend.replicas() {
            1 => "this replica".to_owned(),
            replicas => format!("this replica, one of {replicas}"),
        }
    }

    /// When the process started, such as `since 13:52`.
    pub(crate) fn since_start(&self, snapshot: &Snapshot) -> String {
        let started = snapshot.count("process_start_time_seconds") * MICROS_PER_SECOND;
        since(Time::from_micros(started), self.clock.now())
    }

    pub(crate) fn rules_in_force(&self) -> Option<Arc<RuleSet>> {
        Option::clone(&self.rules.load())
    }

    pub(crate) fn rules_fault(&self) -> Option<RulesFault> {
        if self.rules.load().is_none() {
            return Some(NO_RULES);
        }
        self.rules.last_error().map(|_| REJECTED)
    }

    /// The servers of the store; none of them in memory.
    pub(crate) async fn nodes(&self) -> Arc<[NodeStatus]> {
        let ask = async { self.backend.nodes().await.into() };
        self.recent(&self.reads.nodes, ask).await
    }

    /// The use of rules that have one counter, because they name every value.
    pub(crate) async fn usages(&self) -> Arc<Usages> {
        let ask = async {
            Arc::new(match &self.rules_in_force() {
                Some(rules) => self.read_usages(rules).await,
                None => Usages::new(),
            })
        };
        self.recent(&self.reads.usage, ask).await
    }

    /// The rules files; `None` where rules come from a control plane.
    pub(crate) async fn files(&self) -> Option<Files> {
        let files = self.files.clone()?;
        let ask = async {
            let reading = files.reading().await.map_err(|busy| busy.to_string());
            let list = move || reading.and_then(|_reading| files.list());
            let listed = spawn_blocking(list).await;
            let listed = listed.unwrap_or_else(|_| Err("the list ended unexpectedly".to_owned()));
            listed.map(Arc::from).map_err(Arc::from)
        };
        Some(self.recent(&self.reads.files, ask).await)
    }

    /// The last answer, unless it is too old.
    async fn recent<T: Clone>(
        &self,
        last: &Mutex<Option<(Time, T)>>,
        ask: impl Future<Output = T>,
    ) -> T {
        let mut last = last.lock().await;
        if let Some((at, answer)) = &*last
            && self.clock.now().since(*at) < ASK_AGAIN
        {
            return answer.clone();
        }
        let answer = ask.await;
        *last = Some((self.clock.now(), answer.clone()));
        answer
    }

    /// How messages name the file of a path: by its path below the folder.
    pub(crate) fn file_name(&self, path: &str) -> String {
        let folder = self.folder.as_deref();
        let below = folder.and_then(|folder| Path::new(path).strip_prefix(folder).ok());
        below.and_then(Path::to_str).unwrap_or(path).to_owned()
    }

    async fn read_usages(&self, rules: &RuleSet) -> Usages {
        let mut single = Vec::new();
        for domain in rules.domains() {
            domain.visit(&mut |nodes| {
                if single.len() < USAGE_RULES_MAX {
                    single.extend(one_counter(domain, nodes));
                }
            });
        }
        let usages = single.into_iter().map(|(query, rule)| async move {
            let counters = self.api.counters.read(query, None).await.ok()?;
            let counter = counters.first()?;
            let usage = Usage { used: counter.used?, capacity: counter.limit.as_ref()?.capacity() };
            Some((rule.path.clone(), usage))
        });
        join_all(usages).await.into_iter().flatten().collect()
    }

    /// The top of a page.
    pub(crate) async fn head(&self) -> Head {
        let (status, note, runbook) = self.badge().await;
        Head { replica: self.api.pod.to_string(), status, note, runbook }
    }

    /// The worst fault, and its section of the runbook.
    async fn badge(&self) -> (Status, String, Option<&'static str>) {
        let of_rules = self.rules_fault();
        let of_rules = of_rules.map(|fault| (fault.status, fault.note.to_owned(), fault.anchor));
        let of_store = self.store_fault(&self.nodes().await);
        let is_serving = self.lifecycle.serving();
        let (status, text, anchor) = match (of_rules, of_store) {
            (Some(fault @ (Status::Bad, ..)), _) => fault,
            _ if !is_serving => (Status::Bad, "not ready".to_owned(), "health-and-shutdown"),
            (_, Some(fault @ (Status::Bad, ..))) | (Some(fault), _) | (None, Some(fault)) => fault,
            (None, None) => return (Status::Good, "serving".to_owned(), None),
        };
        (status, text, Some(anchor))
    }

    /// The worst fault of the store, on all pages in the same color and words, and its section of
    /// the runbook.
    fn store_fault(&self, nodes: &[NodeStatus]) -> Option<(Status, String, &'static str)> {
        let (store, anchor) = self.store_status(nodes);
        match (self.lifecycle.state().store_problem, anchor) {
            (Some(problem), _) if problem.is_undecided => {
                Some((Status::Bad, problem.summary, problem.runbook))
            }
            (_, Some(anchor)) => Some((Status::Bad, format!("store {store}"), anchor)),
            (Some(problem), None) => Some((Status::Warning, problem.summary, problem.runbook)),
            (None, None) => None,
        }
    }

    /// The state of the store, and since when it decides nothing.
    pub(crate) fn store_state(&self, nodes: &[NodeStatus]) -> Markup {
        let (status, text) = match self.store_fault(nodes) {
            Some((status, text, _)) => (status, text),
            None => (Status::Good, self.store_status(nodes).0),
        };
        let since = self.watch.undecided_since().map(Time::to_minute_of_day);
        html! {
            span.state.(status.name()) { (text) @if let Some(since) = since { " since " (since) } }
        }
    }

    /// Whether the servers of the store reply, and the section of the runbook about a fault.
    pub(crate) fn store_status(&self, nodes: &[NodeStatus]) -> (String, Option<&'static str>) {
        let missing = nodes.iter().filter(|node| node.ping.is_err()).count();
        let unavailable = Some("tollgatestorenodeunavailable");
        let (text, anchor) = match (&self.backend, missing, nodes.len()) {
            (Backend::Memory(_), ..) => (COUNTS_ALONE, None),
            (Backend::Redis(_), _, 0) => {
                ("unreachable: no server found yet", Some("tollgatestorenonodes"))
            }
            (Backend::Redis(_), 0, _) => ("reachable", None),
            (Backend::Redis(_), 1, 1) => ("unreachable", unavailable),
            (Backend::Redis(_), missing, all) => {
                return (format!("unreachable: {missing} of {all} servers"), unavailable);
            }
        };
        (text.to_owned(), anchor)
    }
}

/// A request that a rule limits, if all of them have one counter: the rule names every key and
/// value, or shares the counter of a pattern.
fn one_counter<'r>(domain: &'r Domain, nodes: &[&'r Node]) -> Option<(Query<'r>, &'r Rule)> {
    let rule = nodes.last()?.rule.as_deref()?;
    let is_fixed = |part: &str| !part.is_empty() && !part.contains('*');
    // The pattern is one of its values.
    let is_shared = |node: &Node| node.share_threshold && !node.value.is_empty();
    let is_single =
        |node: &&Node| is_fixed(&node.key) && (is_fixed(&node.value) || is_shared(node));
    let is_single = nodes.iter().all(is_single);
    let limit = rule.limit()?;
    if !is_single || limit.algorithm.counts_holders() {
        return None;
    }
    let entries = nodes.iter().map(|node| Entry::new(&*node.key, &*node.value));
    Some((Query::of(&*domain.name, Descriptor::new(entries)), rule))
}
