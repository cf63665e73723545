//! Leases of processes that end, join, or lose Redis, and of counters that Redis loses.

use crate::leases::GIVEN_BACK_AFTER;
use crate::leases::fleet::{Fleet, leased, replica};
use crate::leases::load::Load;
use crate::support::redis::RedisProcess;
use crate::support::{TestServer, eventually};

/// A limit whose window does not end while a test runs.
fn limit(requests: u64) -> String {
    format!("rate_limit: {{unit: year, requests_per_unit: {requests}}}")
}

async fn holds_hits(service: &TestServer) {
    eventually("the process holds hits", async || {
        service.metric("tollgate_leased_hits") > Some(0.0)
    })
    .await;
}

/// Asks the services in turn until none of them admits any more.
async fn use_up(fleet: &Fleet, value: &str) -> u64 {
    let mut admitted = 0;
    loop {
        let mut round = 0;
        for service in 0..fleet.services.len() {
            round += fleet.ask(service, value).await;
        }
        admitted += round;
        if round == 0 {
            return admitted;
        }
    }
}

#[tokio::test]
async fn killed_process_strands_at_most_its_share() {
    const LIMIT: u64 = 6_000;
    let mut fleet = Fleet::of(3, &limit(LIMIT), "").await;
    let load = Load::on(&fleet.services, "hot").await;
    load.admits(LIMIT / 6).await;
    let killed = fleet.services.pop().expect("three services");
    holds_hits(&killed).await;
    // SIGKILL.
    drop(killed);
    load.is_over_limit(20).await;
    let answers = load.finish().await;
    fleet.give_back(GIVEN_BACK_AFTER).await;
    let admitted = answers.admitted + use_up(&fleet, "hot").await;
    assert!(admitted <= LIMIT, "{admitted}");
    // A call without an answer may have used a hit.
    let least = LIMIT - LIMIT / 30 - answers.failed;
    assert!(admitted >= least, "{admitted}, and {answers:?}");
}

#[tokio::test]
async fn process_that_drains_gives_all_hits_back() {
    let redis = RedisProcess::start();
    let (rules, url) = (leased(&limit(1_000_000), ", lease: 60s"), redis.url());
    let service = |_| replica(TestServer::with_rules(&rules), &url).with_env("DRAIN_PERIOD", "1s");
    let mut fleet = Fleet::on(redis, 3, service).await;
    let load = Load::on(&fleet.services, "hot").await;
    let mut drained = fleet.services.pop().expect("three services");
    holds_hits(&drained).await;
    drained.signal("TERM");
    assert_eq!(drained.exit_code().await, Some(0));
    load.admits(1_000).await;
    let answers = load.finish().await;
    assert_eq!((answers.failed, answers.over), (0, 0));
    for service in &mut fleet.services {
        holds_hits(service).await;
        service.signal("TERM");
        assert_eq!(service.exit_code().await, Some(0));
    }
    assert_eq!(fleet.used("hot"), answers.admitted);
}
