//! How connections are made again, and servers looked up, while a fault lasts: soon enough, and not
//! too often.

use std::sync::Arc;
use std::time::Duration;

use tollgate::check::StoreError;
use tollgate::store::redis::topology::deployment::Deployment;
use tollgate::time::Clock;

use crate::support::in_process::{
    ADDRESS, GRPC_TIMEOUT, START, Service, Verdict, address, cluster, millis, pass, sentinel,
    single,
};
use crate::support::scripted_redis::{Fault, Network, Reply, ScriptedRedis};

/// Longer than any probe once took at most.
const SLOW_CONNECTING: Duration = millis(600);
const RECOVERY_MAX: Duration = Duration::from_secs(1);
const SENTINEL: &str = "10.0.1.1:26379";
const OTHER: &str = "10.0.0.2:6379";
const SLOTS: &str = "CLUSTER SLOTS";
const OOM: &str = "OOM command not allowed when used memory > 'maxmemory'.";
/// What a server replies that another one has replaced.
const MISPLACED: [&str; 3] = [
    "READONLY You can't write against a read only replica.",
    "LOADING Redis is loading the dataset in memory",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
];

struct World {
    network: Network,
    server: Arc<ScriptedRedis>,
    service: Service,
}

/// A service on this deployment, whose servers are all at [`ADDRESS`], with its background tasks.
async fn world(deployment: Deployment, prepare: impl Fn(&Network)) -> World {
    let clock = Clock::starting_at(START);
    let network = Network::new(clock.clone());
    let server = network.server(ADDRESS);
    say_slots(&server);
    network
        .server(SENTINEL)
        .reply("SENTINEL GET-MASTER-ADDR-BY-NAME", Reply::master(ADDRESS));
    prepare(&network);
    let mut service = Service::new(&network, deployment, clock);
    service.start().await;
    World {
        network,
        server,
        service,
    }
}

/// All slots are served at [`ADDRESS`].
fn say_slots(server: &ScriptedRedis) {
    server.reply(SLOTS, Reply::cluster_slots(&[(0, 16_383, ADDRESS)]));
    server.reply("CLUSTER INFO", Reply::text("cluster_state:ok\r\n"));
}

impl World {
    /// One call every 10 ms, each to a counter of its own, for this long. Returns how many Redis
    /// decided.
    async fn call_for(&self, time: Duration) -> usize {
        let mut counted = 0;
        for number in 0..time.as_millis() / 10 {
            let called = self
                .service
                .ask_within("error", &format!("call {number}"), Some(GRPC_TIMEOUT))
                .await;
            counted += usize::from(called.verdict == Verdict::Ok);
            pass(millis(10)).await;
        }
        counted
    }
}

