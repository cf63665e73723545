//! A fault of Redis is logged once when it begins and once when it is over, whatever happens in
//! between.

use std::time::Duration;

use crate::support::fault_log::{ERROR_REPLIES, FOREIGN, SLOW, UNREACHABLE, is_end};
use crate::support::in_process::{GRPC_TIMEOUT, Log, Service, Verdict, millis, pass};
use crate::support::scripted_redis::{Fault, LOADING, MASTER_DOWN, OOM, READ_ONLY, ScriptedRedis};

/// After this the end of any fault is logged.
const TRAIL: Duration = Duration::from_secs(3);

/// Plays a fault under traffic, and what follows it.
async fn under_traffic(fault: impl AsyncFn(&ScriptedRedis)) -> (Log, Service) {
    let log = Log::capture();
    let service = Service::started().await;
    let traffic = service.traffic();
    pass(millis(500)).await;
    fault(&service.server).await;
    service.server.recover();
    pass(TRAIL).await;
    traffic.finish().await;
    (log, service)
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_logged_once_however_long_it_is() {
    for fault in [
        Fault::RefuseConnections,
        Fault::Stopped,
        Fault::NoReply,
        Fault::HalfReply,
        Fault::CloseInReply,
        Fault::Unreachable,
    ] {
        for away in [millis(1_000), millis(10_000)] {
            let (log, service) = under_traffic(async |server| {
                server.fail(fault);
                pass(away).await;
            })
            .await;
            println!("{fault:?} for {away:?}");
            log.assert_logged_once(UNREACHABLE, true);
            assert_eq!(service.openings(), 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_logged_when_the_breaker_opens_and_over_a_second_after_the_last_failure() {
    let log = Log::capture();
    let service = Service::started().await;
    service.server.fail(Fault::RefuseConnections);
    for call in 0..3 {
        pass(millis(200)).await;
        assert!(log.faults().is_empty(), "before call {call}");
        service.ask("error", "v").await;
    }
    pass(millis(200)).await;
    log.assert_logged_once(UNREACHABLE, false);
    pass(millis(60_000)).await;
    service.server.recover();
    service.recovery().await;
    log.assert_logged_once(UNREACHABLE, false);
    pass(millis(1_400)).await;
    log.assert_logged_once(UNREACHABLE, true);
}

#[tokio::test(start_paused = true)]
async fn connections_that_break_now_and_then_are_one_fault() {
    let (log, service) = under_traffic(async |server| {
        for _ in 0..10 {
            server.fail(Fault::CloseInReply);
            pass(millis(300)).await;
            server.recover();
            pass(millis(500)).await;
        }
    })
    .await;
    log.assert_logged_once(UNREACHABLE, true);
    assert_eq!(service.openings(), 10);
}

#[tokio::test(start_paused = true)]
async fn when_half_of_the_connections_break_the_other_half_serves() {
    let (log, service) = under_traffic(async |server| {
        for half in 0..50 {
            server.fail_half(half % 2, Fault::CloseInReply);
            pass(millis(100)).await;
        }
    })
    .await;
    assert_eq!(log.faults(), [""; 0]);
    assert_eq!(service.openings(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_is_cut_now_and_then_is_no_outage() {
    let (log, service) = under_traffic(async |server| {
        for _ in 0..20 {
            server.fail_next(1, Fault::CloseInReply);
            pass(millis(100)).await;
        }
    })
    .await;
    assert_eq!(log.faults(), [""; 0]);
    assert_eq!(service.openings(), 0);
}

#[tokio::test(start_paused = true)]
async fn error_replies_are_logged_once_and_open_no_breaker() {
    for error in [OOM, READ_ONLY, MASTER_DOWN, LOADING] {
        let (log, service) = under_traffic(async |server| {
            server.fail(Fault::Error(error));
            pass(millis(5_000)).await;
        })
        .await;
        println!("{error}");
        log.assert_logged_once(ERROR_REPLIES, true);
        let code = error.split(' ').next().expect("a code");
        assert!(log.faults()[0].contains(code), "{:?}", log.faults());
        assert_eq!(service.openings(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn error_replies_end_with_a_command_that_is_served() {
    for error in [OOM, READ_ONLY, MASTER_DOWN, LOADING] {
        let log = Log::capture();
        let service = Service::started().await;
        service.server.fail(Fault::Error(error));
        for _ in 0..5 {
            service.ask("error", "v").await;
            pass(millis(2_000)).await;
            log.assert_logged_once(ERROR_REPLIES, false);
        }
        service.server.recover();
        pass(millis(60_000)).await;
        log.assert_logged_once(ERROR_REPLIES, false);
        service.ask("error", "v").await;
        pass(millis(400)).await;
        log.assert_logged_once(ERROR_REPLIES, true);
    }
}

#[tokio::test(start_paused = true)]
async fn a_foreign_value_at_one_key_is_logged_once_and_affects_no_other_key() {
    let log = Log::capture();
    let service = Service::started().await;
    let traffic = service.traffic();
    service.server.set_foreign("d_deny_foreign_", true);
    for _ in 0..100 {
        assert_eq!(service.ask("deny", "foreign").await.verdict, Verdict::OverLimit, "by policy");
        pass(millis(20)).await;
    }
    service.server.set_foreign("d_deny_foreign_", false);
    assert_eq!(service.ask("deny", "foreign").await.verdict, Verdict::Ok, "by Redis");
    pass(TRAIL).await;
    traffic.finish().await;
    log.assert_logged_once(FOREIGN, true);
    let fallbacks: Vec<_> = service.fallbacks().into_iter().collect();
    assert_eq!(fallbacks, [(("deny".to_owned(), "refused".to_owned()), 100)]);
}

#[tokio::test(start_paused = true)]
async fn slow_replies_are_logged_as_slow_after_a_second_of_them() {
    let (log, service) = under_traffic(async |server| {
        server.fail(Fault::Delay(millis(25)));
        pass(millis(5_000)).await;
    })
    .await;
    log.assert_logged_once(SLOW, true);
    assert_eq!(service.openings(), 0);
    assert!(
        service.fallbacks().keys().all(|(_, cause)| cause == "late"),
        "{:?}",
        service.fallbacks()
    );
}

#[tokio::test(start_paused = true)]
async fn one_slow_call_is_not_logged() {
    let (log, service) = under_traffic(async |server| {
        server.fail_next(1, Fault::Delay(millis(25)));
        pass(millis(500)).await;
    })
    .await;
    assert_eq!(log.faults(), [""; 0]);
    assert!(!service.fallbacks().is_empty(), "there was one");
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_script_is_no_fault() {
    let (log, service) = under_traffic(async |server| {
        for _ in 0..50 {
            server.forget_script();
            pass(millis(100)).await;
        }
    })
    .await;
    assert_eq!(log.faults(), [""; 0]);
    assert!(service.fallbacks().is_empty(), "{:?}", service.fallbacks());
    assert!(service.metric("tollgate_store_script_unknown_total") >= 50);
}

#[tokio::test(start_paused = true)]
async fn ready_shows_what_a_restarting_redis_is_doing() {
    let log = Log::capture();
    let service = Service::started().await;
    service.server.fail(Fault::RefuseConnections);
    for _ in 0..3 {
        service.ask_within("error", "v", Some(GRPC_TIMEOUT)).await;
    }
    service.server.fail(Fault::Error(LOADING));
    pass(millis(1_000)).await;
    let report = service.lifecycle.state().report();
    assert!(report.contains("loading"), "{report}");
    service.server.recover();
    pass(TRAIL).await;
    // It replied before it served.
    let ends = log.faults();
    let ends: Vec<bool> = ends.iter().map(|line| is_end(line)).collect();
    assert_eq!(ends, [false, true, false, true], "{:#?}", log.faults());
    assert_eq!(log.lines(&[UNREACHABLE]).len(), 2);
    assert_eq!(log.lines(&[ERROR_REPLIES]).len(), 2);
    let report = service.lifecycle.state().report();
    assert!(!report.contains("loading"), "{report}");
}
