//! The counters of rules by name, and their exposition. They outlive reloads, so that they only
//! grow.
//!
//! Rules hold their counters, so most requests look nothing up. The table is used where a name
//! depends on the request (`detailed_metric`, `value_to_metric`, limits in requests, unknown
//! domains), and keeps a bounded number of those names, because clients choose them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::RwLock;

use crate::limits::check::LeaseEvent;
use crate::rules::metric_name;
use crate::telemetry::mapper::escaped;
use crate::telemetry::metric::{self, Metrics, Series, Source};

use counts::{Count, RuleStats};

pub(crate) mod counts;
pub(crate) mod gauges;
#[cfg(test)]
mod tests;

/// The most client-supplied names with counters of their own. The rest is counted together.
// bound metric_series_max: counted under `__other__`; tollgate_metric_series_overflow_total
pub const METRIC_SERIES_MAX: usize = 10_000;
/// The longest such name in bytes: what fits into a statsd packet of one Ethernet frame.
// bound series_name_bytes_max: counted under `__other__`; tollgate_metric_series_overflow_total
const SERIES_NAME_BYTES_MAX: usize = 1_024;
/// The most bytes of all such names: each is on the metrics page up to ten times, and in every
/// packet to statsd.
// bound series_names_bytes_max: counted under `__other__`; tollgate_metric_series_overflow_total
pub const SERIES_NAMES_BYTES_MAX: usize = 1 << 20;
/// The name for the rest.
const OTHER: &str = "__other__";
const CROSSINGS_HELP: &str = "Requests whose hits crossed a threshold of warn_at of a limit, in percent, or used the limit up (100).";
const DOMAIN_HELP: &str = "Descriptors of requests for an unknown domain.";
const UNMATCHED_HELP: &str =
    "Descriptors that no rule matches, also those of an unknown domain: they are not limited.";

/// Under which name a counter is exposed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    /// That of envoyproxy/ratelimit, whose default mapping makes labels of the keys.
    Mapped,
    /// That of envoyproxy/ratelimit, without labels: its default mapping does not know the counter,
    /// takes `over_limit_with_local_cache` for `over_limit` if there are two keys, and would count
    /// it twice.
    Unmapped,
    /// Tollgate's own.
    Own,
}

