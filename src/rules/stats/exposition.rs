//! The metrics of rules: names, help and labels as data.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::rules::metric_name;
use crate::rules::stats::{RuleStats, StatsTable};
use crate::telemetry::mapper::escaped;
use crate::telemetry::metric::{Series, Source};

/// A counter of envoyproxy/ratelimit.
struct ReferenceCounter {
    name: &'static str,
    help: &'static str,
    read: fn(&RuleStats) -> &AtomicU64,
    /// Whether its default mapping makes labels of the keys. It does not know the others, takes
    /// `over_limit_with_local_cache` for `over_limit` if there are two keys, and would count it
    /// twice.
    is_mapped: bool,
}

/// A counter of Tollgate.
struct OwnCounter {
    name: &'static str,
    help: &'static str,
    read: fn(&RuleStats) -> &AtomicU64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum NameOrigin {
    Rules,
    Clients,
}

const REFERENCE: [ReferenceCounter; 7] = [
    mapped("total_hits", "Hits of a rule.", |stats| &stats.total_hits),
    mapped("over_limit", "Hits over the limit of a rule.", |stats| {
        &stats.over_limit
    }),
    mapped(
        "near_limit",
        "Hits within the limit of a rule, but above NEAR_LIMIT_RATIO of it.",
        |stats| &stats.near_limit,
    ),
    mapped(
        "within_limit",
        "Hits within the limit of a rule.",
        |stats| &stats.within_limit,
    ),
    mapped(
        "shadow_mode",
        "Hits over the limit of a rule in shadow mode, which were admitted.",
        |stats| &stats.shadow_mode,
    ),
    unmapped(
        "over_limit_with_local_cache",
        "Hits over the limit of a rule that were answered from the over-limit cache.",
        |stats| &stats.over_limit_with_local_cache,
    ),
    unmapped("total_negative_hits", "Refunded hits of a rule.", |stats| {
        &stats.given_back
    }),
];

const OWN: [OwnCounter; 3] = [
    OwnCounter {
        name: "tollgate_rule_refunded_hits_total",
        help: "Refunded hits.",
        read: |stats| &stats.given_back,
    },
    OwnCounter {
        name: "tollgate_rule_queued_hits_total",
        help: "Hits that waited for their slot.",
        read: |stats| &stats.queued,
    },
    OwnCounter {
        name: "tollgate_rule_degraded_hits_total",
        help: "Hits over the limit of a rule with on_limit: degrade, which were admitted.",
        read: |stats| &stats.degraded,
    },
];

const DOMAIN_HELP: &str = "Descriptors of requests for an unknown domain.";

const fn mapped(
    name: &'static str,
    help: &'static str,
    read: fn(&RuleStats) -> &AtomicU64,
) -> ReferenceCounter {
    ReferenceCounter {
        name,
        help,
        read,
        is_mapped: true,
    }
}

const fn unmapped(
    name: &'static str,
    help: &'static str,
    read: fn(&RuleStats) -> &AtomicU64,
) -> ReferenceCounter {
    ReferenceCounter {
        is_mapped: false,
        ..mapped(name, help, read)
    }
}

impl RuleStats {
    pub(super) fn is_zero(&self) -> bool {
        REFERENCE
            .iter()
            .all(|counter| (counter.read)(self).load(Relaxed) == 0)
    }
}

impl Source for StatsTable {
    fn collect(&self, series: &mut Vec<Series>) {
        let names = self.names.read();
        let of_rules = names
            .of_rules
            .iter()
            .map(|(name, stats)| (name, stats, NameOrigin::Rules));
        let of_clients = names
            .of_clients
            .iter()
            .map(|(name, stats)| (name, stats, NameOrigin::Clients));
        for (name, stats, origin) in of_rules.chain(of_clients) {
            // As in envoyproxy/ratelimit, counters at zero are not sent: rules may be many and idle.
            for counter in &REFERENCE {
                let count = (counter.read)(stats).load(Relaxed);
                if count > 0 {
                    series.push(reference_series(counter, name, count, origin));
                }
            }
            for OwnCounter {
                name: metric,
                help,
                read,
            } in &OWN
            {
                let count = read(stats).load(Relaxed);
                if count > 0 {
                    series.push(Series::counter(metric, help, labels(name), count, None));
                }
            }
        }
        for (domain, count) in &names.unknown_domains {
            let statsd = format!(
                "ratelimit.service.rate_limit.{}.domain_not_found",
                metric_name::sanitized(domain.to_string())
            );
            let domain = vec![("domain", domain.to_string())];
            let name = family("domain_not_found");
            let count = count.load(Relaxed);
            series.push(Series {
                of_client: true,
                ..Series::counter(&name, DOMAIN_HELP, domain, count, Some(statsd))
            });
        }
    }
}

/// A counter under its name of envoyproxy/ratelimit. Client-supplied names are only label values.
fn reference_series(
    counter: &ReferenceCounter,
    name: &str,
    count: u64,
    origin: NameOrigin,
) -> Series {
    let ReferenceCounter {
        name: count_name,
        help,
        ..
    } = counter;
    let statsd = format!("ratelimit.service.rate_limit.{name}.{count_name}");
    let labels = labels(name);
    let of_client = origin == NameOrigin::Clients;
    // The mapping knows no names without a label for a key either.
    if of_client || counter.is_mapped && labels.len() >= 2 {
        Series {
            of_client,
            ..Series::counter(&family(count_name), help, labels, count, Some(statsd))
        }
    } else {
        Series::counter(&escaped(&statsd), help, Vec::new(), count, Some(statsd))
    }
}

fn family(count_name: &str) -> String {
    format!("ratelimit_service_rate_limit_{count_name}")
}

/// The labels of the default mapping: the part before the first dot is the domain, then two keys.
/// Series that differ in further keys are added up.
fn labels(name: &str) -> Vec<(&'static str, String)> {
    ["domain", "key1", "key2"]
        .into_iter()
        .zip(name.split('.').map(str::to_owned))
        .collect()
}
