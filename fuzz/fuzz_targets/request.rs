//! Any bytes as a request: it is answered with a status for each descriptor or refused, and nobody gets more than the limit.

#![no_main]

use std::cell::RefCell;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use prost::Message as _;
use tollgate::api::convert;
use tollgate::config::{self, Options, Source};
use tollgate::limiter::fallback::Fallback;
use tollgate::limiter::{Limiter, Modes, Parts, Policy, Shared};
use tollgate::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollgate::rules::stats::StatsTable;
use tollgate::rules::{LiveRules, OnStoreError};
use tollgate::store::{Backend, memory::Counters};
use tollgate::telemetry::metric::Metrics;
use tollgate::time::{Clock, ManualClock, Span, Time};

const RULES: &str = "
domain: d
descriptors:
- {key: a, rate_limit: {unit: hour, requests_per_unit: 5}}
- {key: a, value: 'x*y', detailed_metric: true, rate_limit: {unit: second, requests_per_unit: 0}}
- {key: '', value: b}
- {key: b, rate_limit: {unit: minute, requests_per_unit: 7}, metadata: {tollgate: {algorithm: token_bucket, burst: 9, refused_hits: count}}}
- {key: s, rate_limit: {unit: minute, requests_per_unit: 7}, metadata: {tollgate: {algorithm: sliding_window}}}
- {key: s, value: t, rate_limit: {unit: minute, requests_per_unit: 7}, metadata: {tollgate: {algorithm: sliding_window, buckets: 5}}}
- {key: l, rate_limit: {unit: second, requests_per_unit: 3}, metadata: {tollgate: {algorithm: sliding_log, on_limit: degrade}}}
- {key: h, descriptors: [{key: i, rate_limit: {unit: day, requests_per_unit: 3}, metadata: {tollgate: {algorithm: concurrency, lease_by: i, lease: 9s}}}]}
- {key: q, rate_limit: {unit: second, requests_per_unit: 900}, metadata: {tollgate: {algorithm: leaky_bucket, on_limit: queue, max_wait: 2ms}}}
- {key: c, value_to_metric: true, descriptors: [{key: a, quota_mode: true, rate_limit: {name: n, unit: day, requests_per_unit: 2}}]}
- {key: u, rate_limit: {unlimited: true, replaces: [{name: n}]}}
";

struct Service {
    limiter: Limiter,
    clock: ManualClock,
    runtime: tokio::runtime::Runtime,
}

thread_local! {
    static SERVICES: RefCell<Vec<Service>> = RefCell::new((0..2).map(|number| service(number == 1)).collect());
}

fn service(together: bool) -> Service {
    let metrics = Metrics::new();
    let stats = StatsTable::new(100, &metrics);
    let text = RULES.replace("- {key: '', value: b}\n", "");
    let source = Source { name: "r".into(), path: "r".into(), text: text.as_str().into() };
    let options = Options::new(stats.clone());
    let live = Arc::new(LiveRules::default());
    live.replace(config::load(&[source], &options).expect("the rules are right").rules);
    let (clock, hand) = Clock::manual(Time::from_micros(1_700_000_000_000_000));
    let policy = Policy {
        modes: Modes { together, ..Modes::default() },
        near_limit_ratio: 0.8,
        ietf_headers: true,
        retry_after_header: true,
        dynamic_metadata: true,
        ..Policy::default()
    };
    // Small, so that it evicts.
    let backend = Backend::Memory(Arc::new(Counters::new(64 << 10, "store", &metrics)));
    let fallback = Fallback::new(OnStoreError::Local, &metrics);
    let parts = Parts { rules: live, backend, fallback, clock, stats, policy };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let limiter = runtime.block_on(async { Arc::new(Shared::new(parts, &metrics)).open() });
    Service { limiter, clock: hand, runtime }
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(request) = RateLimitRequest::decode(bytes) else { return };
    SERVICES.with_borrow(|services| {
        for service in services {
            service.clock.advance(Span::from_micros(bytes.len() as u64 * 1_000));
            let answer = service.runtime.block_on(service.limiter.answer(&convert::query(&request)));
            match answer {
                Ok(answer) => {
                    assert_eq!(answer.statuses.len(), request.descriptors.len());
                    let response = convert::response(answer);
                    assert!(response.statuses.iter().all(|status| status.code != 0));
                    let _ = response.encode_to_vec();
                }
                Err(refusal) => assert!(!convert::status(&refusal).message().is_empty()),
            }
        }
    });
});
