//! A peer that closes an idle connection causes no outage: the next call opens another one, and Redis
//! counts it. What was counted locally in outages stays known while its window lasts.

use std::time::Duration;

use crate::support::in_process::{LIMIT, Service, Verdict, millis, network, pass, settle, single};
use crate::support::scripted_redis::Fault;

/// The counter of the rule `local`, as a prefix of its key.
const COUNTER: &str = "d_local_v_";
const CLOSED_IDLE: &str = "tollgate_store_connections_closed_idle_total{pool=\"main\"}";
/// More than it takes to notice that Redis is back.
const RECOVERED: Duration = Duration::from_secs(2);

async fn admitted(service: &Service, calls: u64) -> u64 {
    let mut admitted = 0;
    for _ in 0..calls {
        let called = service.ask("local", "v").await;
        admitted += u64::from(called.verdict == Verdict::Ok);
    }
    admitted
}

/// Whether the runtime has had time to read the close before the call, or not.
#[tokio::test(start_paused = true)]
async fn calls_after_a_close_are_counted_in_redis() {
    for is_noticed in [true, false] {
        let service = Service::started().await;
        let mut all = 0;
        for _ in 0..2 * LIMIT {
            all += admitted(&service, 1).await;
            pass(millis(800)).await;
            service.server.close_connections();
            if is_noticed {
                settle().await;
            }
        }
        assert_eq!(all, LIMIT, "noticed: {is_noticed}");
        let counted = service.server.hits(COUNTER);
        assert_eq!(counted.unsigned_abs(), 2 * LIMIT, "noticed: {is_noticed}");
        assert!(service.metric(CLOSED_IDLE) >= 2 * LIMIT - 1);
        assert_eq!(service.metric("tollgate_store_ambiguous_total"), 0);
        assert_eq!(service.openings(), 0);
        assert!(service.fallbacks().is_empty(), "{:?}", service.fallbacks());
    }
}

#[tokio::test(start_paused = true)]
async fn connections_that_break_in_a_call_are_not_counted_as_idle() {
    for fault in [Fault::CloseBeforeRunning, Fault::CloseInReply] {
        let service = Service::started().await;
        assert_eq!(admitted(&service, 1).await, 1);
        let before = service.metric(CLOSED_IDLE);
        service.server.fail_next(1, fault);
        assert_eq!(admitted(&service, 1).await, 1);
        settle().await;
        assert_eq!(service.metric(CLOSED_IDLE), before, "{fault:?}");
        assert_eq!(service.metric("tollgate_store_ambiguous_total"), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_close_of_the_first_connection_is_no_outage() {
    let mut service = Service::new(&network(), single());
    service.server.fail_half(0, Fault::CloseBeforeRunning);
    service.start().await;
    assert!(service.server.opened() > 1, "the first one was closed");
    service.server.recover();
    assert_eq!(admitted(&service, 1).await, 1);
    assert_eq!(service.openings(), 0);
    assert!(service.fallbacks().is_empty(), "{:?}", service.fallbacks());
}

#[tokio::test(start_paused = true)]
async fn ten_outages_in_a_window_admit_no_more_than_one() {
    // With an unknown outcome Redis may miss the hits of calls in flight, up to the limit of the
    // window, and no more than that in any number of outages.
    for (fault, most) in [
        (Fault::RefuseConnections, LIMIT),
        (Fault::CloseBeforeRunning, 2 * LIMIT),
        (Fault::NoReply, 2 * LIMIT),
    ] {
        let service = Service::started().await;
        let mut all = 0;
        for _ in 0..10 {
            service.server.fail(fault);
            settle().await;
            all += admitted(&service, LIMIT).await;
            service.server.recover();
            pass(RECOVERED).await;
        }
        all += admitted(&service, 2 * LIMIT).await;
        assert!(all <= most, "{fault:?}: {all} admitted");
    }
}
