//! The counters of rules, found by name in a table that outlives reloads, so that they only grow.
//!
//! Rules hold their counters, and a request looks nothing up. Only where a name depends on the
//! request (`detailed_metric`, `value_to_metric`, limits in requests, unknown domains) is the table
//! asked, and of those names it keeps a bounded number: clients choose them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::RwLock;

use crate::check::{HITS_MAX, Hits, Verdict};
use crate::limit::{Algorithm, Limit, OverLimitHits};
use crate::telemetry::mapper::escaped;
use crate::telemetry::metric::{Counter, Metrics, Series, Source};

/// How many names that come from clients are kept apart. The rest is counted together.
pub const METRIC_SERIES_MAX: usize = 10_000;
/// How long such a name may be, in bytes; longer ones are not kept apart. A statsd packet of one
/// Ethernet frame has no room for more.
pub const SERIES_NAME_BYTES_MAX: usize = 1_024;
/// How long all of them may be together: each is on the metrics page up to ten times, and in every
/// packet to statsd.
pub const SERIES_NAMES_BYTES_MAX: usize = 1 << 20;
/// What names beyond that are counted as.
const OTHER: &str = "__other__";

/// What the reference counts of one rule; and what is given back, held back or degraded, which it
/// does not know.
#[derive(Debug, Default)]
pub struct RuleStats {
    total_hits: AtomicU64,
    over_limit: AtomicU64,
    near_limit: AtomicU64,
    within_limit: AtomicU64,
    shadow_mode: AtomicU64,
    over_limit_with_local_cache: AtomicU64,
    given_back: AtomicU64,
    queued: AtomicU64,
    degraded: AtomicU64,
}

/// All of them, by name.
#[derive(Debug)]
pub struct StatsTable {
    names: RwLock<Names>,
    series_max: usize,
    overflows: Counter,
}

#[derive(Debug, Default)]
struct Names {
    of_rules: HashMap<Box<str>, Arc<RuleStats>>,
    of_clients: HashMap<Box<str>, Arc<RuleStats>>,
    unknown_domains: HashMap<Box<str>, Arc<AtomicU64>>,
    /// Of the names in `of_clients` and `unknown_domains`.
    client_bytes: usize,
}

/// Who chose a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Rules,
    Clients,
}

/// What a call did, for [`RuleStats::record`].
#[derive(Debug, Clone, Copy)]
pub struct Outcome<'o> {
    /// The limit.
    pub limit: &'o Limit,
    /// What was asked.
    pub hits: Hits,
    /// The answer.
    pub verdict: &'o Verdict,
    /// The check only looked in the end, because a neighbour of it vetoed.
    pub not_consumed: bool,
    /// What was done instead of refusing it.
    pub disposition: Disposition,
    /// From this part of the limit on, hits are near it.
    pub near_ratio: f32,
}

/// What is done about hits that there is no room for, if they are not refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// They are refused, if there is no room.
    Nothing,
    /// The rule is in shadow mode.
    Shadowed,
    /// The upstream is told to give the cheap answer.
    Degraded,
    /// They pass when there is room.
    Queued,
}

impl RuleStats {
    /// Adds one call, by the reference's arithmetic.
    pub fn record(&self, outcome: &Outcome<'_>) {
        let hits = match outcome.hits {
            Hits::Peek => return,
            Hits::Refund(hits) => {
                self.given_back.fetch_add(hits.min(HITS_MAX), Relaxed);
                return;
            }
            Hits::Add(hits) => hits.min(HITS_MAX),
        };
        self.total_hits.fetch_add(hits, Relaxed);
        if outcome.not_consumed {
            return;
        }
        let limit = u64::from(outcome.limit.capacity());
        let near = near_threshold(outcome.limit.capacity(), outcome.near_ratio);
        let after = outcome.verdict.used;
        let before = after.saturating_sub(hits);
        if !outcome.verdict.over {
            if outcome.disposition == Disposition::Queued {
                self.queued.fetch_add(hits, Relaxed);
            }
            self.within_limit.fetch_add(hits, Relaxed);
            if after > near {
                self.near_limit
                    .fetch_add(if before >= near { hits } else { after - near }, Relaxed);
            }
            return;
        }
        // A window that counts what it refuses lets the first hits of a refused call in, as far as
        // metrics go. Others refuse whole, and so does a verdict that was given below the
        // limit: by policy, or against one replica's share.
        let counts = outcome.limit.algorithm() == Algorithm::FixedWindow
            && outcome.limit.over_limit_hits() == OverLimitHits::Count;
        let splits = counts && after > limit;
        let refused = if splits && before < limit {
            after - limit
        } else {
            hits
        };
        self.over_limit.fetch_add(refused, Relaxed);
        if outcome.verdict.from_cache {
            self.over_limit_with_local_cache.fetch_add(hits, Relaxed);
        }
        if splits && before < limit {
            self.near_limit
                .fetch_add(limit.saturating_sub(near.max(before)), Relaxed);
        }
        match outcome.disposition {
            Disposition::Shadowed => self.shadow_mode.fetch_add(refused, Relaxed),
            Disposition::Degraded => self.degraded.fetch_add(refused, Relaxed),
            Disposition::Nothing | Disposition::Queued => return,
        };
    }

