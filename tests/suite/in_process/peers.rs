//! How Tollgate replicas learn of each other from heartbeats through Redis, and how soon.

use tollgate::shutdown::Phase;

use crate::support::in_process::{ADDRESS, Service, millis, network, pass, single};
use crate::support::scripted_redis::{Fault, Network};

async fn replicas(count: u32) -> (Network, Vec<Service>) {
    let (network, mut replicas) = (network(), Vec::new());
    for _ in 0..count {
        add(&network, &mut replicas).await;
    }
    (network, replicas)
}

async fn add(network: &Network, replicas: &mut Vec<Service>) {
    let mut replica = Service::new(network, single());
    replica.start().await;
    replicas.push(replica);
}

fn known(replicas: &[Service]) -> Vec<u64> {
    replicas
        .iter()
        .map(|replica| replica.metric("tollgate_replicas"))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn replicas_know_each_other_after_three_seconds() {
    let (network, mut replicas) = replicas(3).await;
    pass(millis(3_000)).await;
    assert_eq!(known(&replicas), [3, 3, 3]);
    add(&network, &mut replicas).await;
    pass(millis(3_000)).await;
    assert_eq!(known(&replicas), [4, 4, 4, 4]);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_drains_is_forgotten_at_once() {
    let (_network, replicas) = replicas(3).await;
    pass(millis(3_000)).await;
    replicas[2].lifecycle.enter(Phase::Draining);
    // Each replica evaluates heartbeats once a second.
    pass(millis(1_000)).await;
    assert_eq!(known(&replicas[..2]), [2, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_is_killed_is_forgotten_after_ten_seconds() {
    let (_network, mut replicas) = replicas(3).await;
    pass(millis(3_000)).await;
    drop(replicas.pop());
    // Its last heartbeat was up to a second ago, and each replica evaluates heartbeats once a
    // second.
    pass(millis(9_000)).await;
    assert_eq!(known(&replicas), [3, 3]);
    pass(millis(2_000)).await;
    assert_eq!(known(&replicas), [2, 2]);
}

#[tokio::test(start_paused = true)]
async fn replicas_are_remembered_while_redis_is_away() {
    for fault in [Fault::RefuseConnections, Fault::Stopped, Fault::Unreachable] {
        let (network, mut replicas) = replicas(3).await;
        pass(millis(3_000)).await;
        network.server(ADDRESS).fail(fault);
        pass(millis(60_000)).await;
        assert_eq!(known(&replicas), [3, 3, 3], "{fault:?}");
        // One of them is killed meanwhile. It is removed once its heartbeat could have been received.
        drop(replicas.pop());
        network.server(ADDRESS).recover();
        pass(millis(5_000)).await;
        assert_eq!(known(&replicas), [3, 3], "{fault:?}");
        pass(millis(20_000)).await;
        assert_eq!(known(&replicas), [2, 2], "{fault:?}");
    }
}
