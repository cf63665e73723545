//! How Tollgate replicas learn of each other from heartbeats through Redis, and how soon.

use tollgate::base::shutdown::Phase;

use crate::support::in_process::{ADDRESS, Service, Verdict, millis, network, pass, single};
use crate::support::scripted_redis::{Fault, Network};

async fn replicas(count: u32) -> (Network, Vec<Service>) {
    let network = network();
    let mut replicas = Vec::new();
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
    replicas.iter().map(|replica| replica.metric("tollgate_replicas")).collect()
}

/// How many of 20 calls are admitted, sent to the replicas in turn.
async fn admitted(replicas: &[Service]) -> usize {
    let mut admitted = 0;
    for call in 0..20 {
        let called = replicas[call % replicas.len()].ask("local", "v").await;
        admitted += usize::from(called.verdict == Verdict::Ok);
    }
    admitted
}

#[tokio::test(start_paused = true)]
async fn replicas_that_start_know_each_other_before_an_outage_can_begin() {
    let (network, mut replicas) = replicas(4).await;
    // The first one answers each of the others, at most ten times a second.
    pass(millis(500)).await;
    assert_eq!(known(&replicas), [4; 4]);
    add(&network, &mut replicas).await;
    pass(millis(500)).await;
    assert_eq!(known(&replicas), [5; 5]);
    network.server(ADDRESS).fail(Fault::RefuseConnections);
    assert_eq!(admitted(&replicas).await, 6, "the limit");
}

#[tokio::test(start_paused = true)]
async fn a_replica_is_ready_when_it_knows_the_others() {
    let (network, mut replicas) = replicas(1).await;
    for fault in [None, Some(Fault::RefuseConnections)] {
        match fault {
            Some(fault) => network.server(ADDRESS).fail(fault),
            None => network.server(ADDRESS).recover(),
        }
        let mut replica = Service::new(&network, single());
        replica.lifecycle.set_store(false, String::new());
        replica.start().await;
        pass(millis(150)).await;
        assert!(!replica.lifecycle.state().store_missing, "{fault:?}");
        replicas.push(replica);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lone_replica_does_not_wait() {
    let mut replica = Service::new(&network(), single());
    replica.lifecycle.set_store(false, String::new());
    replica.start().await;
    assert!(!replica.lifecycle.state().store_missing);
    assert_eq!(replica.metric("tollgate_replicas"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_replica_waits_a_second_at_most_for_peers_that_do_not_answer() {
    let (network, replicas) = replicas(1).await;
    // It keeps its subscription.
    network.server(ADDRESS).fail_half(0, Fault::Stopped);
    let mut replica = Service::new(&network, single());
    replica.lifecycle.set_store(false, String::new());
    replica.start().await;
    pass(millis(1_010)).await;
    assert!(!replica.lifecycle.state().store_missing);
    drop(replicas);
}

#[tokio::test(start_paused = true)]
async fn messages_of_other_clients_that_are_too_long_end_the_subscription() {
    let (network, replicas) = replicas(1).await;
    pass(millis(100)).await;
    let server = network.server(ADDRESS);
    for (bytes, closed) in [(256, 0), (257, 1), (1 << 17, 2)] {
        server.publish("tg:replicas:0", &"x".repeat(bytes));
        pass(millis(3_000)).await;
        let total = replicas[0].metric("tollgate_store_replies_oversized_total");
        assert_eq!(total, closed, "{bytes} bytes");
    }
    assert_eq!(known(&replicas), [1], "it has subscribed again");
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
