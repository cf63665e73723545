use crate::base::time::{Span, Time};
use crate::limits::check::{Check, Hits, Key, LeaseEvent, Verdict};
use crate::limits::{Algorithm, Limit, Terms, Unit};
use crate::rules::stats::counts::Disposition;
use crate::rules::stats::{
    Count, METRIC_SERIES_MAX, OTHER, RuleStats, SERIES_NAME_BYTES_MAX, SERIES_NAMES_BYTES_MAX,
    StatsTable,
};
use crate::telemetry::metric::Metrics;

/// limit, hits before, hits asked, then total, over, near, within.
const ARITHMETIC: &[(u64, u64, u64, [u64; 4])] = &[
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
        let counts = counts_of(requests, hits, used, used > requests);
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

/// The counts of one call: total, over, near, within.
fn counts_of(requests: u64, hits: u64, used: u64, over: bool) -> [u64; 4] {
    let stats = RuleStats::default();
    let limit =
        Limit::new(&Terms::new(requests, Unit::Hour, Algorithm::FixedWindow)).expect("a limit");
    let verdict = Verdict { over, used, ..Verdict::default() };
    let check = Check::new(Key::default(), limit, Hits::Add(hits));
    stats.record(&check, &verdict, Disposition::Nothing, 0.8);
    [Count::TotalHits, Count::OverLimit, Count::NearLimit, Count::WithinLimit]
        .map(|count| stats.get(count))
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
    // A name that becomes that of a rule frees its bytes.
    table.of_rule(&name_of(0));
    table.domain_not_found("x", 1);
    assert_eq!(table.overflows.get(), 2);
    table.domain_not_found(&"y".repeat(SERIES_NAME_BYTES_MAX + 1), 1);
    assert_eq!(table.overflows.get(), 3, "it is too long itself");
    let names = table.names.read();
    let bytes: usize =
        names.of_clients.keys().chain(names.unknown_domains.keys()).map(|name| name.len()).sum();
    assert_eq!(names.client_bytes, bytes - OTHER.len());
    assert!(names.client_bytes <= SERIES_NAMES_BYTES_MAX);
}

#[test]
fn names_from_clients_are_values_of_labels() {
    let metrics = Metrics::new();
    let table = StatsTable::new(METRIC_SERIES_MAX, &metrics);
    let mine = r#"a "quoted" name"#;
    table.domain_not_found(mine, 2);
    for count in [3, 4] {
        table.unmatched("d", count);
    }
    for stats in [table.of_client("d", &format!("d.{mine}")), table.of_rule("d.key")] {
        stats.add(Count::TotalHits, 1);
        stats.add(Count::OverLimitWithLocalCache, 1);
        stats.add(Count::Refunded, 1);
    }
    let page = metrics.page();
    for line in [
        r#"ratelimit_service_rate_limit_domain_not_found{domain="a \"quoted\" name"} 2"#,
        r#"tollgate_unmatched_descriptors_total{domain="a \"quoted\" name"} 2"#,
        r#"tollgate_unmatched_descriptors_total{domain="d"} 7"#,
        r#"ratelimit_service_rate_limit_total_hits{domain="d",key1="a \"quoted\" name"} 1"#,
        r#"ratelimit_service_rate_limit_over_limit_with_local_cache{domain="d",key1="a \"quoted\" name"} 1"#,
        "ratelimit_service_rate_limit_d_key_over_limit_with_local_cache 1",
        r#"ratelimit_service_rate_limit_total_negative_hits{domain="d",key1="a \"quoted\" name"} 1"#,
        "ratelimit_service_rate_limit_d_key_total_negative_hits 1",
    ] {
        assert!(page.lines().any(|shown| shown == line), "{line}: {page}");
    }
    let families =
        page.lines().filter(|line| line.starts_with("# TYPE") && line.contains("quoted")).count();
    assert_eq!(families, 0, "{page}");
}

#[test]
fn hits_taken_ahead_are_exposed_once_there_are_some() {
    let metrics = Metrics::new();
    let table = StatsTable::new(METRIC_SERIES_MAX, &metrics);
    let hits = table.of_rule("d.key.sub.more").lease(None).hits.clone();
    assert!(!metrics.page().contains("lease"));
    hits.add(LeaseEvent::Taken, 9);
    hits.add(LeaseEvent::Used, 5);
    hits.add(LeaseEvent::GivenBack, 3);
    let page = metrics.page();
    for (event, count) in [("taken", 9), ("used", 5), ("given_back", 3), ("stranded", 0)] {
        let line = format!(
            r#"tollgate_rule_lease_hits_total{{domain="d",key1="key",key2="sub",event="{event}"}} {count}"#
        );
        assert!(page.contains(&line), "{line}: {page}");
    }
    drop(hits);
    table.forget_retired();
    assert_eq!(metrics.page(), page, "counts stay when their rule is gone");
}

#[test]
fn usage_is_that_of_the_last_verdict_until_its_counter_is_unused() {
    let stats = RuleStats::default();
    let at = |millis: u64| Time::from_micros(1_700_000_000_000_000 + millis * 1_000);
    assert_eq!(stats.used(at(0)), 0);
    for (used, shown) in [(3, 3), (7, 7), (u64::MAX, u64::from(u32::MAX)), (2, 2)] {
        let verdict =
            Verdict { used, reset_after: Span::from_micros(2_000_000), ..Verdict::default() };
        stats.set_usage(&verdict, at(500));
        assert_eq!(stats.used(at(2_499)), shown);
        assert_eq!(stats.used(at(3_000)), 0, "a second is the unit of the reset");
    }
}
