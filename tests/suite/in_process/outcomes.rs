//! Whether Redis counted a check that got no verdict is known where it was sent: hits that were
//! certainly not counted are written back, hits that may have been counted are not.

use std::sync::Arc;
use std::time::Duration;

use tollgate::time::Clock;

use crate::support::in_process::{
    ADDRESS, GRPC_TIMEOUT, LIMIT, START, Service, Verdict, millis, pass, settle,
};
use crate::support::scripted_redis::{Fault, Network, ScriptedRedis};

/// A grpc-timeout that leaves no time for Redis.
const NO_TIME: &str = "1900u";
/// More than the interval of write-backs, and than a breaker stays open.
const WRITTEN_BACK: Duration = Duration::from_secs(2);
/// The counter of the rule `local`, as a prefix of its key.
const COUNTER: &str = "d_local_v_";

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
    /// The number of admitted hits.
    async fn passed(&self, hits: usize, grpc_timeout: Option<&str>) -> u64 {
        let mut passed = 0;
        for _ in 0..hits {
            passed += u64::from(
                self.service
                    .ask_within("local", "v", grpc_timeout)
                    .await
                    .verdict
                    == Verdict::Ok,
            );
        }
        passed
    }

    fn counted(&self) -> u64 {
        u64::try_from(self.server.hits(COUNTER)).expect("not below zero")
    }
}

#[tokio::test(start_paused = true)]
async fn hits_with_an_unknown_outcome_are_not_written_back() {
    for (fault, counted) in [
        (Fault::CloseInReply, 1),
        (Fault::HalfReply, 1),
        (Fault::NoReply, 1),
        (Fault::CloseBeforeRunning, 0),
    ] {
        let world = world().await;
        world.server.fail_next(1, fault);
        assert_eq!(world.passed(1, None).await, 1, "{fault:?}");
        pass(WRITTEN_BACK).await;
        assert_eq!(world.counted(), counted, "{fault:?}");
        assert_eq!(
            world.service.metric("tollgate_store_ambiguous_total"),
            1,
            "{fault:?}"
        );
        assert_eq!(
            world.service.metric("tollgate_write_back_hits_total"),
            0,
            "{fault:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn hits_of_callers_without_time_for_redis_are_written_back() {
    let world = world().await;
    assert_eq!(world.passed(25, Some(NO_TIME)).await, LIMIT);
    assert_eq!(world.counted(), 0);
    pass(WRITTEN_BACK).await;
    assert_eq!(world.counted(), LIMIT);
    assert_eq!(
        world.passed(12, None).await,
        0,
        "the limit is used up in Redis as well"
    );
    assert_eq!(world.service.metric("tollgate_store_ambiguous_total"), 0);
}

#[tokio::test(start_paused = true)]
async fn hits_withdrawn_before_they_were_sent_are_written_back() {
    let world = world().await;
    world.server.fail(Fault::Delay(millis(50)));
    let first = world.service.ask("error", "first");
    let second = async {
        settle().await;
        world.passed(1, Some(GRPC_TIMEOUT)).await
    };
    let (first, passed) = tokio::join!(first, second);
    assert_eq!((first.verdict, passed), (Verdict::Ok, 1));
    settle().await;
    assert_eq!(world.counted(), 0, "it waited behind the first one");
    world.server.recover();
    pass(WRITTEN_BACK).await;
    assert_eq!(world.counted(), 1);
    assert_eq!(world.service.metric("tollgate_store_ambiguous_total"), 0);
}

#[tokio::test(start_paused = true)]
async fn lifetimes_of_evicted_keys_are_set_until_redis_confirms_them() {
    let world = world().await;
    assert_eq!(world.passed(2, None).await, 2);
    world.server.evict(COUNTER);
    world.server.fail(Fault::Delay(millis(10)));
    let fault = async {
        settle().await;
        // INCRBY is answered, and EXPIRE never arrives.
        world.server.fail(Fault::CloseBeforeRunning);
    };
    assert_eq!(tokio::join!(world.passed(1, None), fault).0, 1);
    settle().await;
    assert_eq!(world.server.received("EXPIRE"), 0);
    world.server.recover();
    pass(WRITTEN_BACK).await;
    assert_eq!((world.server.received("EXPIRE"), world.counted()), (1, 1));
}
