//! Every call is answered within the caller's deadline, or within STORE_TIMEOUT, whatever Redis
//! does; and its rule decides how.

use std::collections::BTreeMap;
use std::time::Duration;

use tollgate::limits::check::StoreError;

use crate::support::in_process::{
    GRPC_TIMEOUT, POLICIES, SCRIPT, STORE_TIMEOUT, Service, Verdict, WITHIN, called, millis,
    network, settle, single,
};
use crate::support::scripted_redis::{Fault, LOADING, OOM, READ_ONLY};

const SOON: Duration = Duration::ZERO;

/// Whether the service has connected before the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Connected,
    NotConnected,
}

/// How long a call takes that meets a fault, and why it has no verdict.
type Cost = (Duration, StoreError);
/// A fault, and the cost with Envoy's deadline and without any.
type Case = (Fault, Before, [Cost; 2]);

const CASES: [Case; 16] = {
    use Before::{Connected, NotConnected};
    use StoreError::{Rejected, TimedOut, Unreachable};
    const LATE: [Cost; 2] = [(WITHIN, TimedOut), (STORE_TIMEOUT, TimedOut)];
    const LOST: [Cost; 2] = [(SOON, Unreachable), (SOON, Unreachable)];
    const ERROR: [Cost; 2] = [(SOON, Rejected), (SOON, Rejected)];
    [
        (Fault::NoReply, Connected, LATE),
        (Fault::Stopped, Connected, LATE),
        (Fault::Stopped, NotConnected, LATE),
        (Fault::Unreachable, Connected, LATE),
        (Fault::Unreachable, NotConnected, LATE),
        (Fault::HalfReply, Connected, LATE),
        (Fault::Delay(millis(500)), Connected, LATE),
        (Fault::CloseInReply, Connected, LOST),
        (Fault::CloseBeforeRunning, Connected, LOST),
        (Fault::RefuseConnections, Connected, LOST),
        (Fault::RefuseConnections, NotConnected, LOST),
        (Fault::Error(LOADING), Connected, ERROR),
        (Fault::Error(READ_ONLY), Connected, ERROR),
        (Fault::Error(OOM), Connected, ERROR),
        (Fault::Error("NOAUTH"), Connected, ERROR),
        (Fault::Error("NOAUTH"), NotConnected, ERROR),
    ]
};

/// The verdict of a policy on a first hit.
fn verdict_by(policy: &str, cause: StoreError) -> Verdict {
    match policy {
        "deny" => Verdict::OverLimit,
        "error" => Verdict::Error(cause),
        _ => Verdict::Ok,
    }
}

async fn service(before: Before) -> Service {
    let service = Service::new(&network(), single());
    if before == Before::Connected {
        assert_eq!(service.ask("error", "before").await.verdict, Verdict::Ok);
    }
    service
}

#[tokio::test(start_paused = true)]
async fn every_fault_is_decided_in_time_by_the_policy() {
    let mut wrong = Vec::new();
    for (fault, before, expected) in CASES {
        for (grpc_timeout, (took, cause)) in [Some(GRPC_TIMEOUT), None].into_iter().zip(expected) {
            for key in POLICIES.into_iter().chain([SCRIPT]) {
                let case = format!("{fault:?}, {before:?}, {grpc_timeout:?}, {key}");
                let policy = if key == SCRIPT { "error" } else { key };
                let service = service(before).await;
                service.server.fail(fault);
                let answer = service.ask_within(key, "v", grpc_timeout).await;
                let fallbacks = BTreeMap::from([((policy.to_owned(), cause.name().to_owned()), 1)]);
                let expected = (called(verdict_by(policy, cause), took), fallbacks);
                let seen = (answer, service.fallbacks());
                if seen != expected {
                    wrong.push(format!("{case}: {seen:?} instead of {expected:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test(start_paused = true)]
async fn noscript_retries_stay_within_the_deadline() {
    for (round_trip, expected) in [
        (millis(5), called(Verdict::Ok, millis(10))),
        (millis(7), called(Verdict::Error(StoreError::TimedOut), WITHIN)),
    ] {
        let service = service(Before::Connected).await;
        service.server.forget_script();
        service.server.fail(Fault::Delay(round_trip));
        assert_eq!(service.ask_within(SCRIPT, "v", Some(GRPC_TIMEOUT)).await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn time_behind_a_call_in_flight_counts_towards_the_deadline() {
    let service = service(Before::Connected).await;
    service.server.fail(Fault::Delay(millis(8)));
    let ask = |value| service.ask_within("error", value, Some(GRPC_TIMEOUT));
    let (first, second) = tokio::join!(ask("first"), async {
        // It goes out when the first reply is there, at 8 ms, and has 5 ms left then.
        settle().await;
        tokio::time::sleep(millis(1)).await;
        ask("second").await
    });
    assert_eq!(first, called(Verdict::Ok, millis(8)));
    assert_eq!(second, called(Verdict::Error(StoreError::TimedOut), WITHIN));
}
