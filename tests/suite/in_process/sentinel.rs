//! Which server is the master: what sentinels say, and what the server says itself.

use std::sync::Arc;
use std::time::Duration;

use tollgate::limits::check::StoreError;

use crate::support::fault_log::{DISCOVERY_FAILED, UNREACHABLE};
use crate::support::in_process::{
    Called, Log, RECOVERY_MAX, Service, Verdict, called, millis, network, pass, sentinel,
};
use crate::support::scripted_redis::{Fault, Reply, ScriptedRedis};

const SENTINELS: [&str; 3] = ["10.0.1.1:26379", "10.0.1.2:26379", "10.0.1.3:26379"];
const FIRST: &str = "10.0.0.1:6379";
const SECOND: &str = "10.0.0.2:6379";
const MASTER: &str = "SENTINEL GET-MASTER-ADDR-BY-NAME";
/// How often sentinels are asked while all is well.
const INTERVAL: Duration = Duration::from_secs(1);
const OK: Called = Called::OK;

struct World {
    service: Service,
}

/// All sentinels name the first server.
async fn world() -> World {
    let world = world_of([FIRST; 3]).await;
    assert_eq!(world.ask("start").await, OK);
    world
}

async fn world_of(named: [&str; 3]) -> World {
    let service = Service::new(&network(), sentinel(&SENTINELS));
    let mut world = World { service };
    world.promote(FIRST);
    world.name(named);
    world.service.start().await;
    world
}

impl World {
    /// This server is the master, and the other one its replica.
    fn promote(&self, master: &str) {
        for server in [FIRST, SECOND] {
            self.server(server)
                .reply("ROLE", Reply::role(if server == master { "master" } else { "slave" }));
        }
    }

    /// What each sentinel says.
    fn name(&self, named: [&str; 3]) {
        for (sentinel, master) in SENTINELS.into_iter().zip(named) {
            self.server(sentinel).reply(MASTER, Reply::master(master));
        }
    }

    fn server(&self, address: &str) -> Arc<ScriptedRedis> {
        self.service.network.server(address)
    }

    async fn ask(&self, value: &str) -> Called {
        self.service.ask("error", value).await
    }

    /// How many hits each server has counted.
    fn hits(&self) -> [i64; 2] {
        [FIRST, SECOND].map(|server| self.server(server).hits("d_error_v_"))
    }

    fn topology_changes(&self) -> u64 {
        self.service.metric("tollgate_store_topology_changes_total")
    }
}

