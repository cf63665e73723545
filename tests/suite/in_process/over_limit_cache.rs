//! The over-limit cache and refunds: by the same process, by another one, under another limit.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tollgate::base::time::Clock;
use tollgate::limits::check::{Check, Hits, Key};
use tollgate::limits::{Algorithm, Limit, OverLimitHits, Terms, Unit};
use tollgate::store::redis::over_limit_cache::AGE_MAX;
use tollgate::store::redis::{Redis, RedisClient};
use tollgate::telemetry::metric::Metrics;

use crate::support::in_process::{ADDRESS, millis, network, pass, redis, settle, single};
use crate::support::remote::request_of;
use crate::support::scripted_redis::{Fault, ScriptedRedis};

/// For a few thousand counters.
const CACHE_BYTES: u64 = 100_000;

fn limit(requests: u32) -> Limit {
    Limit::new(&Terms::new(requests.into(), Unit::Year, Algorithm::FixedWindow)).expect("a limit")
}

/// Whether hits on the only counter are over their limit.
async fn is_over(remote: &RedisClient, clock: &Clock, requests: u32, hits: Hits) -> bool {
    let request = request_of([Check::new(Key::from("k"), limit(requests), hits)]);
    let decisions = remote.decide(&request, clock.now(), None).await;
    decisions[0].as_ref().expect("a verdict").over
}

/// Processes with one worker each, on one Redis.
fn processes<const N: usize>() -> ([Arc<Redis>; N], Arc<ScriptedRedis>, Clock) {
    let network = network();
    let server = network.server(ADDRESS);
    let processes =
        std::array::from_fn(|_| redis(&network, single(), &Metrics::new(), CACHE_BYTES));
    (processes, server, network.clock)
}

/// A worker of each process, connected.
async fn workers<const N: usize>(processes: &[Arc<Redis>; N]) -> [RedisClient; N] {
    let workers = processes.each_ref().map(tollgate::store::redis::Redis::open);
    settle().await;
    workers
}

#[tokio::test(start_paused = true)]
async fn replies_overtaken_by_a_refund_are_not_cached() {
    let ([process], server, clock) = processes();
    let [one, other] = workers(&[process.clone(), process]).await;
    assert!(!is_over(&one, &clock, 1, Hits::Add(1)).await);
    assert!(!is_over(&other, &clock, 9, Hits::Peek).await, "it is connected");
    server.fail_next(1, Fault::Delay(millis(50)));
    let mut tasks = JoinSet::new();
    let late = one.clone();
    let now = clock.clone();
    tasks.spawn(async move { is_over(&late, &now, 1, Hits::Add(1)).await });
    settle().await;
    is_over(&other, &clock, 1, Hits::Refund(2)).await;
    assert!(
        tasks.join_next().await.expect("one").expect("a result"),
        "Redis decided before the refund"
    );
    assert!(!is_over(&one, &clock, 1, Hits::Add(1)).await, "the refund made room");
}

#[tokio::test(start_paused = true)]
async fn refunds_by_other_processes_apply_within_a_second() {
    let (processes, server, clock) = processes();
    let [one, other] = workers(&processes).await;
    assert!(!is_over(&one, &clock, 1, Hits::Add(1)).await);
    assert!(is_over(&one, &clock, 1, Hits::Add(1)).await);
    is_over(&other, &clock, 1, Hits::Refund(2)).await;
    pass(Duration::from(AGE_MAX)).await;
    assert!(!is_over(&one, &clock, 1, Hits::Add(1)).await, "the refund made room");

    assert!(is_over(&one, &clock, 1, Hits::Add(1)).await);
    let asked = server.decided();
    for _ in 0..5 {
        for _ in 0..100 {
            assert!(is_over(&one, &clock, 1, Hits::Add(1)).await);
        }
        pass(Duration::from(AGE_MAX)).await;
    }
    assert_eq!(server.decided() - asked, 4, "Redis is asked once a second");
}

#[tokio::test(start_paused = true)]
async fn verdicts_are_of_their_limit_and_no_peek_and_refunds_apply_under_every_limit() {
    let (processes, server, clock) = processes();
    let [one] = workers(&processes).await;
    assert!(!is_over(&one, &clock, 1, Hits::Add(1)).await);
    assert!(is_over(&one, &clock, 1, Hits::Add(1)).await);
    for (requests, hits, over, asked) in
        [(1, Hits::Add(1), true, 0), (1, Hits::Peek, true, 1), (5, Hits::Add(1), false, 1)]
    {
        let before = server.decided();
        assert_eq!(is_over(&one, &clock, requests, hits).await, over, "{requests} {hits:?}");
        assert_eq!(server.decided() - before, asked, "{requests} {hits:?}");
    }
    is_over(&one, &clock, 5, Hits::Refund(3)).await;
    assert!(!is_over(&one, &clock, 1, Hits::Add(1)).await, "the refund made room");
}

#[tokio::test(start_paused = true)]
async fn chain_that_is_over_limit_is_admitted_in_the_next_period() {
    let ([process], server, clock) = processes();
    let [worker] = workers(&[process]).await;
    let check = |key: &str, requests: u32, unit| {
        let terms = Terms {
            over_limit_hits: Some(OverLimitHits::Drop),
            ..Terms::new(requests.into(), unit, Algorithm::FixedWindow)
        };
        let limit = Limit::new(&terms).expect("a limit");
        let mut check = Check::new(Key::from(key), limit, Hits::Add(1));
        check.group = 1;
        check
    };
    let request = request_of([check("m", 1, Unit::Minute), check("y", 9, Unit::Year)]);
    let over = async || {
        let decisions = worker.decide(&request, clock.now(), None).await;
        let over = decisions.iter().map(|decision| decision.expect("a verdict").over);
        over.collect::<Vec<_>>()
    };
    assert_eq!(over().await, [false, false]);
    assert_eq!(over().await, [true, false]);
    let asked = server.decided();
    assert_eq!(over().await, [true, false]);
    assert_eq!(server.decided() - asked, 1, "only of the other limit");
    pass(Duration::from_secs(60)).await;
    assert_eq!(over().await, [false, false]);
}
