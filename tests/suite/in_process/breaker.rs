//! A server that fails three times in a row is not asked until a probe succeeds. Until then calls
//! cost no time, and no call is a probe.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tollgate::check::{Check, Hits, Key, StoreError};
use tollgate::limit::{Algorithm, Limit, Terms, Unit};
use tollgate::time::Clock;

use crate::support::in_process::{
    ADDRESS, Called, GRPC_TIMEOUT, START, STORE_TIMEOUT, Service, Verdict, WITHIN, millis, pass,
    settle, single,
};
use crate::support::scripted_redis::{Fault, Network, ScriptedRedis};

const PROBE_INTERVAL: Duration = millis(200);
/// From when Redis answers until it is asked again.
const RECOVERY_MAX: Duration = Duration::from_secs(1);
const LOADING: &str = "LOADING Redis is loading the dataset in memory";
const UNREACHABLE: Verdict = Verdict::Error(StoreError::Unreachable);
const LATE: Verdict = Verdict::Error(StoreError::TimedOut);

/// Every fault that opens the breaker.
const FAULTS: [Fault; 7] = [
    Fault::RefuseConnections,
    Fault::Unreachable,
    Fault::Stopped,
    Fault::NoReply,
    Fault::HalfReply,
    Fault::CloseInReply,
    Fault::CloseBeforeRunning,
];

struct World {
    server: Arc<ScriptedRedis>,
    service: Service,
}

async fn world() -> World {
    let clock = Clock::starting_at(START);
    let network = Network::new(clock.clone());
    let server = network.server(ADDRESS);
    World {
        server,
        service: Service::started(&network, clock).await,
    }
}

impl World {
    fn is_open(&self) -> bool {
        self.service.metric("tollgate_store_breaker_open") == 1
    }

    fn openings(&self) -> u64 {
        self.service.metric("tollgate_store_breaker_opened_total")
    }

    async fn ask(&self, value: &str) -> Called {
        self.service.ask("error", value).await
    }
}

#[tokio::test(start_paused = true)]
async fn the_third_failure_in_a_row_opens_it() {
    let world = world().await;
    world.server.fail_next(2, Fault::CloseBeforeRunning);
    for (call, verdict) in [UNREACHABLE, UNREACHABLE, Verdict::Ok]
        .into_iter()
        .enumerate()
    {
        assert_eq!(
            world.ask(&format!("first {call}")).await.verdict,
            verdict,
            "call {call}"
        );
    }
    world.server.fail(Fault::CloseBeforeRunning);
    for (call, is_open) in [false, false, true].into_iter().enumerate() {
        assert_eq!(
            world.ask(&format!("then {call}")).await.verdict,
            UNREACHABLE
        );
        assert_eq!(world.is_open(), is_open, "call {call}");
    }
    assert_eq!(world.openings(), 1);
}

#[tokio::test(start_paused = true)]
async fn replies_that_never_come_are_failures_after_store_timeout() {
    let world = world().await;
    world.server.fail(Fault::NoReply);
    for is_open in [false, false, true] {
        assert_eq!(
            world.ask("v").await,
            Called {
                verdict: LATE,
                took: STORE_TIMEOUT
            }
        );
        settle().await;
        assert_eq!(world.is_open(), is_open);
    }
}

