//! Whether Redis keeps the counters of long periods: through a restart, and when its memory is
//! full.
//!
//! A counter of a minute that is lost costs a minute; that of a month is a budget. So with limits
//! of a day or more, INFO of each master is read (`status`), and what it says is reported here.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::base::shutdown::StoreProblem;
use crate::telemetry::metric::{Gauge, Metrics, gauged};

/// Why counters may be lost: the label of the metric, what happens to them, and what to do. All
/// have an expiry, so the `volatile-*` policies evict them as well.
const REASONS: [[&str; 3]; 2] = [
    ["no_aof", "lost at a restart", "set appendonly yes"],
    ["eviction", "evicted when memory is full", "set maxmemory-policy noeviction"],
];

/// Which of the [`REASONS`] apply to a server.
pub(crate) type Reasons = [bool; REASONS.len()];

/// What is known of the servers.
#[derive(Debug)]
pub(crate) struct Durability {
    known: Mutex<Known>,
    gauges: [Gauge; REASONS.len()],
}

#[derive(Debug, Default)]
struct Known {
    /// By address. A server that cannot be read keeps its reasons.
    servers: BTreeMap<String, Reasons>,
    /// As it was logged.
    problem: Option<StoreProblem>,
    /// Whether the last reading of a server failed.
    is_unreadable: bool,
}

impl Durability {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let gauge = |reason| {
            metrics.gauge_with(
                "tollgate_store_not_durable",
                "Redis masters that may lose counters of a day or more: they have no append-only file, or evict keys when their memory is full. 0 without such limits.",
                &[("reason", reason)],
            )
        };
        Self { known: Mutex::default(), gauges: REASONS.map(|[reason, ..]| gauge(reason)) }
    }

    /// For `/ready` and the console.
    pub(crate) fn problem(&self) -> Option<StoreProblem> {
        self.known.lock().problem.clone()
    }

    /// Replaces what is known of the servers, each with its address, and logs what changed.
    pub(crate) fn record(&self, read: Vec<(String, Result<Reasons, String>)>) {
        let mut known = self.known.lock();
        let was_unreadable = std::mem::take(&mut known.is_unreadable);
        let mut before = std::mem::take(&mut known.servers);
        for (address, read) in read {
            if let Err(cause) = &read {
                if !was_unreadable && !known.is_unreadable {
                    tracing::warn!(%address, cause, "INFO of Redis was not read, so it is unknown whether counters of a day or more survive a restart; allow +info");
                }
                known.is_unreadable = true;
            }
            if let Some(reasons) = read.ok().or_else(|| before.remove(&address)) {
                known.servers.insert(address, reasons);
            }
        }
        let problem = self.describe(&known.servers);
        if known.problem != problem {
            match &problem {
                Some(problem) => tracing::warn!("{problem}"),
                None => tracing::warn!("recovered: no counter of a day or more is at risk"),
            }
            known.problem = problem;
        }
    }

    fn describe(&self, servers: &BTreeMap<String, Reasons>) -> Option<StoreProblem> {
        let mut explanations = Vec::new();
        for (index, [_, what, cure]) in REASONS.into_iter().enumerate() {
            let affected = servers.iter().filter(|(_, reasons)| reasons[index]);
            let affected: Vec<&String> = affected.map(|(address, _)| address).collect();
            self.gauges[index].set(gauged(affected.len()));
            if let [first, others @ ..] = &*affected {
                let more = match others.len() {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                explanations.push(format!("counters on {first}{more} are {what}; {cure}"));
            }
        }
        (!explanations.is_empty()).then(|| StoreProblem {
            summary: "limits of a day or more may start again".to_owned(),
            explanation: explanations.join(", and "),
            runbook: "tollgatestorenotdurable",
            is_undecided: false,
        })
    }
}

/// Reads INFO. `None` without the fields that decide it.
pub(crate) fn reasons(info: &str) -> Option<Reasons> {
    let field = |name: &str| {
        let mut lines = info.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    };
    let has_no_aof = field("aof_enabled")? == "0";
    let is_bounded = field("maxmemory")? != "0";
    let evicts = field("maxmemory_policy")? != "noeviction";
    Some([has_no_aof, is_bounded && evicts])
}
