//! A server that fails three times in a row is not asked until a probe succeeds. Until then calls
//! cost no time, and no call is a probe.

use std::time::Duration;

use tokio::time::Instant;
use tollgate::limits::check::{Check, Hits, Key, StoreError};
use tollgate::limits::{Algorithm, Limit, Terms, Unit};

use crate::support::in_process::{
    Called, GRPC_TIMEOUT, LIMIT, RECOVERY_MAX, Service, Verdict, WITHIN, called, millis, network,
    pass, single,
};
use crate::support::scripted_redis::{Fault, LOADING, MASTER_DOWN, OOM, READ_ONLY};

const PROBE_INTERVAL: Duration = millis(200);
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

/// A service whose breaker is open.
async fn broken() -> Service {
    let service = Service::started().await;
    service.server.fail(Fault::RefuseConnections);
    for _ in 0..3 {
        service.ask("error", "v").await;
    }
    assert!(service.is_open());
    service
}

#[tokio::test(start_paused = true)]
async fn the_third_failure_in_a_row_opens_it() {
    let service = Service::started().await;
    service.server.fail_next(2, Fault::CloseBeforeRunning);
    for (call, verdict) in [UNREACHABLE, UNREACHABLE, Verdict::Ok].into_iter().enumerate() {
        assert_eq!(
            service.ask("error", &format!("first {call}")).await.verdict,
            verdict,
            "call {call}"
        );
    }
    service.server.fail(Fault::CloseBeforeRunning);
    for (call, is_open) in [false, false, true].into_iter().enumerate() {
        assert_eq!(service.ask("error", &format!("then {call}")).await.verdict, UNREACHABLE);
        assert_eq!(service.is_open(), is_open, "call {call}");
    }
    assert_eq!(service.openings(), 1);
}

