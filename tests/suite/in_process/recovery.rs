//! How connections are made again, and servers looked up, while a fault lasts: soon enough, and not
//! too often.

use std::time::Duration;

use tollgate::limits::check::StoreError;
use tollgate::store::redis::topology::deployment::Deployment;

use crate::support::in_process::{
    ADDRESS, GRPC_TIMEOUT, RECOVERY_MAX, Service, Verdict, address, cluster, millis, network, pass,
    sentinel, single,
};
use crate::support::scripted_redis::{
    Fault, LOADING, MASTER_DOWN, Network, OOM, READ_ONLY, Redirect, Reply,
};

/// Longer than any probe once took at most.
const SLOW_CONNECTING: Duration = millis(600);
const SENTINEL: &str = "10.0.1.1:26379";
const OTHER: &str = "10.0.0.2:6379";
const SLOTS: &str = "CLUSTER SLOTS";
/// What a server replies that another one has replaced.
const MISPLACED: [&str; 3] = [READ_ONLY, LOADING, MASTER_DOWN];

/// A service on this deployment, whose servers are all at [`ADDRESS`], with its background tasks.
async fn start(deployment: Deployment, prepare: impl Fn(&Network)) -> Service {
    let network = network();
    network.server(ADDRESS).serve_slots(&[(0, 16_383, ADDRESS)]);
    network.server(SENTINEL).reply("SENTINEL GET-MASTER-ADDR-BY-NAME", Reply::master(ADDRESS));
    prepare(&network);
    let mut service = Service::new(&network, deployment);
    service.start().await;
    service
}

/// One call every 10 ms, each to a counter of its own, for this long. Returns how many Redis
/// decided.
async fn call_for(service: &Service, time: Duration) -> usize {
    let mut counted = 0;
    for number in 0..time.as_millis() / 10 {
        let value = format!("call {number}");
        let called = service.ask_within("error", &value, Some(GRPC_TIMEOUT)).await;
        counted += usize::from(called.verdict == Verdict::Ok);
        pass(millis(10)).await;
    }
    counted
}

/// Redis counts a hit on the counter of this value.
async fn assert_counts(service: &Service, value: &str) {
    let verdict = service.ask("error", value).await.verdict;
    assert_eq!(verdict, Verdict::Ok, "{value}");
}