#[tokio::test(start_paused = true)]
async fn while_it_is_open_calls_take_no_time_and_never_reach_redis() {
    let world = world().await;
    world.server.fail(Fault::RefuseConnections);
    for _ in 0..3 {
        world.ask("v").await;
    }
    assert!(world.is_open());
    // Probes connect, and see that Redis is not ready.
    world.server.fail(Fault::Error(LOADING));
    world.server.forget_received();
    let began = Instant::now();
    for call in 0..1_000 {
        assert_eq!(
            world.ask(&format!("v{call}")).await,
            Called {
                verdict: UNREACHABLE,
                took: Duration::ZERO
            }
        );
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(world.server.received("PING"), 0, "no call is a probe");
    pass(millis(60_000)).await;
    let probes = world.server.received_at("PING");
    let pauses: Vec<Duration> = probes
        .windows(2)
        .map(|pair| pair[1].since(pair[0]).into())
        .collect();
    assert!(
        pauses
            .iter()
            .all(|pause| (PROBE_INTERVAL * 3 / 4..=RECOVERY_MAX).contains(pause)),
        "{pauses:?}"
    );
    assert!(
        pauses
            .iter()
            .skip(4)
            .all(|pause| *pause >= RECOVERY_MAX * 3 / 4),
        "they grow: {pauses:?}"
    );
    assert!((60..=90).contains(&probes.len()), "{} probes", probes.len());
    assert_eq!(
        (
            world.server.received("EVALSHA"),
            world.server.received("INCRBY")
        ),
        (0, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn one_successful_probe_closes_it() {
    let world = world().await;
    world.server.fail(Fault::RefuseConnections);
    for _ in 0..3 {
        world.ask("v").await;
    }
    pass(millis(700)).await;
    world.server.recover();
    world.server.forget_received();
    let recovery = world.service.recovery().await;
    assert!(recovery <= RECOVERY_MAX, "{recovery:?}");
    assert_eq!(
        (
            world.server.received("PING"),
            world.is_open(),
            world.openings()
        ),
        (1, false, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn redis_is_asked_again_within_a_second_of_any_fault() {
    for fault in FAULTS {
        // Wherever between two probes, and between two tries of TCP to connect, the fault ends.
        for away in [500, 660, 1_240, 1_950, 3_100, 6_990] {
            let world = world().await;
            world.server.fail(fault);
            let traffic = world.service.traffic();
            pass(millis(away)).await;
            assert!(world.is_open(), "{fault:?}");
            world.server.recover();
            let recovery = world.service.recovery().await;
            assert!(
                recovery <= RECOVERY_MAX,
                "{fault:?} for {away} ms: {recovery:?}"
            );
            pass(RECOVERY_MAX).await;
            traffic.finish().await;
            assert_eq!(
                (world.openings(), world.is_open()),
                (1, false),
                "{fault:?} for {away} ms is one outage"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_redis_that_comes_late_is_asked_within_a_second() {
    for fault in FAULTS {
        let clock = Clock::starting_at(START);
        let network = Network::new(clock.clone());
        let server = network.server(ADDRESS);
        server.fail(fault);
        let mut service = Service::new(&network, single(), clock);
        service.start().await;
        pass(millis(3_300)).await;
        assert_eq!(
            service.ask("error", "v").await,
            Called {
                verdict: UNREACHABLE,
                took: Duration::ZERO
            },
            "{fault:?}"
        );
        server.recover();
        let recovery = service.recovery().await;
        assert!(recovery <= RECOVERY_MAX, "{fault:?}: {recovery:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn after_an_error_reply_ends_the_next_call_is_counted() {
    for error in [
        LOADING,
        "OOM command not allowed",
        "READONLY You can't write",
        "MASTERDOWN Link with MASTER is down",
        "NOAUTH",
    ] {
        let world = world().await;
        world.server.fail(Fault::Error(error));
        for call in 0..10 {
            assert_eq!(
                world.ask(&format!("{call}")).await.verdict,
                Verdict::Error(StoreError::Rejected),
                "{error}"
            );
        }
        world.server.recover();
        assert_eq!(
            world.ask("v").await,
            Called {
                verdict: Verdict::Ok,
                took: Duration::ZERO
            },
            "{error}"
        );
        assert_eq!(world.openings(), 0, "Redis answers: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_callers_deadline_is_no_failure_of_redis() {
    let world = world().await;
    let connections = world.server.opened();
    world.server.fail(Fault::Delay(millis(25)));
    for call in 0..50 {
        let called = world
            .service
            .ask_within("error", &format!("late {call}"), Some(GRPC_TIMEOUT))
            .await;
        assert_eq!(
            called,
            Called {
                verdict: LATE,
                took: WITHIN
            }
        );
        // The reply arrives.
        pass(millis(20)).await;
    }
    assert_eq!(
        (world.openings(), world.server.opened()),
        (0, connections),
        "the connection is kept"
    );
    assert_eq!(world.server.hits("d_error_late "), 50, "each was counted");
}

#[tokio::test(start_paused = true)]
async fn write_back_delays_the_first_call_by_no_more_than_three_tenths_of_a_second() {
    const OWED: u64 = 16_384;
    let world = world().await;
    world.server.fail(Fault::RefuseConnections);
    for _ in 0..3 {
        world.ask("v").await;
    }
    let limit = Limit::new(&Terms::new(10, Unit::Year, Algorithm::TokenBucket)).expect("a limit");
    for number in 0..OWED {
        let check = Check::new(Key::from(&*format!("owed {number}:")), limit, Hits::Add(3));
        world.service.redis.decide_locally(
            &[(&check, StoreError::Unreachable.not_counted())],
            false,
            world.service.clock.now(),
        );
    }
    // 256 calls of 64 counters, 10 ms each.
    world.server.fail(Fault::Delay(millis(10)));
    let (back, mut asked) = (world.service.clock.now(), None);
    while asked.is_none() {
        pass(millis(1)).await;
        asked = (!world.is_open()).then(|| world.service.clock.now().since(back));
    }
    // A probe needs two round trips and the first call of the write-back one more.
    let asked = Duration::from(asked.expect("it is asked"));
    assert!(
        (millis(300)..=RECOVERY_MAX + millis(300 + 60)).contains(&asked),
        "{asked:?}"
    );
    pass(Duration::from_secs(10)).await;
    assert_eq!(
        world.service.metric("tollgate_write_back_hits_total"),
        3 * OWED,
        "the rest while Redis serves"
    );
    assert_eq!(world.service.metric("tollgate_write_back_full_total"), 0);
}
