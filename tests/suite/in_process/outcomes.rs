//! Whether Redis counted a check that got no verdict is known where it was sent: hits that were
//! certainly not counted are written back, hits that may have been counted are not.

use std::time::Duration;

use crate::support::in_process::{GRPC_TIMEOUT, LIMIT, Service, Verdict, millis, pass, settle};
use crate::support::scripted_redis::Fault;

/// A grpc-timeout that leaves no time for Redis.
const NO_TIME: &str = "1900u";
/// More than the interval of write-backs, and than a breaker stays open.
const WRITTEN_BACK: Duration = Duration::from_secs(2);
/// The counter of the rule `local`, as a prefix of its key.
const COUNTER: &str = "d_local_v_";

/// The number of admitted hits.
async fn passed(service: &Service, hits: usize, grpc_timeout: Option<&str>) -> u64 {
    let mut passed = 0;
    for _ in 0..hits {
        let called = service.ask_within("local", "v", grpc_timeout).await;
        passed += u64::from(called.verdict == Verdict::Ok);
    }
    passed
}

fn counted(service: &Service) -> u64 {
    u64::try_from(service.server.hits(COUNTER)).expect("not below zero")
}

fn ambiguous(service: &Service) -> u64 {
    service.metric("tollgate_store_ambiguous_total")
}

#[tokio::test(start_paused = true)]
async fn hits_with_an_unknown_outcome_are_not_written_back() {
    for (fault, hits) in [
        (Fault::CloseInReply, 1),
        (Fault::HalfReply, 1),
        (Fault::NoReply, 1),
        (Fault::CloseBeforeRunning, 0),
    ] {
        let service = Service::started().await;
        service.server.fail_next(1, fault);
        assert_eq!(passed(&service, 1, None).await, 1, "{fault:?}");
        pass(WRITTEN_BACK).await;
        assert_eq!(counted(&service), hits, "{fault:?}");
        assert_eq!(ambiguous(&service), 1, "{fault:?}");
        assert_eq!(
            service.metric("tollgate_write_back_hits_total"),
            0,
            "{fault:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn hits_of_callers_without_time_for_redis_are_written_back() {
    let service = Service::started().await;
    assert_eq!(passed(&service, 25, Some(NO_TIME)).await, LIMIT);
    assert_eq!(counted(&service), 0);
    pass(WRITTEN_BACK).await;
    assert_eq!(counted(&service), LIMIT);
    assert_eq!(
        passed(&service, 12, None).await,
        0,
        "the limit is used up in Redis as well"
    );
    assert_eq!(ambiguous(&service), 0);
}

#[tokio::test(start_paused = true)]
async fn hits_withdrawn_before_they_were_sent_are_written_back() {
    let service = Service::started().await;
    service.server.fail(Fault::Delay(millis(50)));
    let first = service.ask("error", "first");
    let second = async {
        settle().await;
        passed(&service, 1, Some(GRPC_TIMEOUT)).await
    };
    let (first, passed) = tokio::join!(first, second);
    assert_eq!((first.verdict, passed), (Verdict::Ok, 1));
    settle().await;
    assert_eq!(counted(&service), 0, "it waited behind the first one");
    service.server.recover();
    pass(WRITTEN_BACK).await;
    assert_eq!(counted(&service), 1);
    assert_eq!(ambiguous(&service), 0);
}

#[tokio::test(start_paused = true)]
async fn lifetimes_of_evicted_keys_are_set_until_redis_confirms_them() {
    let service = Service::started().await;
    assert_eq!(passed(&service, 2, None).await, 2);
    service.server.evict(COUNTER);
    service.server.fail(Fault::Delay(millis(10)));
    let fault = async {
        settle().await;
        // INCRBY is answered, and EXPIRE never arrives.
        service.server.fail(Fault::CloseBeforeRunning);
    };
    assert_eq!(tokio::join!(passed(&service, 1, None), fault).0, 1);
    settle().await;
    assert_eq!(service.server.received("EXPIRE"), 0);
    service.server.recover();
    pass(WRITTEN_BACK).await;
    assert_eq!(
        (service.server.received("EXPIRE"), counted(&service)),
        (1, 1)
    );
}
