//! Whose numbers a view shows, by `scope=` of its URL: this replica's, or those of the fleet.

use std::collections::HashMap;
use std::sync::Arc;

use maud::{Markup, html};

use crate::admin::api::fleet::{Peer, Replies};
use crate::admin::api::top::Scope;
use crate::admin::query_string::Pairs;
use crate::base::text::{Text, counted};
use crate::console::frame::Tab;
use crate::console::parts::Parts;
use crate::report::status::{BARS, ReplicaStatus};
use crate::rules::stats::counts::HitCounts;

/// Replicas without an answer that are named.
// bound missing_replicas_shown_max: counted; -
const MISSING_MAX: usize = 5;

/// The statuses that a view adds up.
pub(crate) struct View {
    pub(crate) scope: Scope,
    pub(crate) own: ReplicaStatus,
    /// The answers of the others; `None` in the scope of this replica.
    others: Option<Arc<Replies<ReplicaStatus>>>,
    /// The replicas by their heartbeats.
    pub(crate) peers: Vec<Peer>,
}

/// The scope that a URL asks for.
pub(crate) fn scope_of(pairs: &Pairs) -> Scope {
    let scope = Text(pairs.first("scope")).shown();
    scope.parse().unwrap_or(Scope::Replica)
}

/// The links between the scopes of a view.
pub(crate) fn switch(tab: Tab, current: Scope, parameters: &[(&str, &str)]) -> Markup {
    html! {
        nav.choice aria-label="Scope" {
            @for (scope, name) in [(Scope::Replica, "this replica"), (Scope::Fleet, "fleet")] {
                a href=(tab.href(scope, parameters)) aria-current=[(scope == current).then_some("true")] { (name) }
            }
        }
    }
}

/// The scope among the fields of a form.
pub(crate) fn field(scope: Scope) -> Markup {
    html! {
        @if scope == Scope::Fleet { input type="hidden" name="scope" value=(scope.name()); }
    }
}

/// What numbers of a period are about, such as `2 of 3 replicas, last minute; b did not answer`.
/// `missing` has the names of replicas in heartbeats.
pub(crate) fn covered(answered: usize, missing: &[String], peers: &[Peer], period: &str) -> String {
    if missing.is_empty() {
        return format!("{}, {period}", counted(answered, "replica"));
    }
    let names = missing.iter().take(MISSING_MAX);
    let mut pods: Vec<_> = names.map(|name| pod_of(peers, name).to_owned()).collect();
    let unnamed = missing.len() - pods.len();
    pods.extend((unnamed > 0).then(|| format!("{unnamed} others")));
    let all = answered + missing.len();
    let pods = pods.join(", ");
    format!("{answered} of {all} replicas, {period}; {pods} did not answer")
}

fn pod_of<'p>(peers: &'p [Peer], name: &'p str) -> &'p str {
    let peer = peers.iter().find(|peer| peer.name == name);
    peer.map_or(name, |peer| &peer.pod)
}

impl View {
    pub(crate) async fn read(parts: &Parts, scope: Scope) -> Self {
        let statuses = &parts.api.statuses;
        Self {
            scope,
            others: match scope {
                Scope::Replica => None,
                Scope::Fleet => Some(statuses.of_peers().await),
            },
            own: statuses.own(|status| status).await,
            peers: statuses.fleet.peers(),
        }
    }

    /// This replica's, and those of others that answered.
    pub(crate) fn statuses(&self) -> impl Iterator<Item = &ReplicaStatus> {
        let others = self.others.iter().flat_map(|others| &others.answers);
        std::iter::once(&self.own).chain(others)
    }

    pub(crate) fn status_of(&self, name: &str) -> Option<&ReplicaStatus> {
        self.statuses().find(|status| status.replica == name)
    }

    /// What numbers of a period are about.
    pub(crate) fn covers(&self, period: &str) -> String {
        match &self.others {
            None => format!("this replica, {period}"),
            Some(others) => {
                let answered = others.answers.len() + 1;
                covered(answered, &others.missing, &self.peers, period)
            }
        }
    }

    /// The name of a replica's pod.
    pub(crate) fn pod_of<'v>(&'v self, name: &'v str) -> &'v str {
        if name == self.own.replica {
            return &self.own.pod;
        }
        pod_of(&self.peers, name)
    }

    pub(crate) fn hits_per_second(&self) -> f64 {
        self.statuses().map(|status| status.hits_per_second).sum()
    }

    pub(crate) fn last_minute(&self) -> HitCounts {
        sum(self.statuses().map(|status| status.last_minute))
    }

    /// The sums of a chart.
    pub(crate) fn chart(&self, of: impl Fn(&ReplicaStatus) -> &Vec<HitCounts>) -> Vec<HitCounts> {
        let bar = |others: usize| {
            let bars = self
                .statuses()
                .map(|status| of(status).iter().nth_back(others));
            sum(bars.flatten().copied())
        };
        (0..BARS).rev().map(bar).collect()
    }

    /// Hits of the last hour, by domain and path of a rule.
    pub(crate) fn last_hour(&self) -> HashMap<(&str, &str), HitCounts> {
        let mut rules = HashMap::<_, HitCounts>::new();
        for rule in self.statuses().flat_map(|status| &status.last_hour) {
            let sum = rules.entry((&*rule.domain, &*rule.rule)).or_default();
            sum.add(rule.counts);
        }
        rules
    }
}

fn sum(counts: impl Iterator<Item = HitCounts>) -> HitCounts {
    counts.fold(HitCounts::default(), |mut sum, counts| {
        sum.add(counts);
        sum
    })
}
