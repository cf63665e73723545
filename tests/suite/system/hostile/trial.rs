//! An upstream of a trial whose replies are long, never end, or decode into much memory. Calls are
//! answered here, so none is lost.

use crate::support::raw_grpc::frame_of;
use crate::support::raw_upstream::{Answer, RawUpstream, headers};
use crate::support::{Code, eventually};
use crate::system::hostile::{UnderAttack, server};

const CALLS: usize = 150;

/// A trial that answers every call itself. All clients' calls are forwarded.
fn under_attack(upstream: &RawUpstream) -> UnderAttack {
    let builder = server("1")
        .with_env("TRIAL_UPSTREAM", &upstream.addr.to_string())
        .with_env("TRIAL_ENFORCE_PERCENT", "100");
    UnderAttack::start(builder)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_never_end_are_bounded_in_sum() {
    let body = vec![0; (4 << 20) - (100 << 10)];
    let upstream = RawUpstream::start(Answer::Unfinished(body.into())).await;
    let attack = under_attack(&upstream);
    let mut client = attack.server.client().await;
    for _ in 0..CALLS {
        assert_eq!(client.ask("d", &[("k", "")]).await, Code::Ok);
    }
    eventually("some replies are not received", async || {
        attack.server.metric("tollgate_trial_replies_full_total") > Some(0.0)
    })
    .await;
    attack.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_with_too_many_statuses_are_not_decoded() {
    // Empty statuses of two bytes each.
    let body = frame_of(&[0x12, 0].repeat(1_000_000));
    let upstream = RawUpstream::start(Answer::Reply {
        headers: headers(&[("content-type", "application/grpc")]),
        body,
        trailers: Some(headers(&[("grpc-status", "0")])),
    })
    .await;
    let attack = under_attack(&upstream);
    eventually("replies are dropped", async || {
        let dropped = "tollgate_trial_dropped_total{reason=\"invalid_reply\"}";
        attack.server.metric(dropped) > Some(40.0)
    })
    .await;
    attack.finish().await;
}
