//! Where a check goes in a Redis Cluster: what nodes say of slots, redirections, and nodes that
//! come and go.

use std::sync::Arc;
use std::time::Duration;

use tollgate::limits::check::StoreError;
use tollgate::store::redis::topology::cluster::slot;

use crate::support::fault_log::{DISCOVERY_FAILED, UNREACHABLE};
use crate::support::in_process::{
    Called, GRPC_TIMEOUT, Log, NODES, RANGES, RECOVERY_MAX, START, Service, Verdict, WITHIN,
    called, cluster, millis, network, pass, settle,
};
use crate::support::scripted_redis::{Fault, Network, Redirect, Reply, ScriptedRedis};

const SLOTS: &str = "CLUSTER SLOTS";
/// How often nodes are asked for their slots while all is well.
const REFRESH_INTERVAL: Duration = Duration::from_secs(10);
/// How long after a redirection they are asked.
const DEBOUNCE: Duration = millis(50);
/// Two look-ups are never closer than this at first.
const SETTLED: Duration = millis(200);
const OK: Called = Called::OK;
const LATE: Called = called(Verdict::Error(StoreError::TimedOut), WITHIN);
/// How a node can be away.
const AWAY: [Fault; 3] = [Fault::RefuseConnections, Fault::Stopped, Fault::Unreachable];

struct World {
    service: Service,
}

async fn world() -> World {
    world_where(None).await
}

/// One whose second node has this fault from the start.
async fn world_where(fault: Option<Fault>) -> World {
    let network = network();
    say(&network, &RANGES);
    if let Some(fault) = fault {
        network.server(NODES[1]).fail(fault);
    }
    let mut service = Service::new(&network, cluster(&NODES));
    service.start().await;
    World { service }
}

/// All nodes say that these are the slots.
fn say(network: &Network, ranges: &[(u16, u16, &str)]) {
    for node in NODES.iter().chain(ranges.iter().map(|(_, _, node)| node)) {
        network.server(node).serve_slots(ranges);
    }
}

/// The slot of the counter of a value, by the key that it has in Redis.
fn slot_of(value: &str) -> u16 {
    let year = 365 * 86_400;
    let window = START.as_micros() / 1_000_000 / year * year;
    slot(format!("d_error_{value}_{window}").as_bytes())
}

fn node_of(value: &str) -> &'static str {
    let slot = slot_of(value);
    RANGES
        .iter()
        .find(|(first, last, _)| (first..=last).contains(&&slot))
        .expect("all slots are served")
        .2
}

/// Values whose counters live on a node.
fn values_on(node: &str) -> impl Iterator<Item = String> {
    (0..).map(|number| number.to_string()).filter(move |value| node_of(value) == node)
}

fn value_on(node: &str) -> String {
    values_on(node).next().expect("there are more than enough")
}

impl World {
    fn node(&self, number: usize) -> Arc<ScriptedRedis> {
        self.service.network.server(NODES[number])
    }

    async fn ask(&self, value: &str) -> Called {
        self.service.ask("error", value).await
    }

    /// The same with Envoy's deadline.
    async fn ask_in_time(&self, value: &str) -> Called {
        let service = &self.service;
        service.ask_within("error", value, Some(GRPC_TIMEOUT)).await
    }

    /// Redirects the keys of a slot from one node to another.
    fn redirect(&self, from: usize, slot: u16, redirect: fn(String) -> Redirect, to: usize) {
        let redirect = redirect(NODES[to].to_owned());
        self.node(from).redirect(slot, Some(redirect));
    }

    /// How many commands that count a node has received.
    fn asked(&self, node: usize) -> usize {
        let node = self.node(node);
        node.received("EVALSHA") + node.received("INCR")
    }

    /// How often any node was asked for its slots.
    fn refreshes(&self) -> usize {
        NODES.iter().map(|node| self.service.network.server(node).received(SLOTS)).sum()
    }

    fn hits(&self, node: usize, value: &str) -> i64 {
        self.node(node).hits(&format!("d_error_{value}_"))
    }
}

const fn error(error: StoreError) -> Called {
    called(Verdict::Error(error), Duration::ZERO)
}

#[tokio::test(start_paused = true)]
async fn each_slot_is_asked_for_at_its_owner() {
    let world = world().await;
    for number in 0..500 {
        let value = number.to_string();
        assert_eq!(world.ask(&value).await, OK);
        let owner = NODES.iter().position(|node| *node == node_of(&value)).expect("one of them");
        for node in 0..NODES.len() {
            assert_eq!(
                world.hits(node, &value),
                i64::from(node == owner),
                "{value} on node {node}"
            );
        }
    }
    assert_eq!(world.service.metric("tollgate_store_nodes"), 3);
}