#[tokio::test(start_paused = true)]
async fn servers_that_are_slow_to_connect_to_are_used() {
    let deployments = [single(), sentinel(&[SENTINEL]), cluster(&[ADDRESS])];
    for deployment in deployments {
        let slow = |network: &Network| {
            for server in [ADDRESS, SENTINEL] {
                network.server(server).slow_connecting(SLOW_CONNECTING, Duration::ZERO);
            }
        };
        let service = start(deployment.clone(), slow).await;
        pass(millis(3_000)).await;
        // Servers that were discovered are connected to by the first call.
        let start = service.recovery().await;
        assert!(start <= 2 * SLOW_CONNECTING, "{deployment}: {start:?}");
        pass(millis(2_000)).await;
        assert_counts(&service, &format!("{deployment} counts")).await;
        service.server.fail(Fault::RefuseConnections);
        for call in 0..10 {
            let _ = service.ask("error", &format!("outage {call}")).await;
        }
        assert!(service.is_open(), "{deployment}");
        pass(millis(5_000)).await;
        service.server.recover();
        // A probe, and the calls' own connection, behind attempts that began in the fault.
        let recovery = service.recovery().await;
        assert!(recovery <= RECOVERY_MAX + 4 * SLOW_CONNECTING, "{deployment}: {recovery:?}");
        pass(millis(2_000)).await;
        assert_counts(&service, &format!("{deployment} counts")).await;
        assert!(!service.is_open(), "{deployment}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_fleet_whose_handshakes_queue_up_is_served() {
    const PROCESSES: usize = 30;
    const HANDSHAKE: Duration = millis(50);
    let network = network();
    let server = network.server(ADDRESS);
    server.slow_connecting(Duration::ZERO, HANDSHAKE);
    let tls = || Deployment::Single(address(&format!("rediss://{ADDRESS}")));
    let mut fleet: Vec<_> = (0..PROCESSES).map(|_| Service::new(&network, tls())).collect();
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
    let service = start(single(), |network| {
        network.server(ADDRESS).slow_connecting(millis(9_500), Duration::ZERO);
    })
    .await;
    pass(millis(9_000)).await;
    // The calls' connection, the probe's, and the one that listens for heartbeats; the latter two
    // have a fresh one every 0.7 to 0.9 s.
    let attempts = service.server.attempts();
    assert!(attempts <= 3 + 2 * 14, "{attempts} attempts");
    assert_eq!(service.metric("tollgate_store_probes_failed_total"), 0);
    pass(millis(1_000)).await;
    assert_counts(&service, "start").await;
}

#[tokio::test(start_paused = true)]
async fn refused_probes_back_off_to_about_a_second() {
    let service = start(single(), |network| {
        network.server(ADDRESS).fail(Fault::RefuseConnections);
    })
    .await;
    pass(millis(1_000)).await;
    let first = service.server.attempts();
    assert!((4..=8).contains(&first), "{first} attempts in the first second");
    pass(millis(60_000)).await;
    let later = service.server.attempts() - first;
    assert!((60..=90).contains(&later), "{later} attempts in a minute");
    service.server.recover();
    assert!(service.recovery().await <= RECOVERY_MAX);
}

#[tokio::test(start_paused = true)]
async fn a_demoted_server_is_left_as_soon_as_its_name_leads_to_another() {
    for error in MISPLACED {
        let service = start(single(), |_| {}).await;
        assert_counts(&service, "start").await;
        service.server.fail(Fault::Error(error));
        let called = service.ask_within("error", "demoted", Some(GRPC_TIMEOUT)).await;
        assert_eq!(called.verdict, Verdict::Error(StoreError::Rejected), "{error}");
        assert_eq!(call_for(&service, millis(3_000)).await, 0, "{error}");
        let other = service.network.server(OTHER);
        service.network.repoint(ADDRESS, &other);
        let _ = call_for(&service, RECOVERY_MAX).await;
        assert_counts(&service, "v").await;
        assert_eq!(
            (service.server.hits("d_error_v_"), other.hits("d_error_v_")),
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
        let service = start(single(), |_| {}).await;
        let traffic = service.traffic();
        pass(millis(3_000)).await;
        service.server.fail(Fault::Error(error));
        let before = service.server.attempts();
        pass(millis(10_000)).await;
        let attempts = service.server.attempts() - before;
        assert!((9..=15).contains(&attempts), "{error}: {attempts} attempts in ten seconds");
        traffic.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_is_out_of_memory_is_not_looked_up_more_often() {
    let service = start(cluster(&[ADDRESS]), |_| {}).await;
    assert_counts(&service, "start").await;
    // The first look-up is over the connection to a seed.
    pass(millis(11_000)).await;
    service.server.fail(Fault::Error(OOM));
    let look_ups = service.server.received(SLOTS);
    let attempts = service.server.attempts();
    assert_eq!(call_for(&service, millis(60_000)).await, 0);
    let (look_ups, attempts) =
        (service.server.received(SLOTS) - look_ups, service.server.attempts() - attempts);
    assert!((5..=9).contains(&look_ups), "{look_ups} look-ups in a minute");
    assert_eq!(attempts, 0, "over the same connection");
}

#[tokio::test(start_paused = true)]
async fn look_ups_back_off_while_a_node_is_lost_and_keep_their_connection() {
    let lost = |network: &Network| {
        for server in [ADDRESS, OTHER] {
            let server = network.server(server);
            server.serve_slots(&[(0, 8_000, ADDRESS), (8_001, 16_383, OTHER)]);
        }
        network.server(OTHER).fail(Fault::RefuseConnections);
    };
    let service = start(cluster(&[ADDRESS]), lost).await;
    let _ = call_for(&service, millis(3_000)).await;
    let look_ups = service.server.received(SLOTS);
    let attempts = service.server.attempts();
    let made = service.metric("tollgate_store_connections_total{pool=\"main\"}");
    pass(millis(60_000)).await;
    let look_ups = service.server.received(SLOTS) - look_ups;
    assert!((60..=85).contains(&look_ups), "{look_ups} look-ups in a minute");
    assert_eq!(service.server.attempts(), attempts, "over the same connection");
    assert_eq!(service.metric("tollgate_store_connections_total{pool=\"main\"}"), made);
}

#[tokio::test(start_paused = true)]
async fn redirections_that_do_not_end_look_the_slots_up_about_once_a_second() {
    let service = start(cluster(&[ADDRESS]), |_| {}).await;
    pass(millis(1_000)).await;
    for slot in 0..16_384 {
        let moved = Redirect::Moved(ADDRESS.to_owned());
        service.server.redirect(slot, Some(moved));
    }
    let look_ups = service.server.received(SLOTS);
    let _ = call_for(&service, millis(20_000)).await;
    let look_ups = service.server.received(SLOTS) - look_ups;
    assert!((15..=35).contains(&look_ups), "{look_ups} look-ups in twenty seconds");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_out_of_memory_gets_one_connection_a_second() {
    let service = Service::started().await;
    let opened = service.server.opened();
    service.server.fail(Fault::Error(OOM));
    let traffic = service.traffic();
    pass(millis(12_000)).await;
    traffic.finish().await;
    let opened = service.server.opened() - opened;
    // One at each end.
    assert!(opened <= 13, "{opened} connections in 12 s");
}
