//! Leases: when calls wait for Redis, and what becomes of hits whose replies are lost or whose
//! callers are gone.

use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tollgate::base::proto::envoy::service::ratelimit::v3::RateLimitRequest;

use crate::support::descriptor;
use crate::support::in_process::{
    Called, Service, Verdict, ask, decide, millis, network, pass, settle, single,
};
use crate::support::scripted_redis::Fault;

mod bounds;
mod commands;
mod simulation;

/// The lifetime of leases of a limit of a minute, by default.
const LIFETIME: Duration = Duration::from_secs(2);
/// How much later hits are given back: they are looked for in intervals.
const SWEEP_INTERVAL: Duration = millis(100);
/// What counts on one key of the rule.
const KEY: &str = "d_key_v_";
/// What counts on the same value of the exact rule.
const EXACT_KEY: &str = "d_exact_v_";
/// Calls of one step of a load.
const CALLS: usize = 6;

/// A service with a leased and an exact rule, which has seen that Redis counts.
async fn service(limit: &str, options: &str) -> Service {
    service_of("", limit, options).await
}

/// The same with options of the domain.
async fn service_of(domain: &str, limit: &str, options: &str) -> Service {
    let rule = |key: &str, options: &str| {
        format!(
            "  - key: {key}\n    rate_limit: {{{limit}}}\n    metadata: {{tollgate: {{on_store_error: error, {options}}}}}\n"
        )
    };
    let leased = rule("key", &format!("consistency: leased{options}"));
    let exact = rule("exact", "consistency: exact");
    let rules =
        format!("domain: d\nmetadata: {{tollgate: {{{domain}}}}}\ndescriptors:\n{leased}{exact}");
    let mut service = Service::with_rules(&network(), single(), &rules);
    service.start().await;
    assert_eq!(service.ask("key", "start").await.verdict, Verdict::Ok);
    service
}

fn hits(service: &Service, event: &str) -> u64 {
    service.metric(&format!(
        "tollgate_rule_lease_hits_total{{domain=\"d\",key1=\"key\",event=\"{event}\"}}"
    ))
}

/// Whether nothing is held, and what was taken is accounted for.
fn assert_nothing_is_held(service: &Service, what: &str) {
    assert_eq!(service.metric("tollgate_leased_hits"), 0, "{what}");
    assert_eq!(service.metric("tollgate_leases"), 0, "{what}");
    let [taken, used, given_back, stranded] =
        ["taken", "used", "given_back", "stranded"].map(|event| hits(service, event));
    assert!(used > 0, "{what}: no lease was used");
    assert_eq!(taken, used + given_back + stranded, "{what}");
}

#[tokio::test(start_paused = true)]
async fn no_call_waits_at_even_demand() {
    const WARM_UP: Duration = Duration::from_secs(2);
    let service = service("unit: minute, requests_per_unit: 12000", "").await;
    service.server.fail(Fault::Delay(millis(50)));
    let began = Instant::now();
    let mut calls = JoinSet::new();
    let mut interval = tokio::time::interval(Duration::from_micros(6_667));
    // Three windows begin in this time.
    while began.elapsed() < Duration::from_secs(180) {
        interval.tick().await;
        let limiter = service.limiter.clone();
        let at = began.elapsed();
        calls.spawn(async move { (at, ask(&limiter, "key", "v", None).await) });
    }
    let called = calls.join_all().await;
    let waits: Vec<_> =
        called.iter().filter(|(at, called)| *at >= WARM_UP && *called != Called::OK).collect();
    assert!(
        waits.is_empty(),
        "{} of {} waited: {:?}",
        waits.len(),
        called.len(),
        &waits[..waits.len().min(5)]
    );
    service.server.recover();
    pass(LIFETIME + SWEEP_INTERVAL).await;
    assert_nothing_is_held(&service, "at the end");
}

/// How a load went.
#[derive(Default)]
struct Load {
    admitted: i64,
    /// Hits of calls without a verdict, which may have been counted.
    unknown: i64,
}

impl Load {
    fn add(&mut self, called: &Called, hits: u32) {
        let hits = i64::from(hits);
        match called.verdict {
            Verdict::Ok => self.admitted += hits,
            Verdict::OverLimit => {}
            Verdict::Error(_) => self.unknown += hits,
        }
    }

    /// Law G: what was charged was admitted, may have been, or is stranded.
    fn assert_charged(&self, service: &Service, what: &str) {
        let charged = service.server.hits(KEY);
        let stranded = i64::try_from(hits(service, "stranded")).expect("few");
        let most = self.admitted + self.unknown + stranded;
        assert!(
            (self.admitted..=most).contains(&charged),
            "{what}: {charged} of {} to {most}",
            self.admitted
        );
    }
}

