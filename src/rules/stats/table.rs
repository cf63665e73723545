//! The table of counters by name.
//!
//! Rules hold their counters, so most requests look nothing up. The table is used where a name
//! depends on the request (`detailed_metric`, `value_to_metric`, limits in requests, unknown
//! domains), and keeps a bounded number of those names, because clients choose them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::RwLock;

use crate::rules::stats::RuleStats;
use crate::telemetry::metric::{Counter, Metrics};

/// The most client-supplied names with counters of their own. The rest is counted together.
pub const METRIC_SERIES_MAX: usize = 10_000;
/// The longest such name in bytes: what fits into a statsd packet of one Ethernet frame.
pub(super) const SERIES_NAME_BYTES_MAX: usize = 1_024;
/// The most bytes of all such names: each is on the metrics page up to ten times, and in every
/// packet to statsd.
pub const SERIES_NAMES_BYTES_MAX: usize = 1 << 20;
/// The name for the rest.
pub(super) const OTHER: &str = "__other__";

/// The counters of all rules by name.
#[derive(Debug)]
pub struct StatsTable {
    pub(super) names: RwLock<Names>,
    series_max: usize,
    pub(super) overflows: Counter,
}

#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) of_rules: HashMap<Box<str>, Arc<RuleStats>>,
    pub(super) of_clients: HashMap<Box<str>, Arc<RuleStats>>,
    pub(super) unknown_domains: HashMap<Box<str>, Arc<AtomicU64>>,
    /// Of the names in `of_clients` and `unknown_domains`.
    pub(super) client_bytes: usize,
}

impl StatsTable {
    /// An empty table, exposed in `metrics`.
    pub fn new(series_max: usize, metrics: &Metrics) -> Arc<Self> {
        let table = Arc::new(Self {
            names: RwLock::default(),
            series_max,
            overflows: metrics.counter(
                "tollgate_metric_series_overflow_total",
                "Calls counted under __other__ because metric_series_max or its bound in bytes was reached.",
            ),
        });
        metrics.add_source(table.clone());
        table
    }

    /// The counters of a rule. The number of rules is bounded by their files.
    pub fn of_rule(&self, name: &str) -> Arc<RuleStats> {
        let mut names = self.names.write();
        if let Some(known) = names.of_rules.get(name) {
            return known.clone();
        }
        // A name that clients used before keeps its counters.
        let stats = match names.of_clients.remove(name) {
            Some(stats) => {
                names.client_bytes -= name.len();
                stats
            }
            None => Arc::default(),
        };
        names.of_rules.insert(name.into(), stats.clone());
        stats
    }

    /// The counters of a client-supplied name.
    pub fn of_client(&self, domain: &str, name: &str) -> Arc<RuleStats> {
        let names = self.names.read();
        if let Some(known) = names
            .of_rules
            .get(name)
            .or_else(|| names.of_clients.get(name))
        {
            return known.clone();
        }
        drop(names);
        let mut names = self.names.write();
        if let Some(known) = names.of_clients.get(name) {
            return known.clone();
        }
        if self.has_room(&names, name) {
            names.client_bytes += name.len();
            return names.of_clients.entry(name.into()).or_default().clone();
        }
        self.overflows.inc();
        // One for each domain of the rules, of which there are few.
        names
            .of_rules
            .entry(format!("{domain}.{OTHER}").into())
            .or_default()
            .clone()
    }

    /// Counts the descriptors of a request for an unknown domain, as envoyproxy/ratelimit does.
    pub fn domain_not_found(&self, domain: &str, descriptors: u64) {
        let names = self.names.read();
        if let Some(known) = names.unknown_domains.get(domain) {
            known.fetch_add(descriptors, Relaxed);
            return;
        }
        drop(names);
        let mut names = self.names.write();
        let name = if names.unknown_domains.contains_key(domain) {
            domain
        } else if self.has_room(&names, domain) {
            names.client_bytes += domain.len();
            domain
        } else {
            self.overflows.inc();
            OTHER
        };
        names
            .unknown_domains
            .entry(name.into())
            .or_default()
            .fetch_add(descriptors, Relaxed);
    }

    fn has_room(&self, names: &Names, name: &str) -> bool {
        names.client_count() < self.series_max
            && name.len() <= SERIES_NAME_BYTES_MAX
            && names.client_bytes + name.len() <= SERIES_NAMES_BYTES_MAX
    }

    /// Removes the names of rules that are not in use and never counted, and of the other unused
    /// ones those beyond `series_max`: reloads under new names must not accumulate.
    pub fn forget_retired(&self) {
        let mut names = self.names.write();
        let mut retired = 0;
        names.of_rules.retain(|_, stats| {
            if Arc::strong_count(stats) > 1 {
                return true;
            }
            retired += 1;
            retired <= self.series_max && !stats.is_zero()
        });
    }
}

impl Names {
    fn client_count(&self) -> usize {
        self.of_clients.len() + self.unknown_domains.len()
    }
}
