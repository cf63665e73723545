//! Leases: when calls wait for Redis, and what becomes of hits whose replies are lost or whose
//! callers are gone.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::support::in_process::{Called, Service, Verdict, ask, millis, network, pass, single};
use crate::support::scripted_redis::Fault;

/// The lifetime of leases of a limit of a minute, by default.
const LIFETIME: Duration = Duration::from_secs(2);
/// How much later hits are given back: they are looked for in intervals.
const SWEEP_INTERVAL: Duration = millis(100);
/// What counts on one key of the rule.
const KEY: &str = "d_key_v_";
/// Calls of one step of a load.
const CALLS: usize = 10;

/// A service with one leased rule, which has seen that Redis counts, and whose clock is known.
async fn service(limit: &str, options: &str) -> Service {
    let rules = format!(
        "domain: d\ndescriptors:\n  - key: key\n    rate_limit: {{{limit}}}\n    metadata: {{tollgate: {{consistency: leased, on_store_error: error{options}}}}}\n"
    );
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
    let (began, mut calls) = (Instant::now(), JoinSet::new());
    let mut interval = tokio::time::interval(Duration::from_micros(6_667));
    // Three windows begin in this time.
    while began.elapsed() < Duration::from_secs(180) {
        interval.tick().await;
        let limiter = service.limiter.clone();
        let at = began.elapsed();
        calls.spawn(async move { (at, ask(&limiter, "key", "v", None).await) });
    }
    let called = calls.join_all().await;
    let waits: Vec<_> = called
        .iter()
        .filter(|(at, called)| *at >= WARM_UP && *called != Called::OK)
        .collect();
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

#[tokio::test(start_paused = true)]
async fn unused_hits_are_given_back_after_their_lifetime() {
    let service = service("unit: hour, requests_per_unit: 100000", "").await;
    let mut admitted = 0;
    for _ in 0..1_000 {
        admitted += i64::from(service.ask("key", "v").await == Called::OK);
        tokio::time::advance(millis(1)).await;
    }
    assert!(service.server.hits(KEY) > admitted, "some are held");
    pass(LIFETIME + SWEEP_INTERVAL).await;
    assert_eq!(service.server.hits(KEY), admitted);
    assert_nothing_is_held(&service, "after their lifetime");
}

/// How a load went.
#[derive(Default)]
struct Load {
    admitted: i64,
    /// Calls without a verdict, whose hits may have been counted.
    unknown: i64,
}

/// Steps of a load: what a step begins with is lost in one run of it.
const STEPS: usize = 24;

/// Calls, for some time none, and calls again. One fault hits the first batch after the beginning
/// of step `lost`.
async fn run(service: &Service, lost: usize, fault: Fault) -> Load {
    let mut load = Load::default();
    for step in 0..STEPS {
        if step == lost {
            service.server.fail_next(1, fault);
        }
        // Hits are given back in the middle.
        if (STEPS / 2..STEPS / 2 + 3).contains(&step) {
            pass(LIFETIME / 2 + SWEEP_INTERVAL).await;
            continue;
        }
        let mut calls = JoinSet::new();
        for _ in 0..CALLS {
            let limiter = service.limiter.clone();
            calls.spawn(async move { ask(&limiter, "key", "v", None).await });
            pass(millis(2)).await;
        }
        for called in calls.join_all().await {
            match called.verdict {
                Verdict::Ok => load.admitted += 1,
                Verdict::OverLimit => {}
                Verdict::Error(_) => load.unknown += 1,
            }
        }
    }
    service.server.recover();
    load
}

#[tokio::test(start_paused = true)]
async fn lost_replies_lose_no_hits() {
    let faults = [
        // Redis has not run what is lost.
        Fault::CloseBeforeRunning,
        // Redis has run it.
        Fault::CloseInReply,
        Fault::NoReply,
    ];
    for algorithm in ["fixed_window", "sliding_window", "token_bucket"] {
        let (mut failed_takes, mut unknown) = (0, 0);
        for (fault, lost) in faults
            .into_iter()
            .flat_map(|fault| (0..STEPS).map(move |lost| (fault, lost)))
        {
            let what = format!("{algorithm}, {fault:?}, {lost}");
            let service = service(
                "unit: hour, requests_per_unit: 100000",
                &format!(", algorithm: {algorithm}"),
            )
            .await;
            let load = run(&service, lost, fault).await;
            let used = hits(&service, "used");
            // Takes and give-backs end, and so does an open breaker.
            pass(2 * LIFETIME).await;
            assert_nothing_is_held(&service, &what);
            failed_takes += service.metric("tollgate_lease_takes_total{outcome=\"failed\"}");
            unknown += service.metric("tollgate_lease_stranded_hits_total{cause=\"unknown\"}");
            if algorithm == "fixed_window" {
                let charged = service.server.hits(KEY);
                let most = load.admitted
                    + load.unknown
                    + i64::try_from(hits(&service, "stranded")).expect("few");
                assert!(
                    (load.admitted..=most).contains(&charged),
                    "{what}: {charged} of {} to {most}",
                    load.admitted
                );
            }
            // Nothing is in flight for ever: hits are taken again.
            for _ in 0..3 * CALLS {
                assert_eq!(service.ask("key", "v").await.verdict, Verdict::Ok, "{what}");
                pass(millis(2)).await;
            }
            assert!(hits(&service, "used") > used, "{what}");
        }
        assert!(failed_takes > 0 && unknown > 0, "{algorithm}");
    }
}
