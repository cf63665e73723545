//! Windows begin and end by the clock of Redis, from the first call of a process on.

use std::sync::Arc;

use tokio::task::JoinSet;
use tollgate::base::time::{Clock, Time};
use tollgate::store::redis::topology::deployment::Deployment;

use crate::support::in_process::{
    ADDRESS, NODES, RANGES, RECOVERY_MAX, START, Service, Verdict, ask, cluster, network, pass,
    sentinel, single,
};
use crate::support::scripted_redis::{Network, Reply, ScriptedRedis};

const LIMIT: usize = 10;
const MINUTE_MICROS: i64 = 60_000_000;
/// Into another window of an hour: every test starts at its 13th minute.
const AHEAD: i64 = 50 * MINUTE_MICROS;
/// How far the clocks of replicas are ahead of that of Redis.
const SKEWS: [i64; 5] = [0, AHEAD, -AHEAD, 3 * 1_440 * MINUTE_MICROS, -400 * 1_440 * MINUTE_MICROS];
const HOURLY: &str = "domain: d\ndescriptors:\n  - key: hour\n    rate_limit: {unit: hour, requests_per_unit: 10}\n    metadata: {tollgate: {on_store_error: error}}\n";

/// A replica whose clock is so far ahead, and which connects to these servers.
fn replica(skew: i64, deployment: Deployment, servers: &[(&str, Arc<ScriptedRedis>)]) -> Service {
    let at = Time::from_micros(START.as_micros().saturating_add_signed(skew));
    let network = Network::new(Clock::starting_at(at));
    for (address, server) in servers {
        network.repoint(address, server);
    }
    Service::with_rules(&network, deployment, HOURLY)
}

/// How many of a burst of calls are admitted. Redis decides all of them.
async fn admitted(service: &Service, value: &'static str, calls: usize) -> usize {
    let mut burst = JoinSet::new();
    for _ in 0..calls {
        let limiter = service.limiter.clone();
        burst.spawn(async move { ask(&limiter, "hour", value, None).await.verdict });
    }
    let verdicts = burst.join_all().await;
    let decided = |verdict: &Verdict| matches!(verdict, Verdict::Ok | Verdict::OverLimit);
    assert!(verdicts.iter().all(decided), "{verdicts:?}");
    let admitted = verdicts.iter().filter(|verdict| **verdict == Verdict::Ok);
    admitted.count()
}

#[tokio::test(start_paused = true)]
async fn first_burst_of_a_process_is_decided_by_the_clock_of_redis() {
    let server = network().server(ADDRESS);
    let servers = [(ADDRESS, server.clone())];
    let first = replica(0, single(), &servers);
    assert_eq!(admitted(&first, "v", LIMIT).await, LIMIT);
    for skew in SKEWS {
        // With probes, and without: then the first call reads the clock.
        for is_probed in [true, false] {
            let mut other = replica(skew, single(), &servers);
            if is_probed {
                other.start().await;
            }
            assert_eq!(admitted(&other, "v", 200).await, 0, "{skew} {is_probed}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn replicas_with_different_clocks_admit_the_limit_together() {
    let server = network().server(ADDRESS);
    let servers = [(ADDRESS, server)];
    let replicas = SKEWS.map(|skew| replica(skew, single(), &servers));
    let mut total = 0;
    for call in 0..10 * LIMIT {
        total += admitted(&replicas[call % replicas.len()], "v", 1).await;
    }
    assert_eq!(total, LIMIT);
}

#[tokio::test(start_paused = true)]
async fn first_burst_after_a_failover_is_decided_by_the_clock_of_the_new_master() {
    const SENTINEL: &str = "10.0.1.1:26379";
    const NEXT: &str = "10.0.0.2:6379";
    const MASTER: &str = "SENTINEL GET-MASTER-ADDR-BY-NAME";
    let network = network();
    let servers = [ADDRESS, NEXT, SENTINEL].map(|address| (address, network.server(address)));
    let [(_, first), (_, next), (_, sentinel_server)] = &servers;
    next.set_clock_ahead(AHEAD);
    sentinel_server.reply(MASTER, Reply::master(ADDRESS));
    let mut service = replica(0, sentinel(&[SENTINEL]), &servers);
    service.start().await;
    assert_eq!(admitted(&service, "v", LIMIT).await, LIMIT);
    sentinel_server.reply(MASTER, Reply::master(NEXT));
    first.reply("ROLE", Reply::role("slave"));
    // Calls come as soon as the new master is in use, without a pause.
    let mut total = 0;
    while next.decided() == 0 {
        total += admitted(&service, "w", 1).await;
        tokio::time::sleep(RECOVERY_MAX / 1_000).await;
    }
    let on_first = first.hits("d_hour_w");
    total += admitted(&service, "w", 200).await;
    pass(RECOVERY_MAX).await;
    total += admitted(&service, "w", 200).await;
    let on_first = usize::try_from(on_first).expect("few").min(LIMIT);
    assert_eq!(total - on_first, LIMIT, "on the new master");
}

#[tokio::test(start_paused = true)]
async fn first_bursts_on_a_cluster_are_decided_by_the_clocks_of_its_nodes() {
    let network = network();
    let servers = NODES.map(|address| (address, network.server(address)));
    for ((_, server), ahead) in servers.iter().zip([AHEAD, -AHEAD, 0]) {
        server.serve_slots(&RANGES);
        server.set_clock_ahead(ahead);
    }
    for value in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        let mut total = 0;
        for skew in SKEWS {
            let mut service = replica(skew, cluster(&NODES), &servers);
            service.start().await;
            total += admitted(&service, value, 200).await;
        }
        assert_eq!(total, LIMIT, "{value}");
    }
}
