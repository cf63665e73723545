//! Faults of servers that belong together: Sentinel and cluster.

use crate::faults::redis::lose_packets;
use crate::support::cluster::{ClusterProcess, Options};
use crate::support::fault::{FaultScenario, PATIENT};
use crate::support::fault_log::UNREACHABLE;
use crate::support::look_until;
use crate::support::proxy::Fault;
use crate::support::redis::RedisProcess;
use crate::support::sentinel::SentinelProcess;

/// The node of a cluster that has a fault.
const NODE: usize = 1;
/// Slots that are moved: enough that clients meet many of them on the way.
const SLOTS_MOVED: usize = 40;

fn behind_sentinel() -> FaultScenario<SentinelProcess> {
    // What the replica had not received is lost.
    FaultScenario::new(SentinelProcess::start(), &[]).that_loses_data()
}

fn on_cluster_with_replicas() -> FaultScenario<ClusterProcess> {
    let options =
        Options { node: RedisProcess::builder().in_own_group(), replicas: 1, ..Options::default() };
    FaultScenario::new(ClusterProcess::with(options), &[]).that_loses_data()
}

fn on_cluster_without_full_coverage() -> FaultScenario<ClusterProcess> {
    let node = RedisProcess::builder()
        .in_own_group()
        .with_arguments(&["--cluster-require-full-coverage", "no"]);
    let options = Options { node, ..Options::default() };
    FaultScenario::new(ClusterProcess::with(options), &[]).that_loses_data()
}

fn on_cluster_behind_proxies() -> FaultScenario<ClusterProcess> {
    FaultScenario::new(ClusterProcess::start_behind_proxies(), &[])
}

#[test]
fn sentinel_fails_over_as_planned() {
    behind_sentinel().run(|scenario| scenario.servers.fail_over());
}

#[test]
fn master_behind_sentinel_killed() {
    behind_sentinel().run(|scenario| {
        let master = scenario.servers.master_by_name().expect("the sentinels agree");
        scenario.servers.master_mut().kill();
        scenario.wait_until_policies_answer();
        scenario.servers.wait_until_replaced(master);
    });
}

#[test]
fn node_with_a_replica_killed() {
    on_cluster_with_replicas().run(|scenario| {
        let node = scenario.servers.a_master_with_a_replica();
        scenario.servers.server_mut(node).kill();
        scenario.wait_until_policies_answer();
        scenario.servers.wait_until_replaced(node);
    });
}

#[test]
fn node_with_a_replica_stopped() {
    on_cluster_with_replicas().run(|scenario| {
        let node = scenario.servers.a_master_with_a_replica();
        scenario.servers.server(node).stop();
        scenario.wait_until_policies_answer();
        scenario.servers.wait_until_replaced_by_all_but(node);
        // It wakes up as a master, and learns that it is none.
        scenario.servers.server(node).cont();
        scenario.servers.wait_until_replaced(node);
    });
}

#[test]
fn node_without_a_replica_killed_and_restarted() {
    on_cluster_without_full_coverage().run(|scenario| {
        scenario.servers.server_mut(NODE).kill();
        scenario.wait_until_policies_answer_to(UNREACHABLE);
        scenario.servers.server_mut(NODE).restart();
        scenario.servers.wait_until_whole();
    });
}

#[test]
fn node_without_a_replica_stopped() {
    on_cluster_without_full_coverage().run(|scenario| {
        scenario.servers.server(NODE).stop();
        scenario.wait_until_policies_answer_to(UNREACHABLE);
        scenario.servers.server(NODE).cont();
        scenario.servers.wait_until_whole();
    });
}

/// The nodes see each other, so nothing fails over.
#[test]
fn partition_between_the_service_and_one_node() {
    on_cluster_behind_proxies().run(|scenario| {
        scenario.servers.proxy(NODE).set(Fault::Stall);
        scenario.wait_until_policies_answer_to(UNREACHABLE);
        scenario.servers.proxy(NODE).set(Fault::None);
    });
}

#[test]
fn half_of_the_packets_to_one_node_lost() {
    on_cluster_behind_proxies().run(|scenario| {
        lose_packets(scenario.servers.proxy(NODE));
        scenario.wait_until_policies_answer();
        scenario.servers.proxy(NODE).set(Fault::None);
    });
}

#[test]
fn slots_moved() {
    let report = FaultScenario::new(ClusterProcess::start(), &[PATIENT]).run(|scenario| {
        let mut slots: Vec<u16> =
            scenario.servers.keys("d_*").iter().map(|key| scenario.servers.slot_of(key)).collect();
        slots.sort_unstable();
        slots.dedup();
        for slot in slots.into_iter().take(SLOTS_MOVED) {
            scenario.servers.migrate(slot);
        }
    });
    report.is_unnoticed();
}

#[test]
fn cluster_started_after_the_service() {
    let mut cluster = ClusterProcess::start();
    for number in 0..cluster.len() {
        cluster.server_mut(number).kill();
    }
    let mut scenario = FaultScenario::new(cluster, &[]);
    scenario.wait_until_redis_does_not_count();
    look_until("the log says so", || scenario.server.log().contains("WARN"));
    for number in 0..scenario.servers.len() {
        scenario.servers.server_mut(number).restart();
    }
    scenario.servers.wait_until_whole();
    scenario.wait_until_redis_counts();
}