/// Hits are taken and used again, so none are in flight forever.
async fn assert_leases_go_on(service: &Service, what: &str) {
    let used = hits(service, "used");
    for _ in 0..3 * CALLS {
        assert_eq!(service.ask("key", "v").await.verdict, Verdict::Ok, "{what}");
        pass(millis(2)).await;
    }
    assert!(hits(service, "used") > used, "{what}");
}

/// Steps of a load: in one run of it for each step, what is sent first in that step is lost.
const STEPS: usize = 12;

/// Calls, for some time none, and calls again. The first batches after the beginning of step `lost`
/// have a fault.
async fn run(service: &Service, lost: usize, batches: u32, fault: Fault) -> Load {
    let mut load = Load::default();
    for step in 0..STEPS {
        if step == lost {
            service.server.fail_next(batches, fault);
        }
        // Hits are given back in the middle.
        if (STEPS / 2..STEPS / 2 + 3).contains(&step) {
            pass(LIFETIME / 2 + SWEEP_INTERVAL).await;
            continue;
        }
        let mut calls = JoinSet::new();
        let mut call = |hits| {
            let limiter = service.limiter.clone();
            let request = hits_on(&["key"], hits);
            calls.spawn(async move { (hits, decide(&limiter, &request, None).await) });
        };
        if step % 2 == 0 {
            // Those behind the first one are sent together, with a take.
            (0..3).for_each(|_| call(20));
        }
        for _ in 0..CALLS {
            pass(millis(2)).await;
            call(1);
        }
        for (hits, called) in calls.join_all().await {
            load.add(&called, hits);
        }
    }
    service.server.recover();
    load
}

#[tokio::test(start_paused = true)]
async fn lost_replies_lose_no_hits() {
    const HOUR: &str = "unit: hour, requests_per_unit: 100000";
    // A window begins 40 s after the start.
    const MINUTE: &str = "unit: minute, requests_per_unit: 100000";
    // How many runs lost a take alone, a take and a call, and a give-back.
    let mut takes = 0;
    let mut calls = 0;
    let mut give_backs = 0;
    for (limit, options, wait) in [
        (HOUR, "", 0),
        (MINUTE, "", 39_850),
        (MINUTE, "", 38_000),
        (HOUR, ", algorithm: sliding_window", 0),
        (HOUR, ", algorithm: token_bucket", 0),
    ] {
        // Redis has not run what is lost, or has.
        for fault in [Fault::CloseBeforeRunning, Fault::CloseInReply, Fault::NoReply] {
            for (lost, batches) in (0..STEPS).flat_map(|lost| [(lost, 1), (lost, 2)]) {
                let what = format!("{limit}{options}, {wait} ms, {fault:?}, {batches} at {lost}");
                let service = service(limit, options).await;
                pass(millis(wait)).await;
                let load = run(&service, lost, batches, fault).await;
                // Takes and give-backs end, and so does an open breaker.
                pass(2 * LIFETIME).await;
                assert_nothing_is_held(&service, &what);
                if !options.contains("algorithm") {
                    load.assert_charged(&service, &what);
                }
                let failed = service.metric("tollgate_lease_takes_total{outcome=\"failed\"}");
                let unknown =
                    service.metric("tollgate_lease_stranded_hits_total{cause=\"unknown\"}");
                let is_lost = (failed > 0, load.unknown > 0, unknown > 0);
                takes += u32::from(matches!(is_lost, (true, false, _)));
                calls += u32::from(matches!(is_lost, (true, true, _)));
                give_backs += u32::from(matches!(is_lost, (false, _, true)));
                assert_leases_go_on(&service, &what).await;
            }
        }
    }
    let lost = [takes, calls, give_backs];
    assert!(lost.iter().all(|runs| *runs > 0), "{lost:?}");
}

/// So many hits on each of these keys.
fn hits_on(keys: &[&str], hits: u32) -> RateLimitRequest {
    let descriptors = keys.iter().map(|&key| descriptor(&[(key, "v")]));
    RateLimitRequest { domain: "d".into(), descriptors: descriptors.collect(), hits_addend: hits }
}

#[tokio::test(start_paused = true)]
async fn store_decides_only_the_hits_that_are_not_held() {
    let service = service("unit: hour, requests_per_unit: 60", "").await;
    let held = || service.metric("tollgate_leased_hits");
    for _ in 0..30 {
        service.ask("key", "v").await;
        pass(millis(1)).await;
        if held() == 3 {
            break;
        }
    }
    assert_eq!(held(), 3);
    let [used, taken] = ["used", "taken"].map(|event| hits(&service, event));
    let charged = service.server.hits(KEY);
    let called = decide(&service.limiter, &hits_on(&["key"], 5), None).await;
    settle().await;
    assert_eq!(called.verdict, Verdict::Ok);
    assert_eq!(hits(&service, "used") - used, 3);
    let more = i64::try_from(hits(&service, "taken") - taken).expect("few");
    assert_eq!(service.server.hits(KEY) - charged, 2 + more);
}