    fn counts(&self) -> [(&'static str, u64); 7] {
        [
            ("total_hits", self.total_hits.load(Relaxed)),
            ("over_limit", self.over_limit.load(Relaxed)),
            ("near_limit", self.near_limit.load(Relaxed)),
            ("within_limit", self.within_limit.load(Relaxed)),
            ("shadow_mode", self.shadow_mode.load(Relaxed)),
            (
                "over_limit_with_local_cache",
                self.over_limit_with_local_cache.load(Relaxed),
            ),
            ("total_negative_hits", self.given_back.load(Relaxed)),
        ]
    }

    /// What the reference does not know: the name and help of its metric, and its number.
    fn own_counts(&self) -> [(&'static str, &'static str, u64); 3] {
        [
            (
                "tollgate_rule_refunded_hits_total",
                "Hits that were given back.",
                self.given_back.load(Relaxed),
            ),
            (
                "tollgate_rule_queued_hits_total",
                "Hits that were held back until there was room for them.",
                self.queued.load(Relaxed),
            ),
            (
                "tollgate_rule_degraded_hits_total",
                "Hits over the limit of a rule that were let through with word to the upstream to give the cheap answer.",
                self.degraded.load(Relaxed),
            ),
        ]
    }
}

impl StatsTable {
    /// An empty table, which shows its counters in `metrics`.
    pub fn new(series_max: usize, metrics: &Metrics) -> Arc<Self> {
        let table = Arc::new(Self {
            names: RwLock::default(),
            series_max,
            overflows: metrics.counter(
                "tollgate_metric_series_overflow_total",
                "Calls counted under __other__ because clients brought as many names, or as many bytes of them, as are kept apart (metric_series_max).",
            ),
        });
        metrics.add_source(table.clone());
        table
    }

    /// The counters of a rule. Rules are bounded by their files, so these are always kept apart.
    pub fn of_rule(&self, name: &str) -> Arc<RuleStats> {
        let mut names = self.names.write();
        if let Some(known) = names.of_rules.get(name) {
            return known.clone();
        }
        // A name that clients brought first goes on counting where it was.
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

    /// The counters of a name that a request made up.
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
        // One more for each domain of the rules, of which there are few.
        names
            .of_rules
            .entry(format!("{domain}.{OTHER}").into())
            .or_default()
            .clone()
    }

    /// Counts a request for a domain that has no rules: so many descriptors, each of which the
    /// reference looks up by itself.
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

