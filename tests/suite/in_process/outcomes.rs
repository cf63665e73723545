//! Whether Redis counted a check that got no verdict is known where it was sent: hits that were
//! certainly not counted are written back, hits that may have been counted are not. Either way the key
//! gets a lifetime.

use std::time::Duration;

use futures_util::FutureExt as _;
use tollgate::limits::check::{Check, Hits, Key};
use tollgate::limits::{Algorithm, Limit, Terms, Unit};
use tollgate::telemetry::metric::Metrics;

use crate::support::in_process::{
    ADDRESS, GRPC_TIMEOUT, LIMIT, Service, Verdict, millis, network, pass, redis, settle, single,
};
use crate::support::remote::request_of;
use crate::support::scripted_redis::{Fault, READ_ONLY};

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
        assert_eq!(service.metric("tollgate_write_back_hits_total"), 0, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn hits_of_callers_without_time_for_redis_are_written_back() {
    let service = Service::started().await;
    assert_eq!(passed(&service, 25, Some(NO_TIME)).await, LIMIT);
    assert_eq!(counted(&service), 0);
    pass(WRITTEN_BACK).await;
    assert_eq!(counted(&service), LIMIT);
    assert_eq!(passed(&service, 12, None).await, 0, "the limit is used up in Redis as well");
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

/// One whose Redis has evicted the key of a counter. The next hit creates it, and only its reply shows
/// that it needs a lifetime.
async fn with_an_evicted_key() -> Service {
    let service = Service::started().await;
    assert_eq!(passed(&service, 1, None).await, 1);
    service.server.evict(COUNTER);
    service
}

/// Faults of the pipeline that creates a key, and of the one that sets its lifetime.
#[tokio::test(start_paused = true)]
async fn lifetimes_are_set_until_redis_confirms_them() {
    for (creating, setting) in [
        (Some(Fault::CloseInReply), None),
        (Some(Fault::NoReply), None),
        (None, Some(Fault::CloseBeforeRunning)),
        (None, Some(Fault::Unreachable)),
        (None, Some(Fault::Error(READ_ONLY))),
        (Some(Fault::CloseInReply), Some(Fault::CloseBeforeRunning)),
    ] {
        let service = with_an_evicted_key().await;
        let fail_setting = || setting.inspect(|fault| service.server.fail(*fault));
        let passed = if let Some(fault) = creating {
            service.server.fail_next(1, fault);
            let passed = passed(&service, 1, None).await;
            fail_setting();
            passed
        } else {
            service.server.fail_next(1, Fault::Delay(millis(1)));
            let in_flight = settle().map(|()| fail_setting());
            tokio::join!(passed(&service, 1, None), in_flight).0
        };
        let immortal = service.server.immortal_keys().len();
        assert_eq!((passed, immortal), (1, 1), "{creating:?}, {setting:?}");
        if setting.is_some() {
            pass(WRITTEN_BACK).await;
        }
        service.server.recover();
        pass(WRITTEN_BACK).await;
        let immortal = service.server.immortal_keys();
        assert!(immortal.is_empty(), "{creating:?}, {setting:?}");
        assert_eq!(counted(&service), 1, "{creating:?}, {setting:?}");
    }
}

/// TCP may deliver a call after its connection was given up, and after the next one was used.
#[tokio::test(start_paused = true)]
async fn a_key_that_a_late_call_creates_gets_a_lifetime() {
    let mut created = 0;
    // Only one half of the connections has that of the worker.
    for half in [0, 1] {
        let service = with_an_evicted_key().await;
        service.server.fail_half(half, Fault::Stopped);
        assert_eq!(passed(&service, 1, None).await, 1);
        pass(WRITTEN_BACK).await;
        service.server.recover();
        settle().await;
        created += service.server.immortal_keys().len();
        pass(WRITTEN_BACK * 2).await;
        assert!(service.server.immortal_keys().is_empty());
    }
    assert_eq!(created, 1);
}

#[tokio::test(start_paused = true)]
async fn keys_that_were_evicted_get_a_lifetime_again() {
    let service = Service::started().await;
    for _ in 0..2 {
        assert_eq!(passed(&service, 2, None).await, 2);
        pass(millis(100)).await;
        assert!(service.server.immortal_keys().is_empty());
        service.server.evict(COUNTER);
    }
}

/// The key of a check without a reply, a moment before its worker ends.
#[tokio::test(start_paused = true)]
async fn lifetimes_are_set_before_the_process_ends() {
    let network = network();
    let redis = redis(&network, single(), &Metrics::new(), 0);
    let server = network.server(ADDRESS);
    let worker = redis.open();
    let limit = Limit::new(&Terms::new(9, Unit::Year, Algorithm::FixedWindow)).expect("a limit");
    let check = Check::new(Key::from("k"), limit, Hits::Add(1));
    let request = request_of([check]);
    let decide = async || worker.decide(&request, network.clock.now(), None).await[0];
    assert!(decide().await.is_ok());
    // Now its command has no EXPIRE.
    server.evict("k");
    server.fail_next(1, Fault::CloseInReply);
    assert!(decide().await.is_err());
    drop(worker);
    assert_eq!(server.immortal_keys().len(), 1);
    redis.finish().await;
    assert!(server.immortal_keys().is_empty());
}

#[tokio::test(start_paused = true)]
async fn over_limit_answers_of_the_fallback_are_not_of_the_local_cache() {
    let service = Service::started().await;
    service.server.fail(Fault::CloseBeforeRunning);
    let limit = usize::try_from(LIMIT).expect("it is small");
    assert_eq!(passed(&service, limit + 3, None).await, LIMIT);
    let series = |count| service.metric(&format!("ratelimit_service_rate_limit_{count}"));
    assert_eq!(series("over_limit{domain=\"d\",key1=\"local\"}"), 3);
    let page = service.metrics.page();
    let mut lines = page.lines();
    let cached = lines.find(|line| line.contains("_local_over_limit_with_local_cache "));
    assert!(cached.is_none_or(|line| line.ends_with(" 0")), "{cached:?}");
}