#[tokio::test(start_paused = true)]
async fn callers_that_are_gone_lose_no_hits() {
    const ROUND_TRIP: Duration = millis(10);
    for (domain, keys) in [("", &["key"][..]), ("all_or_nothing: true", &["key", "exact"])] {
        let mut gone_in_time = 0;
        // Before the call is sent, while it is in flight, and after its reply.
        for gone_after in (0..=30).step_by(2) {
            let what = format!("{keys:?}, gone after {gone_after} ms");
            let service = service_of(domain, "unit: hour, requests_per_unit: 3000", "").await;
            let mut load = Load::default();
            for _ in 0..3 * CALLS {
                load.add(&service.ask("key", "v").await, 1);
                pass(millis(2)).await;
            }
            let warm_up = load.admitted;
            service.server.fail(Fault::Delay(ROUND_TRIP));
            let mut calls = JoinSet::new();
            let five = || {
                let limiter = service.limiter.clone();
                async move { decide(&limiter, &hits_on(keys, 5), None).await }
            };
            // The second of them waits until the first is answered, unless a lease has its hits.
            let gone: Vec<_> = (0..12).map(|_| calls.spawn(five())).collect();
            pass(millis(gone_after)).await;
            gone.iter().skip(1).step_by(2).for_each(AbortHandle::abort);
            while let Some(called) = calls.join_next().await {
                match called {
                    Ok(called) => load.add(&called, 5),
                    Err(_) => load.unknown += 5,
                }
            }
            gone_in_time += load.unknown;
            service.server.recover();
            pass(LIFETIME + SWEEP_INTERVAL).await;
            assert_nothing_is_held(&service, &what);
            load.assert_charged(&service, &what);
            // What a request had reserved is used, since Redis may have charged its other checks.
            let [leased, exact] = [KEY, EXACT_KEY].map(|key| service.server.hits(key));
            assert_eq!(exact > 0, keys.len() > 1, "{what}");
            assert!(leased >= exact + warm_up, "{what}: {leased} and {exact}");
            assert_leases_go_on(&service, &what).await;
        }
        assert!(gone_in_time > 0, "no caller was gone in time");
    }
}

#[tokio::test(start_paused = true)]
async fn all_or_nothing_requests_use_held_hits() {
    let service =
        service_of("all_or_nothing: true", "unit: hour, requests_per_unit: 100000", "").await;
    let both = || {
        let mut both = hits_on(&["key", "key"], 1);
        both.descriptors[1] = descriptor(&[("key", "w")]);
        both
    };
    let batches = || service.metric("tollgate_store_batch_checks_count");
    let mut admitted = 0;
    let mut before = 0;
    for call in 0..400 {
        if call == 200 {
            before = batches();
        }
        let called = decide(&service.limiter, &both(), None).await;
        admitted += i64::from(called.verdict == Verdict::Ok);
        pass(millis(2)).await;
    }
    // Takes of both counters.
    let asked = batches() - before;
    assert!(asked <= 10, "{asked} batches for 200 calls");
    pass(LIFETIME + SWEEP_INTERVAL).await;
    assert_nothing_is_held(&service, "at the end");
    let hits = ["d_key_v_", "d_key_w_"].map(|key| service.server.hits(key));
    assert_eq!(hits, [admitted; 2]);
}

/// When a hold ends, the first check of a key asks, and the second one is over limit meanwhile.
/// Both are over limit, as without leases.
#[tokio::test(start_paused = true)]
async fn key_twice_in_an_all_or_nothing_request_is_over_limit_twice() {
    let limit = "unit: hour, requests_per_unit: 60";
    let service = service_of("all_or_nothing: true", limit, "").await;
    let twice = hits_on(&["key", "key"], 1);
    let mut verdicts = Vec::new();
    for _ in 0..60 {
        verdicts.push(decide(&service.limiter, &twice, None).await.verdict);
        pass(millis(100)).await;
    }
    let (admitted, rejected) = verdicts.split_at(30);
    assert_eq!(*admitted, [Verdict::Ok; 30]);
    assert_eq!(*rejected, [Verdict::OverLimit; 30]);
    let over = service.metric(r#"ratelimit_service_rate_limit_over_limit{domain="d",key1="key"}"#);
    assert_eq!(over, 2 * 30);
    assert!(service.metric("tollgate_lease_held_answers_total") > 0);
}