    /// Forgets the names of rules that nobody holds any more and that never counted, and of the
    /// others those beyond `series_max`: rules that come and go under new names must not pile
    /// up.
    pub fn forget_retired(&self) {
        let mut names = self.names.write();
        let mut retired = 0;
        names.of_rules.retain(|_, stats| {
            if Arc::strong_count(stats) > 1 {
                return true;
            }
            retired += 1;
            retired <= self.series_max && stats.counts().iter().any(|(_, count)| *count > 0)
        });
    }
}

impl Names {
    fn client_count(&self) -> usize {
        self.of_clients.len() + self.unknown_domains.len()
    }
}

impl Source for StatsTable {
    fn collect(&self, series: &mut Vec<Series>) {
        let names = self.names.read();
        let of_rules = names
            .of_rules
            .iter()
            .map(|(name, stats)| (name, stats, Origin::Rules));
        let of_clients = names
            .of_clients
            .iter()
            .map(|(name, stats)| (name, stats, Origin::Clients));
        for (name, stats, origin) in of_rules.chain(of_clients) {
            for (count_name, count) in stats.counts() {
                // As in the reference, where counters that stand at zero are never sent: 100,000
                // idle rules are no news.
                if count > 0 {
                    series.push(reference_series(name, count_name, count, origin));
                }
            }
            for (metric, help, count) in stats.own_counts() {
                if count > 0 {
                    series.push(Series::counter(metric, help, labels(name), count, None));
                }
            }
        }
        for (domain, count) in &names.unknown_domains {
            let statsd = format!(
                "ratelimit.service.rate_limit.{}.domain_not_found",
                super::metric_name::sanitized(domain.to_string())
            );
            let help = "Descriptors of requests for a domain that no rule is about.";
            let name = family("domain_not_found");
            series.push(
                Series::counter(
                    &name,
                    help,
                    vec![("domain", domain.to_string())],
                    count.load(Relaxed),
                    Some(statsd),
                )
                .of_client(),
            );
        }
    }
}

/// A counter of a rule as envoyproxy/ratelimit names it. Names that clients chose are only ever
/// values of labels.
fn reference_series(name: &str, count_name: &str, count: u64, origin: Origin) -> Series {
    let statsd = format!("ratelimit.service.rate_limit.{name}.{count_name}");
    let labels = labels(name);
    let help = match count_name {
        "total_hits" => "Hits that a rule was asked about.",
        "over_limit" => "Hits over the limit of a rule.",
        "near_limit" => "Hits within the limit of a rule, but above NEAR_LIMIT_RATIO of it.",
        "within_limit" => "Hits within the limit of a rule.",
        "over_limit_with_local_cache" => {
            "Hits over the limit of a rule that were refused without asking Redis."
        }
        "total_negative_hits" => "Hits that were given back to a rule.",
        _ => "Hits over the limit of a rule in shadow mode, which were let through.",
    };
    if origin == Origin::Clients {
        return Series::counter(&family(count_name), help, labels, count, Some(statsd)).of_client();
    }
    // Its mapping knows nothing of the last two (and takes the first of them for `over_limit` where
    // there are two keys, which would count it twice), nor of names without a label for a key.
    // `tollgate_rule_refunded_hits_total` is the second with labels.
    let is_mapped = labels.len() >= 2
        && !["over_limit_with_local_cache", "total_negative_hits"].contains(&count_name);
    if is_mapped {
        Series::counter(&family(count_name), help, labels, count, Some(statsd))
    } else {
        Series::counter(&escaped(&statsd), help, Vec::new(), count, Some(statsd))
    }
}

/// The metric family of a counter, whatever it is of.
fn family(count_name: &str) -> String {
    format!("ratelimit_service_rate_limit_{count_name}")
}

/// The labels that the reference's mapping makes of a name: what is before the first dot is the
/// domain, then two keys. Deeper ones are summed up.
fn labels(name: &str) -> Vec<(&'static str, String)> {
    ["domain", "key1", "key2"]
        .into_iter()
        .zip(name.split('.').map(str::to_owned))
        .collect()
}

/// The reference computes this in 32-bit floats, so that is what it means.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "the reference's arithmetic"
)]
fn near_threshold(limit: u32, ratio: f32) -> u64 {
    (limit as f32 * ratio).floor() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Terms, Unit};
    use crate::time::Span;

    /// limit, hits before, hits asked, then total, over, near, within.
    const ARITHMETIC: &[(u32, u64, u64, [u64; 4])] = &[
        (20, 2, 3, [3, 0, 0, 3]),
        (8, 5, 2, [2, 0, 1, 2]),
        (20, 16, 3, [3, 0, 3, 3]),
        (20, 19, 3, [3, 2, 1, 0]),
        (20, 15, 7, [7, 2, 4, 0]),
        (10, 27, 3, [3, 3, 0, 0]),
        (0, 0, 1, [1, 1, 0, 0]),
    ];

    #[test]
    fn hits_are_split_into_over_near_and_within_as_in_the_reference() {
        for &(requests, before, hits, expected) in ARITHMETIC {
            let used = before + hits;
            let counts = counts_of(requests, hits, used, used > u64::from(requests));
            assert_eq!(counts, expected, "{requests} {before} {hits:?}");
        }
    }

    #[test]
    fn hits_refused_below_the_limit_are_all_over_it() {
        // By on_store_error: deny, which does not know what is used; by the share of one of two
        // replicas.
        for used in [0, 11] {
            assert_eq!(counts_of(20, 3, used, true), [3, 3, 0, 0], "{used} used");
        }
    }

    /// What is counted of one call: total, over, near, within.
    fn counts_of(requests: u32, hits: u64, used: u64, over: bool) -> [u64; 4] {
        let stats = RuleStats::default();
        let limit =
            Limit::new(&Terms::new(requests, Unit::Hour, Algorithm::FixedWindow)).expect("a limit");
        let verdict = Verdict {
            over,
            used,
            remaining: 0,
            start_after: Span::ZERO,
            retry_after: None,
            reset_after: Span::ZERO,
            from_cache: false,
        };
        let hits = Hits::Add(hits);
        stats.record(&Outcome {
            limit: &limit,
            hits,
            verdict: &verdict,
            not_consumed: false,
            disposition: Disposition::Nothing,
            near_ratio: 0.8,
        });
        let [total, over, near, within, ..] = stats.counts().map(|(_, count)| count);
        [total, over, near, within]
    }

    #[test]
    fn names_from_clients_are_bounded() {
        let metrics = Metrics::new();
        let table = StatsTable::new(3, &metrics);
        for index in 0..10 {
            table.of_client("d", &format!("d.k_{index}"));
            table.domain_not_found(&format!("nowhere{index}"), 1);
        }
        let names = table.names.read();
        assert_eq!(
            names.of_clients.len() + names.unknown_domains.len(),
            3 + 1,
            "three names, and __other__"
        );
        assert!(names.of_rules.contains_key("d.__other__"));
        assert!(table.overflows.get() > 0);
    }

    #[test]
    fn names_from_clients_are_bounded_in_bytes() {
        let metrics = Metrics::new();
        let table = StatsTable::new(METRIC_SERIES_MAX, &metrics);
        let name_of = |index: usize| format!("{index:0>SERIES_NAME_BYTES_MAX$}");
        let half = SERIES_NAMES_BYTES_MAX / SERIES_NAME_BYTES_MAX / 2;
        for index in 0..half {
            table.of_client("d", &name_of(index));
            table.domain_not_found(&name_of(index), 1);
        }
        assert_eq!(table.overflows.get(), 0);
        table.domain_not_found(&name_of(half), 1);
        table.domain_not_found("x", 1);
        assert_eq!(table.overflows.get(), 2, "all bytes are used");
        // What becomes the name of a rule leaves room.
        table.of_rule(&name_of(0));
        table.domain_not_found("x", 1);
        assert_eq!(table.overflows.get(), 2);
        table.domain_not_found(&"y".repeat(SERIES_NAME_BYTES_MAX + 1), 1);
        assert_eq!(table.overflows.get(), 3, "it is too long itself");
        let names = table.names.read();
        let bytes: usize = names
            .of_clients
            .keys()
            .chain(names.unknown_domains.keys())
            .map(|name| name.len())
            .sum();
        assert_eq!(names.client_bytes, bytes - OTHER.len());
        assert!(names.client_bytes <= SERIES_NAMES_BYTES_MAX);
    }

    #[test]
    fn names_from_clients_are_values_of_labels() {
        let metrics = Metrics::new();
        let table = StatsTable::new(METRIC_SERIES_MAX, &metrics);
        let mine = r#"a "quoted" name"#;
        table.domain_not_found(mine, 2);
        for stats in [
            table.of_client("d", &format!("d.{mine}")),
            table.of_rule("d.key"),
        ] {
            stats.total_hits.fetch_add(1, Relaxed);
            stats.over_limit_with_local_cache.fetch_add(1, Relaxed);
            stats.given_back.fetch_add(1, Relaxed);
        }
        let page = metrics.page();
        for line in [
            r#"ratelimit_service_rate_limit_domain_not_found{domain="a \"quoted\" name"} 2"#,
            r#"ratelimit_service_rate_limit_total_hits{domain="d",key1="a \"quoted\" name"} 1"#,
            r#"ratelimit_service_rate_limit_over_limit_with_local_cache{domain="d",key1="a \"quoted\" name"} 1"#,
            "ratelimit_service_rate_limit_d_key_over_limit_with_local_cache 1",
            r#"ratelimit_service_rate_limit_total_negative_hits{domain="d",key1="a \"quoted\" name"} 1"#,
            "ratelimit_service_rate_limit_d_key_total_negative_hits 1",
        ] {
            assert!(page.lines().any(|shown| shown == line), "{line}: {page}");
        }
        let families = page
            .lines()
            .filter(|line| line.starts_with("# TYPE") && line.contains("quoted"))
            .count();
        assert_eq!(families, 0, "{page}");
    }
}