#[tokio::test(start_paused = true)]
async fn slots_are_asked_for_every_ten_seconds_while_all_is_well() {
    let world = world().await;
    let before = world.refreshes();
    pass(REFRESH_INTERVAL * 6 + millis(1)).await;
    // Each less up to a quarter, so that processes do not ask in step.
    let refreshes = world.refreshes() - before;
    assert!((6..=8).contains(&refreshes), "{refreshes} in a minute");
}

#[tokio::test(start_paused = true)]
async fn moved_is_followed_at_once_and_refreshes_the_slots_once() {
    let world = world().await;
    pass(SETTLED).await;
    let values: Vec<String> = values_on(NODES[0]).take(20).collect();
    for value in &values {
        world.redirect(0, slot_of(value), Redirect::Moved, 1);
    }
    let before = world.refreshes();
    for value in &values {
        assert_eq!(world.ask(value).await, OK);
        assert_eq!((world.hits(0, value), world.hits(1, value)), (0, 1));
    }
    assert_eq!(world.refreshes(), before);
    say(&world.service.network, &[(0, 10_922, NODES[1]), (10_923, 16_383, NODES[2])]);
    pass(DEBOUNCE).await;
    assert_eq!(world.refreshes(), before + 1, "twenty redirections are one refresh");
    assert_eq!(world.service.metric("tollgate_store_nodes"), 2);
    world.node(0).forget_received();
    for value in &values {
        assert_eq!(world.ask(value).await, OK);
    }
    assert_eq!(world.asked(0), 0, "no detour any more");
}

#[tokio::test(start_paused = true)]
async fn ask_is_followed_and_changes_no_slot() {
    let world = world().await;
    let value = value_on(NODES[0]);
    world.redirect(0, slot_of(&value), Redirect::Ask, 1);
    world.redirect(1, slot_of(&value), Redirect::Importing, 0);
    let before = world.refreshes();
    for hits in 1..4 {
        let asked = world.node(0).received("INCR");
        assert_eq!(world.ask(&value).await, OK);
        assert_eq!((world.hits(0, &value), world.hits(1, &value)), (0, hits));
        assert_eq!(world.node(0).received("INCR"), asked + 1, "its owner is asked first each time");
    }
    pass(millis(1_000)).await;
    assert_eq!(world.refreshes(), before);
}