/// Declares which counters are exposed, each with its help.
macro_rules! exposed {
    ($($(#[doc = $help:literal])+ $count:ident = $family:ident $name:literal;)+) => {
        /// Each with name and help.
        const EXPOSED: &[(Count, Family, &str, &str)] = &[$(
            (Count::$count, Family::$family, $name, concat!($($help),+).trim_ascii()),
        )+];
    };
}

exposed! {
    /// Hits of a rule.
    TotalHits = Mapped "total_hits";
    /// Hits over the limit of a rule.
    OverLimit = Mapped "over_limit";
    /// Hits within the limit of a rule, but above NEAR_LIMIT_RATIO of it.
    NearLimit = Mapped "near_limit";
    /// Hits within the limit of a rule.
    WithinLimit = Mapped "within_limit";
    /// Hits over the limit of a rule in shadow mode, which were admitted.
    ShadowMode = Mapped "shadow_mode";
    /// Hits over the limit of a rule that were answered from the over-limit cache.
    OverLimitWithLocalCache = Unmapped "over_limit_with_local_cache";
    /// Refunded hits of a rule.
    Refunded = Unmapped "total_negative_hits";
    /// Refunded hits.
    Refunded = Own "tollgate_rule_refunded_hits_total";
    /// Hits that waited for their slot.
    Queued = Own "tollgate_rule_queued_hits_total";
    /// Hits over the limit of a rule with on_limit: degrade, which were admitted.
    Degraded = Own "tollgate_rule_degraded_hits_total";
    /// Hits over the limit of a rule that does not reject them: in shadow mode, a quota while
    /// another is left, or with on_limit: degrade.
    Admitted = Own "tollgate_rule_admitted_hits_total";
}

/// The counters of all rules by name.
#[derive(Debug)]
pub struct StatsTable {
    names: RwLock<Names>,
    series_max: usize,
    overflows: metric::Counter,
}

#[derive(Debug, Default)]
struct Names {
    of_rules: HashMap<Box<str>, Arc<RuleStats>>,
    of_clients: HashMap<Box<str>, Arc<RuleStats>>,
    unknown_domains: DomainCounts,
    /// Of domains of the rules.
    unmatched: DomainCounts,
    /// Bytes of the names in `of_clients` and `unknown_domains`.
    client_bytes: usize,
}

/// Descriptors by their domain.
type DomainCounts = HashMap<Box<str>, AtomicU64>;

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
    pub(crate) fn of_rule(&self, name: &str) -> Arc<RuleStats> {
        let mut names = self.names.write();
        if let Some(known) = names.of_rules.get(name) {
            return known.clone();
        }
        // A name that clients used before keeps its counters.
        let of_client = names.of_clients.remove(name);
        if of_client.is_some() {
            names.client_bytes -= name.len();
        }
        let stats = of_client.unwrap_or_default();
        names.of_rules.insert(name.into(), stats.clone());
        stats
    }

    /// The counters of a client-supplied name.
    pub(crate) fn of_client(&self, domain: &str, name: &str) -> Arc<RuleStats> {
        let known = |names: &Names| {
            let known = names.of_rules.get(name);
            let known = known.or_else(|| names.of_clients.get(name));
            known.cloned()
        };
        if let Some(known) = known(&self.names.read()) {
            return known;
        }
        let mut names = self.names.write();
        if let Some(known) = known(&names) {
            return known;
        }
        if self.admits(&mut names, name) {
            return names.of_clients.entry(name.into()).or_default().clone();
        }
        // One for each domain of the rules, of which there are few.
        let other = format!("{domain}.{OTHER}");
        names.of_rules.entry(other.into()).or_default().clone()
    }

    /// Counts the descriptors of a request for an unknown domain, as envoyproxy/ratelimit does.
    pub(crate) fn domain_not_found(&self, domain: &str, descriptors: u64) {
        if is_added(&self.names.read().unknown_domains, domain, descriptors) {
            return;
        }
        let mut names = self.names.write();
        let is_known = names.unknown_domains.contains_key(domain);
        let name = if is_known || self.admits(&mut names, domain) { domain } else { OTHER };
        let count = names.unknown_domains.entry(name.into()).or_default();
        count.fetch_add(descriptors, Relaxed);
    }

    /// Counts descriptors without a rule, of a domain that the rules have.
    pub(crate) fn unmatched(&self, domain: &str, descriptors: u64) {
        if !is_added(&self.names.read().unmatched, domain, descriptors) {
            let mut names = self.names.write();
            let count = names.unmatched.entry(domain.into()).or_default();
            count.fetch_add(descriptors, Relaxed);
        }
    }

    /// Whether one more client-supplied name may be kept; it is counted in any case.
    fn admits(&self, names: &mut Names, name: &str) -> bool {
        let bytes = names.client_bytes + name.len();
        let fits = names.of_clients.len() + names.unknown_domains.len() < self.series_max
            && name.len() <= SERIES_NAME_BYTES_MAX
            && bytes <= SERIES_NAMES_BYTES_MAX;
        if fits {
            names.client_bytes = bytes;
        } else {
            self.overflows.inc();
        }
        fits
    }

    /// Removes the names of rules that are not in use and never counted, and of the other unused
    /// ones those beyond `series_max`, and so of limits: reloads under new names must not
    /// accumulate.
    pub(crate) fn forget_retired(&self) {
        let mut retired = 0;
        self.names.write().of_rules.retain(|_, stats| {
            if Arc::strong_count(stats) > 1 {
                stats.forget_retired_limits();
                return true;
            }
            retired += 1;
            retired <= self.series_max && !stats.is_zero()
        });
    }
}

impl Source for StatsTable {
    fn collect(&self, series: &mut Vec<Series>) {
        let names = self.names.read();
        let of_rules = names.of_rules.iter().map(|named| (named, false));
        let of_clients = names.of_clients.iter().map(|named| (named, true));
        for ((name, stats), of_client) in of_rules.chain(of_clients) {
            for &(count, family, metric, help) in EXPOSED {
                // As in envoyproxy/ratelimit, counters at zero are not sent: rules may be many and
                // idle.
                let count = stats.get(count);
                if count > 0 {
                    series.push(rule_series(family, metric, help, name, count, of_client));
                }
            }
            if stats.leased(LeaseEvent::Taken) > 0 {
                series.extend(LeaseEvent::ALL.map(|event| lease_series(name, stats, event)));
            }
            for (limit, of_limit) in stats.limits() {
                for (percent, count) in of_limit.crossings() {
                    series.push(crossing_series(name, &limit, percent, count));
                }
            }
        }
        for (domain, count) in &names.unknown_domains {
            let shown = metric_name::sanitized(domain.to_string());
            let statsd = format!("ratelimit.service.rate_limit.{shown}.domain_not_found");
            let labels = vec![("domain", domain.to_string())];
            let name = "ratelimit_service_rate_limit_domain_not_found";
            let count = count.load(Relaxed);
            series.push(Series {
                of_client: true,
                ..Series::counter(name, DOMAIN_HELP, labels, count, Some(statsd))
            });
        }
        // A domain that the rules had before, or have since, is in both.
        let mut unmatched: BTreeMap<&str, u64> = BTreeMap::new();
        for (domain, count) in names.unknown_domains.iter().chain(&names.unmatched) {
            *unmatched.entry(domain).or_default() += count.load(Relaxed);
        }
        for (domain, count) in unmatched {
            let name = "tollgate_unmatched_descriptors_total";
            let labels = vec![("domain", domain.to_owned())];
            series.push(Series::counter(name, UNMATCHED_HELP, labels, count, None));
        }
    }
}

/// Adds descriptors of a domain; `false` if it has none yet.
fn is_added(counts: &DomainCounts, domain: &str, descriptors: u64) -> bool {
    counts.get(domain).map(|count| count.fetch_add(descriptors, Relaxed)).is_some()
}

fn lease_series(name: &str, stats: &RuleStats, event: LeaseEvent) -> Series {
    let mut labels = metric_name::labels(name);
    labels.push(("event", event.name().to_owned()));
    Series::counter(
        "tollgate_rule_lease_hits_total",
        "Hits of a rule that were taken ahead, and what became of them.",
        labels,
        stats.leased(event),
        None,
    )
}

fn crossing_series(name: &str, limit: &str, percent: u8, count: u64) -> Series {
    let mut labels = metric_name::labels(name);
    labels.truncate(1);
    labels.extend([
        ("rule", name.to_owned()),
        ("limit", limit.to_owned()),
        ("threshold", percent.to_string()),
    ]);
    let name = "tollgate_limit_crossings_total";
    Series::counter(name, CROSSINGS_HELP, labels, count, None)
}

/// A counter of a rule. Client-supplied names are only label values.
fn rule_series(
    family: Family,
    metric: &str,
    help: &'static str,
    name: &str,
    count: u64,
    of_client: bool,
) -> Series {
    // Series that differ in further keys are added up.
    let labels = metric_name::labels(name);
    if family == Family::Own {
        return Series::counter(metric, help, labels, count, None);
    }
    let statsd = format!("ratelimit.service.rate_limit.{name}.{metric}");
    let mapped = format!("ratelimit_service_rate_limit_{metric}");
    // The mapping knows no names without a label for a key either.
    if of_client || family == Family::Mapped && labels.len() >= 2 {
        Series { of_client, ..Series::counter(&mapped, help, labels, count, Some(statsd)) }
    } else {
        Series::counter(&escaped(&statsd), help, Vec::new(), count, Some(statsd))
    }
}
