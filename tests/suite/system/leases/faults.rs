//! Leases of processes that end or join, and of counters that Redis loses.

use crate::support::redis::RedisProcess;
use crate::support::{TestServer, eventually};
use crate::system::leases::GIVEN_BACK_AFTER;
use crate::system::leases::fleet::{Fleet, HELD, leased, per_year, replica};
use crate::system::leases::load::Load;

const LIMIT: u64 = 6_000;

async fn holds_hits(service: &TestServer) {
    eventually("the process holds hits", async || service.metric(HELD) > Some(0.0)).await;
}

#[tokio::test]
async fn killed_process_strands_at_most_its_share() {
    let mut fleet = Fleet::of(3, &per_year(LIMIT), "").await;
    let load = Load::on(&fleet.services, "hot").await;
    load.admits(LIMIT / 6).await;
    let killed = fleet.services.pop().expect("three services");
    holds_hits(&killed).await;
    // SIGKILL.
    drop(killed);
    load.is_over_limit(20).await;
    let answers = load.finish().await;
    fleet.give_back(GIVEN_BACK_AFTER).await;
    let admitted = answers.admitted + fleet.use_up("hot").await;
    assert!(admitted <= LIMIT, "{admitted}");
    // A call without an answer may have used a hit.
    let least = LIMIT - LIMIT / 30 - answers.failed;
    assert!(admitted >= least, "{admitted}, and {answers:?}");
}

#[tokio::test]
async fn process_that_drains_gives_all_hits_back() {
    let rules = leased(&per_year(1_000_000), ", lease: 60s");
    let mut fleet = Fleet::with_rules(3, &rules, &[("DRAIN_PERIOD", "1s")]).await;
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

#[tokio::test]
async fn processes_that_come_and_go_never_exceed_the_limit() {
    let redis = RedisProcess::start();
    let rules = leased(&per_year(LIMIT), "");
    let url = redis.url();
    let start = || {
        let service = replica(TestServer::with_rules(&rules), &url);
        service.with_env("DRAIN_PERIOD", "100ms").start()
    };
    let mut fleet = Fleet::on(redis, vec![start()]).await;
    let mut load = Load::on(&fleet.services, "hot").await;
    holds_hits(&fleet.services[0]).await;
    for _ in 0..3 {
        let joined = start();
        load.add(&joined, "hot").await;
        fleet.join(joined).await;
    }
    fleet.know_each_other().await;
    for service in &fleet.services {
        holds_hits(service).await;
    }
    for _ in 0..2 {
        let mut left = fleet.services.pop().expect("four services");
        left.signal("TERM");
        assert_eq!(left.exit_code().await, Some(0));
    }
    fleet.know_each_other().await;
    assert!(load.answers().admitted < LIMIT, "it was used up before");
    load.is_over_limit(20).await;
    let answers = load.finish().await;
    assert_eq!(answers.failed, 0);
    fleet.give_back(GIVEN_BACK_AFTER).await;
    assert_eq!(answers.admitted + fleet.use_up("hot").await, LIMIT);
}

#[tokio::test]
async fn nothing_is_taken_before_the_replicas_are_known() {
    let redis =
        RedisProcess::builder().with_user("user app on >secret ~* +@all resetchannels").start();
    let url = format!("redis://app:secret@{}", redis.address());
    let rules = leased(&per_year(LIMIT), "");
    let service = replica(TestServer::with_rules(&rules), &url).start();
    let mut client = service.client().await;
    for _ in 0..300 {
        client.ask("d", &[("key", "hot")]).await;
    }
    for outcome in ["granted", "partial", "none", "failed"] {
        let takes = format!("tollgate_lease_takes_total{{outcome=\"{outcome}\"}}");
        service.assert_metric(&takes, 0.0);
    }
    redis.text(&["ACL", "SETUSER", "app", "allchannels"]);
    service.metric_becomes("tollgate_replicas", 1.0).await;
    eventually("hits are taken", async || {
        client.ask("d", &[("key", "hot")]).await;
        service.metric(HELD) > Some(0.0)
    })
    .await;
}

#[tokio::test]
async fn flushed_counter_admits_the_limit_and_what_was_lost() {
    const FLUSH: &str = "local had = redis.call('GET', redis.call('KEYS', 'd_key_hot_*')[1]) redis.call('FLUSHALL') return had";
    let fleet = Fleet::of(3, &per_year(LIMIT), "").await;
    let load = Load::on(&fleet.services, "hot").await;
    load.admits(LIMIT / 4).await;
    let admitted = load.finish().await.admitted;
    assert!(fleet.sum(HELD) > 0, "nothing is held");
    let lost: u64 = fleet.redis.text(&["EVAL", FLUSH, "0"]).parse().expect("a count");
    let load = Load::on(&fleet.services[..2], "hot").await;
    load.is_over_limit(20).await;
    let answers = load.finish().await;
    fleet.give_back(GIVEN_BACK_AFTER).await;
    let admitted = admitted + answers.admitted + fleet.use_up("hot").await;
    let possible = LIMIT..=LIMIT + lost + LIMIT / 10;
    assert!(possible.contains(&admitted), "{admitted}: {possible:?}");
}