#[tokio::test(start_paused = true)]
async fn nodes_that_send_a_check_round_and_round_are_asked_six_times_and_no_longer_than_the_deadline()
 {
    let world = world().await;
    let value = value_on(NODES[0]);
    assert_eq!(world.ask(&value).await, OK);
    for (node, other) in [(0, 1), (1, 0)] {
        world.redirect(node, slot_of(&value), Redirect::Moved, other);
        world.node(node).forget_received();
    }
    assert_eq!(world.ask(&value).await, error(StoreError::Rejected));
    assert_eq!(world.asked(0) + world.asked(1), 6);
    for node in [0, 1] {
        world.node(node).fail(Fault::Delay(millis(5)));
    }
    assert_eq!(world.ask_in_time(&value).await, LATE);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_says_try_again_is_asked_again_no_longer_than_the_deadline() {
    let world = world().await;
    let value = value_on(NODES[0]);
    world.node(0).fail(Fault::Delay(millis(7)));
    world
        .node(0)
        .reply("INCR", Reply::error("TRYAGAIN Multiple keys request during rehashing of slot"));
    assert_eq!(world.ask_in_time(&value).await, LATE);
}

#[tokio::test(start_paused = true)]
async fn slots_that_no_node_serves_go_by_policy_at_once_and_others_are_counted() {
    let world = world().await;
    let served = value_on(NODES[0]);
    say(&world.service.network, &[RANGES[0], RANGES[2]]);
    pass(REFRESH_INTERVAL).await;
    for value in values_on(NODES[1]).take(20) {
        assert_eq!(world.ask(&value).await, error(StoreError::Unreachable));
    }
    assert_eq!(world.ask(&served).await, OK);
    assert_eq!(world.service.metric("tollgate_store_nodes"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_leaves_out_its_host_is_where_it_was_asked() {
    let network = network();
    let node = network.server(NODES[2]);
    node.serve_slots(&[(0, 16_383, ":6379")]);
    let mut service = Service::new(&network, cluster(&[NODES[2]]));
    service.start().await;
    assert_eq!(service.ask("error", "v").await, OK);
    assert_eq!(node.hits("d_error_v_"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_breaker_that_opens_refreshes_the_slots() {
    const NEW: &str = "10.0.0.4:6379";
    let world = world().await;
    pass(SETTLED).await;
    let value = value_on(NODES[0]);
    assert_eq!(world.ask(&value).await, OK);
    say(&world.service.network, &[(0, 5_460, NEW), RANGES[1], RANGES[2]]);
    world.node(0).fail(Fault::RefuseConnections);
    for _ in 0..3 {
        assert_eq!(world.ask(&value).await, error(StoreError::Unreachable));
    }
    pass(DEBOUNCE).await;
    assert_eq!(world.ask(&value).await, OK);
    assert_eq!(world.service.network.server(NEW).hits(&format!("d_error_{value}_")), 1);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_fails_over_is_logged_once_and_its_slots_are_counted_as_soon_as_the_topology_says_so()
 {
    for fault in AWAY {
        let log = Log::capture();
        let world = world().await;
        let traffic = world.service.traffic();
        pass(millis(500)).await;
        world.node(1).fail(fault);
        pass(millis(3_000)).await;
        let value = value_on(NODES[1]);
        assert_eq!(
            world.ask(&value).await,
            error(StoreError::Unreachable),
            "{fault:?}: the breaker is open"
        );
        say(&world.service.network, &[RANGES[0], (5_461, 10_922, "10.0.0.5:6379"), RANGES[2]]);
        // Nodes are asked at least once a second while one of them is away, and one that does not
        // answer takes no time from the others.
        pass(RECOVERY_MAX).await;
        assert_eq!(world.ask(&value).await, OK, "{fault:?}");
        pass(millis(3_000)).await;
        traffic.finish().await;
        log.assert_logged_once(UNREACHABLE, true);
        let lines = log.faults();
        assert!(
            lines.iter().all(|line| line.contains("10.0.0.2"))
                && lines[1].contains("fault cleared: "),
            "{lines:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_slots_of_a_node_that_was_never_reached_are_counted_as_soon_as_the_topology_says_so() {
    for fault in AWAY {
        let world = world_where(Some(fault)).await;
        pass(millis(3_000)).await;
        say(&world.service.network, &[RANGES[0], (5_461, 10_922, "10.0.0.5:6379"), RANGES[2]]);
        pass(RECOVERY_MAX).await;
        assert_eq!(world.ask(&value_on(NODES[1])).await, OK, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn while_one_node_is_away_the_others_count_without_waiting() {
    for fault in AWAY {
        let log = Log::capture();
        let world = world().await;
        world.node(1).fail(fault);
        let traffic = world.service.traffic();
        pass(millis(2_000)).await;
        for value in values_on(NODES[0]).chain([String::new()]).take(50) {
            assert_eq!(world.ask(&value).await, OK, "{fault:?}");
        }
        world.node(1).recover();
        pass(RECOVERY_MAX).await;
        assert_eq!(world.ask(&value_on(NODES[1])).await, OK, "{fault:?}");
        pass(millis(2_000)).await;
        traffic.finish().await;
        log.assert_logged_once(UNREACHABLE, true);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cluster_whose_nodes_do_not_tell_their_slots_is_used_as_it_was_and_logged_once() {
    let log = Log::capture();
    let world = world().await;
    for node in NODES {
        world
            .service
            .network
            .server(node)
            .reply(SLOTS, Reply::error("ERR This instance has cluster support disabled"));
    }
    pass(millis(60_000)).await;
    assert_eq!(log.lines(&[DISCOVERY_FAILED]).len(), 1, "{:?}", log.lines(&[DISCOVERY_FAILED]));
    for number in 0..20 {
        assert_eq!(world.ask(&number.to_string()).await, OK);
    }
    say(&world.service.network, &RANGES);
    pass(RECOVERY_MAX).await;
    let lines = log.lines(&[DISCOVERY_FAILED]);
    assert!(lines.len() == 2 && lines[1].contains("recovered: "), "{lines:?}");
    assert_eq!(log.faults(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn slots_that_move_back_and_forth_are_no_fault() {
    let log = Log::capture();
    let world = world().await;
    let traffic = world.service.traffic();
    for round in 0..20 {
        let from = round % 2;
        let to = (round + 1) % 2;
        for slot in 0..5_461 {
            world.redirect(from, slot, Redirect::Moved, to);
            world.node(to).redirect(slot, None);
        }
        let owner = NODES[to];
        say(&world.service.network, &[(0, 5_460, owner), RANGES[1], RANGES[2]]);
        pass(millis(200)).await;
    }
    traffic.finish().await;
    settle().await;
    assert_eq!(log.faults(), [""; 0]);
    assert!(world.service.fallbacks().is_empty(), "{:?}", world.service.fallbacks());
}
