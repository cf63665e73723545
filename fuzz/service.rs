//! What several fuzz targets have in common: the limiter with rules of every algorithm, on the memory store and a clock set by hand.

use std::sync::Arc;

use tollgate::base::time::{Clock, ManualClock, Time};
use tollgate::limiter::fallback::Fallback;
use tollgate::limiter::{Observers, Parts, Settings, Shared};
use tollgate::operator::observe::feed::OverLimitFeed;
use tollgate::operator::observe::redact::Values;
use tollgate::rules::config::{self, CompileOptions, Source};
use tollgate::rules::stats::StatsTable;
use tollgate::rules::{LiveRules, OnStoreError};
use tollgate::store::{Backend, memory::Counters};
use tollgate::telemetry::metric::Metrics;

const RULES: &str = "
domain: d
descriptors:
- {key: a, rate_limit: {unit: hour, requests_per_unit: 5}}
- {key: a, value: 'x*y', detailed_metric: true, rate_limit: {unit: second, requests_per_unit: 0}}
- {key: '', value: b}
- {key: b, rate_limit: {unit: minute, requests_per_unit: 7}, metadata: {tollgate: {algorithm: token_bucket, burst: 9, over_limit_hits: count}}}
- {key: s, rate_limit: {unit: minute, requests_per_unit: 7}, metadata: {tollgate: {algorithm: sliding_window}}}
- {key: s, value: t, rate_limit: {unit: minute, requests_per_unit: 7}, metadata: {tollgate: {algorithm: sliding_window, buckets: 5}}}
- {key: l, rate_limit: {unit: second, requests_per_unit: 3}, metadata: {tollgate: {algorithm: sliding_log, on_limit: degrade}}}
- {key: h, descriptors: [{key: i, rate_limit: {unit: day, requests_per_unit: 3}, metadata: {tollgate: {algorithm: concurrency, lease_by: i, lease: 9s}}}]}
- {key: q, rate_limit: {unit: second, requests_per_unit: 900}, metadata: {tollgate: {algorithm: leaky_bucket, on_limit: queue, max_wait: 2ms}}}
- {key: c, value_to_metric: true, descriptors: [{key: a, quota_mode: true, rate_limit: {name: n, unit: day, requests_per_unit: 2}}]}
- {key: u, rate_limit: {unlimited: true, replaces: [{name: n}]}}
";

/// A limiter that is not opened yet, and the hand of its clock.
pub fn limiter(all_or_nothing: bool, metrics: &Metrics) -> (Arc<Shared>, ManualClock) {
    let stats = StatsTable::new(100, metrics);
    let text = RULES.replace("- {key: '', value: b}\n", "");
    let source = Source { name: "r".into(), path: "r".into(), text: text.as_str().into() };
    let options = CompileOptions::new(stats.clone());
    let live = Arc::new(LiveRules::default());
    live.replace(config::load(&[source], &options).expect("the rules are right").rules);
    let (clock, hand) = Clock::manual(Time::from_micros(1_700_000_000_000_000));
    let settings = Settings {
        stop_cache_key_increment_when_overlimit: all_or_nothing,
        ietf_ratelimit_headers_enabled: true,
        retry_after_header_enabled: true,
        response_dynamic_metadata: true,
        ..Settings::default()
    };
    // Small, so that it evicts.
    let backend = Backend::Memory(Arc::new(Counters::new(64 << 10, "store", metrics)));
    let fallback = Fallback::new(OnStoreError::Local, metrics);
    let feed = OverLimitFeed::new("a", Values::Clear, metrics);
    let observers = Observers::new(stats, feed, &settings, &clock, metrics);
    let parts = Parts {
        rules: live,
        backend,
        fallback,
        clock,
        settings,
        observers: Some(Arc::new(observers)),
    };
    (Arc::new(Shared::new(parts, metrics)), hand)
}

/// A runtime as a worker has one.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}