#[tokio::test(start_paused = true)]
async fn while_it_is_open_calls_take_no_time_and_never_reach_redis() {
    let service = broken().await;
    // Probes connect, and see that Redis is not ready.
    service.server.fail(Fault::Error(LOADING));
    service.server.forget_received();
    let began = Instant::now();
    for call in 0..1_000 {
        assert_eq!(
            service.ask("error", &format!("v{call}")).await,
            called(UNREACHABLE, Duration::ZERO)
        );
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(service.server.received("PING"), 0, "no call is a probe");
    pass(millis(60_000)).await;
    // Each also opens a connection with a PING, at the same time.
    let mut probes = service.server.received_at("PING");
    probes.dedup();
    let pauses: Vec<Duration> =
        probes.windows(2).map(|pair| pair[1].since(pair[0]).into()).collect();
    assert!(
        pauses.iter().all(|pause| (PROBE_INTERVAL * 3 / 4..=RECOVERY_MAX).contains(pause)),
        "{pauses:?}"
    );
    assert!(
        pauses.iter().skip(4).all(|pause| *pause >= RECOVERY_MAX * 3 / 4),
        "they grow: {pauses:?}"
    );
    assert!((60..=90).contains(&probes.len()), "{} probes", probes.len());
    assert_eq!((service.server.received("EVALSHA"), service.server.received("INCR")), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn one_successful_probe_closes_it() {
    let service = broken().await;
    pass(millis(700)).await;
    service.server.recover();
    service.server.forget_received();
    let began = Instant::now();
    // Not by calls, which read the time as well.
    while service.is_open() && began.elapsed() <= RECOVERY_MAX {
        pass(millis(1)).await;
    }
    assert_eq!(
        (service.server.received("TIME"), service.is_open(), service.openings()),
        (1, false, 1)
    );
    assert_eq!(service.ask("error", "v").await.verdict, Verdict::Ok);
}

#[tokio::test(start_paused = true)]
async fn redis_is_asked_again_within_a_second_of_any_fault() {
    for fault in FAULTS {
        // Wherever between two probes, and between two tries of TCP to connect, the fault ends.
        for away in [500, 660, 1_240, 1_950, 3_100, 6_990] {
            let service = Service::started().await;
            service.server.fail(fault);
            let traffic = service.traffic();
            pass(millis(away)).await;
            assert!(service.is_open(), "{fault:?}");
            service.server.recover();
            let recovery = service.recovery().await;
            assert!(recovery <= RECOVERY_MAX, "{fault:?} for {away} ms: {recovery:?}");
            pass(RECOVERY_MAX).await;
            traffic.finish().await;
            assert_eq!(
                (service.openings(), service.is_open()),
                (1, false),
                "{fault:?} for {away} ms is one outage"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_redis_that_comes_late_is_asked_within_a_second() {
    for fault in FAULTS {
        let mut service = Service::new(&network(), single());
        service.server.fail(fault);
        service.start().await;
        pass(millis(3_300)).await;
        assert_eq!(
            service.ask("error", "v").await,
            called(UNREACHABLE, Duration::ZERO),
            "{fault:?}"
        );
        for _ in 0..LIMIT {
            assert_eq!(service.ask("local", "v").await, Called::OK, "{fault:?}");
        }
        service.server.recover();
        let recovery = service.recovery().await;
        assert!(recovery <= RECOVERY_MAX, "{fault:?}: {recovery:?}");
        // Redis knows what was admitted without it.
        let after = service.ask("local", "v").await.verdict;
        assert_eq!(after, Verdict::OverLimit, "{fault:?}");
        assert_eq!(service.server.hits("d_local_v_").unsigned_abs(), LIMIT + 1, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn after_an_error_reply_ends_the_next_call_is_counted() {
    for error in [LOADING, OOM, READ_ONLY, MASTER_DOWN, "NOAUTH"] {
        let service = Service::started().await;
        service.server.fail(Fault::Error(error));
        for call in 0..10 {
            assert_eq!(
                service.ask("error", &format!("{call}")).await.verdict,
                Verdict::Error(StoreError::Rejected),
                "{error}"
            );
        }
        service.server.recover();
        assert_eq!(service.ask("error", "v").await, Called::OK, "{error}");
        assert_eq!(service.openings(), 0, "Redis answers: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_callers_deadline_is_no_failure_of_redis() {
    let service = Service::started().await;
    let connections = service.server.opened();
    service.server.fail(Fault::Delay(millis(25)));
    for call in 0..50 {
        let answer = service.ask_within("error", &format!("late {call}"), Some(GRPC_TIMEOUT)).await;
        assert_eq!(answer, called(LATE, WITHIN));
        // The reply arrives.
        pass(millis(20)).await;
    }
    assert_eq!(
        (service.openings(), service.server.opened()),
        (0, connections),
        "the connection is kept"
    );
    assert_eq!(service.server.hits("d_error_late "), 50, "each was counted");
}

#[tokio::test(start_paused = true)]
async fn write_back_delays_the_first_call_by_no_more_than_three_tenths_of_a_second() {
    const OWED: u64 = 16_384;
    let service = broken().await;
    let limit = Limit::new(&Terms::new(10, Unit::Year, Algorithm::TokenBucket)).expect("a limit");
    for number in 0..OWED {
        let check = Check::new(Key::from(&*format!("owed {number}:")), limit, Hits::Add(3));
        service.redis.decide_locally(
            &[(&check, StoreError::Unreachable.not_counted())],
            service.clock.now(),
        );
    }
    // 256 calls of 64 counters, 10 ms each.
    service.server.fail(Fault::Delay(millis(10)));
    let back = service.clock.now();
    let mut asked = None;
    while asked.is_none() {
        pass(millis(1)).await;
        asked = (!service.is_open()).then(|| service.clock.now().since(back));
    }
    // A probe needs two round trips and the first call of the write-back one more.
    let asked = Duration::from(asked.expect("it is asked"));
    assert!((millis(300)..=RECOVERY_MAX + millis(300 + 60)).contains(&asked), "{asked:?}");
    pass(Duration::from_secs(10)).await;
    assert_eq!(
        service.metric("tollgate_write_back_hits_total"),
        3 * OWED,
        "the rest while Redis serves"
    );
    assert_eq!(service.metric("tollgate_write_back_full_total"), 0);
}