#[tokio::test(start_paused = true)]
async fn the_server_that_most_sentinels_name_is_asked() {
    for (named, hits) in
        [([FIRST; 3], [1, 0]), ([SECOND, FIRST, FIRST], [1, 0]), ([SECOND, FIRST, SECOND], [0, 1])]
    {
        let world = world_of(["10.0.0.9:6379"; 3]).await;
        // Both say that they are masters: the old one does not know better yet.
        for server in [FIRST, SECOND] {
            world.server(server).reply("ROLE", Reply::role("master"));
        }
        world.name(named);
        pass(INTERVAL).await;
        assert_eq!(world.ask("v").await, OK, "{named:?}");
        assert_eq!(world.hits(), hits, "{named:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn sentinels_are_asked_every_second_while_all_is_well() {
    let world = world().await;
    world.server(SENTINELS[0]).forget_received();
    pass(INTERVAL * 5 + millis(1)).await;
    // Each interval less up to a quarter, so that processes do not ask in step.
    let asked = world.server(SENTINELS[0]).received(MASTER);
    assert!((5..=7).contains(&asked), "{asked} times in five seconds");
    assert_eq!(world.server(SENTINELS[0]).open(), 1, "over one connection");
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_a_stale_sentinel_names_is_not_asked() {
    let world = world().await;
    world.name([SECOND; 3]);
    pass(INTERVAL * 5).await;
    assert_eq!(world.ask("v").await, OK);
    assert_eq!(world.hits(), [1, 0]);
    assert_eq!(world.topology_changes(), 0);

    // One that is alone in it is outvoted even if the server agrees with it.
    world.server(SECOND).reply("ROLE", Reply::role("master"));
    world.name([FIRST, FIRST, SECOND]);
    pass(INTERVAL * 5).await;
    assert_eq!(world.ask("v").await, OK);
    assert_eq!(world.hits(), [2, 0]);
}

#[tokio::test(start_paused = true)]
async fn after_a_failover_the_new_master_is_asked_within_a_second() {
    for fault in [
        None,
        Some(Fault::RefuseConnections),
        Some(Fault::Stopped),
        Some(Fault::Unreachable),
        Some(Fault::Error("READONLY")),
    ] {
        let log = Log::capture();
        let world = world().await;
        let traffic = world.service.traffic();
        pass(millis(500)).await;
        if let Some(fault) = fault {
            world.server(FIRST).fail(fault);
            pass(millis(3_000)).await;
        }
        world.promote(SECOND);
        world.name([SECOND; 3]);
        pass(RECOVERY_MAX).await;
        assert_eq!(world.ask("v").await, OK, "{fault:?}");
        assert_eq!(world.hits(), [0, 1], "{fault:?}");
        pass(millis(3_000)).await;
        traffic.finish().await;
        let lines = log.faults();
        assert_eq!(lines.len(), if fault.is_some() { 2 } else { 0 }, "{fault:?}: {lines:?}");
        assert!(
            lines.get(1).is_none_or(|line| line.contains("fault cleared: ")),
            "{fault:?}: {lines:?}"
        );
        assert_eq!(world.topology_changes(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn without_sentinels_the_last_known_master_is_asked_and_that_is_logged_once() {
    for fault in [Fault::RefuseConnections, Fault::Stopped, Fault::NoReply, Fault::Unreachable] {
        let log = Log::capture();
        let world = world().await;
        for sentinel in SENTINELS {
            world.server(sentinel).fail(fault);
        }
        pass(millis(30_000)).await;
        assert_eq!(world.ask("v").await, OK, "{fault:?}");
        let lines = log.lines(&[DISCOVERY_FAILED]);
        assert!(
            lines.len() == 1 && lines[0].contains("last known topology"),
            "{fault:?}: {lines:?}"
        );
        for sentinel in SENTINELS {
            world.server(sentinel).recover();
        }
        pass(INTERVAL).await;
        let lines = log.lines(&[DISCOVERY_FAILED]);
        assert!(lines.len() == 2 && lines[1].contains("recovered: "), "{fault:?}: {lines:?}");
        assert_eq!(log.lines(&[UNREACHABLE]), [""; 0], "Redis itself is well");
    }
}

#[tokio::test(start_paused = true)]
async fn one_sentinel_is_enough() {
    let log = Log::capture();
    let world = world().await;
    world.server(SENTINELS[0]).fail(Fault::RefuseConnections);
    world.server(SENTINELS[1]).fail(Fault::Stopped);
    pass(millis(5_000)).await;
    world.promote(SECOND);
    world.name([SECOND; 3]);
    pass(INTERVAL + millis(500)).await;
    assert_eq!(world.ask("v").await, OK);
    assert_eq!(world.hits()[1], 1);
    assert_eq!(log.lines(&[DISCOVERY_FAILED]), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_master_that_no_sentinel_knows_is_logged_and_calls_go_by_policy_at_once() {
    let log = Log::capture();
    let network = network();
    for sentinel in SENTINELS {
        network.server(sentinel).reply(MASTER, Reply::Nil);
    }
    let mut service = Service::new(&network, sentinel(&SENTINELS));
    service.start().await;
    pass(millis(5_000)).await;
    assert_eq!(
        service.ask("error", "v").await,
        called(Verdict::Error(StoreError::Unreachable), Duration::ZERO)
    );
    let lines = log.lines(&[DISCOVERY_FAILED]);
    assert!(lines.len() == 1 && lines[0].contains("knows no master named m"), "{lines:?}");
}