#[tokio::test(start_paused = true)]
async fn servers_that_are_slow_to_connect_to_are_used() {
    let deployments = [single(), sentinel(&[SENTINEL]), cluster(&[ADDRESS])];
    for deployment in deployments {
        let slow = |network: &Network| {
            for server in [ADDRESS, SENTINEL] {
                network
                    .server(server)
                    .slow_connecting(SLOW_CONNECTING, Duration::ZERO);
            }
        };
        let world = world(deployment.clone(), slow).await;
        pass(millis(3_000)).await;
        // Servers that were discovered are connected to by the first call.
        let start = world.service.recovery().await;
        assert!(start <= 2 * SLOW_CONNECTING, "{deployment}: {start:?}");
        pass(millis(2_000)).await;
        assert_eq!(
            world.service.ask("error", "at the start").await.verdict,
            Verdict::Ok,
            "{deployment}"
        );
        world.server.fail(Fault::RefuseConnections);
        for call in 0..10 {
            let _ = world.service.ask("error", &format!("outage {call}")).await;
        }
        assert_eq!(
            world.service.metric("tollgate_store_breaker_open"),
            1,
            "{deployment}"
        );
        pass(millis(5_000)).await;
        world.server.recover();
        // A probe, and the calls' own connection.
        let recovery = world.service.recovery().await;
        assert!(
            recovery <= RECOVERY_MAX + 3 * SLOW_CONNECTING,
            "{deployment}: {recovery:?}"
        );
        pass(millis(2_000)).await;
        assert_eq!(
            world.service.ask("error", "after the outage").await.verdict,
            Verdict::Ok,
            "{deployment}"
        );
        assert_eq!(
            world.service.metric("tollgate_store_breaker_open"),
            0,
            "{deployment}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_fleet_whose_handshakes_queue_up_is_served() {
    const PROCESSES: usize = 30;
    const HANDSHAKE: Duration = millis(50);
    let clock = Clock::starting_at(START);
    let network = Network::new(clock.clone());
    let server = network.server(ADDRESS);
    server.slow_connecting(Duration::ZERO, HANDSHAKE);
    let tls = || Deployment::Single(address(&format!("rediss://{ADDRESS}")));
    let mut fleet: Vec<_> = (0..PROCESSES)
        .map(|_| Service::new(&network, tls(), clock.clone()))
        .collect();
    for service in &mut fleet {
        service.start().await;
    }
    pass(millis(10_000)).await;
    for (number, service) in fleet.iter().enumerate() {
        assert_eq!(
            service.ask("error", &format!("{number}")).await.verdict,
            Verdict::Ok,
            "process {number}"
        );
    }
    // Each has one connection for calls, a probe and two for heartbeats, and few attempts beside
    // them.
    let attempts = server.attempts();
    assert!(attempts <= 8 * PROCESSES, "{attempts} attempts");
}

#[tokio::test(start_paused = true)]
async fn a_connection_attempt_runs_to_its_end_and_at_most_one_more_is_beside_it() {
    let world = world(single(), |network| {
        network
            .server(ADDRESS)
            .slow_connecting(millis(9_500), Duration::ZERO);
    })
    .await;
    pass(millis(9_000)).await;
    // The calls' connection, the probe's, and the one that listens for heartbeats; the latter two
    // have a fresh one every 0.7 to 0.9 s.
    let attempts = world.server.attempts();
    assert!(attempts <= 3 + 2 * 14, "{attempts} attempts");
    assert_eq!(
        world.service.metric("tollgate_store_probes_failed_total"),
        0
    );
    pass(millis(1_000)).await;
    assert_eq!(world.service.ask("error", "v").await.verdict, Verdict::Ok);
}

#[tokio::test(start_paused = true)]
async fn refused_probes_back_off_to_about_a_second() {
    let world = world(single(), |network| {
        network.server(ADDRESS).fail(Fault::RefuseConnections);
    })
    .await;
    pass(millis(1_000)).await;
    let first = world.server.attempts();
    assert!(
        (4..=8).contains(&first),
        "{first} attempts in the first second"
    );
    pass(millis(60_000)).await;
    let later = world.server.attempts() - first;
    assert!((60..=90).contains(&later), "{later} attempts in a minute");
    world.server.recover();
    assert!(world.service.recovery().await <= RECOVERY_MAX);
}

#[tokio::test(start_paused = true)]
async fn a_demoted_server_is_left_as_soon_as_its_name_leads_to_another() {
    for error in MISPLACED {
        let world = world(single(), |_| {}).await;
        assert_eq!(
            world.service.ask("error", "start").await.verdict,
            Verdict::Ok
        );
        world.server.fail(Fault::Error(error));
        let called = world
            .service
            .ask_within("error", "demoted", Some(GRPC_TIMEOUT))
            .await;
        assert_eq!(
            called.verdict,
            Verdict::Error(StoreError::Rejected),
            "{error}"
        );
        assert_eq!(world.call_for(millis(3_000)).await, 0, "{error}");
        let other = world.network.server(OTHER);
        world.network.repoint(ADDRESS, &other);
        let _ = world.call_for(RECOVERY_MAX).await;
        assert_eq!(
            world.service.ask("error", "v").await.verdict,
            Verdict::Ok,
            "{error}"
        );
        assert_eq!(
            (world.server.hits("d_error_v_"), other.hits("d_error_v_")),
            (0, 1),
            "{error}"
        );
        // Heartbeats have moved, too.
        pass(millis(4_000)).await;
        assert!(other.received("PUBLISH") > 0, "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stays_demoted_is_connected_to_about_once_a_second() {
    for error in MISPLACED {
        let world = world(single(), |_| {}).await;
        let traffic = world.service.traffic();
        pass(millis(3_000)).await;
        world.server.fail(Fault::Error(error));
        let before = world.server.attempts();
        pass(millis(10_000)).await;
        let attempts = world.server.attempts() - before;
        assert!(
            (9..=15).contains(&attempts),
            "{error}: {attempts} attempts in ten seconds"
        );
        traffic.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_is_out_of_memory_is_not_looked_up_more_often() {
    let world = world(cluster(&[ADDRESS]), |_| {}).await;
    assert_eq!(
        world.service.ask("error", "start").await.verdict,
        Verdict::Ok
    );
    // The first look-up is over the connection to a seed.
    pass(millis(11_000)).await;
    world.server.fail(Fault::Error(OOM));
    let (look_ups, attempts) = (world.server.received(SLOTS), world.server.attempts());
    assert_eq!(world.call_for(millis(60_000)).await, 0);
    let (look_ups, attempts) = (
        world.server.received(SLOTS) - look_ups,
        world.server.attempts() - attempts,
    );
    assert!(
        (5..=9).contains(&look_ups),
        "{look_ups} look-ups in a minute"
    );
    assert_eq!(attempts, 0, "over the same connection");
}

#[tokio::test(start_paused = true)]
async fn look_ups_back_off_while_a_node_is_lost_and_keep_their_connection() {
    let lost = |network: &Network| {
        for server in [ADDRESS, OTHER] {
            network.server(server).reply(
                SLOTS,
                Reply::cluster_slots(&[(0, 8_000, ADDRESS), (8_001, 16_383, OTHER)]),
            );
            network
                .server(server)
                .reply("CLUSTER INFO", Reply::text("cluster_state:ok\r\n"));
        }
        network.server(OTHER).fail(Fault::RefuseConnections);
    };
    let world = world(cluster(&[ADDRESS]), lost).await;
    let _ = world.call_for(millis(3_000)).await;
    let (look_ups, attempts) = (world.server.received(SLOTS), world.server.attempts());
    let made = world
        .service
        .metric("tollgate_store_connections_total{pool=\"main\"}");
    pass(millis(60_000)).await;
    let look_ups = world.server.received(SLOTS) - look_ups;
    assert!(
        (60..=85).contains(&look_ups),
        "{look_ups} look-ups in a minute"
    );
    assert_eq!(
        world.server.attempts(),
        attempts,
        "over the same connection"
    );
    assert_eq!(
        world
            .service
            .metric("tollgate_store_connections_total{pool=\"main\"}"),
        made
    );
}

#[tokio::test(start_paused = true)]
async fn redirections_that_do_not_end_look_the_slots_up_about_once_a_second() {
    let world = world(cluster(&[ADDRESS]), |_| {}).await;
    pass(millis(1_000)).await;
    for slot in 0..16_384 {
        world.server.redirect(
            slot,
            Some(crate::support::scripted_redis::Redirect::Moved(
                ADDRESS.to_owned(),
            )),
        );
    }
    let look_ups = world.server.received(SLOTS);
    let _ = world.call_for(millis(20_000)).await;
    let look_ups = world.server.received(SLOTS) - look_ups;
    assert!(
        (15..=35).contains(&look_ups),
        "{look_ups} look-ups in twenty seconds"
    );
}
