//! Leases while Redis does not answer: what is held is used, then the policy of the rule begins.

use std::time::Duration;

use crate::local_share::{persistent, whole};
use crate::support::proxy::{Fault, Proxy};
use crate::support::redis::RedisProcess;
use crate::support::{TestServer, eventually, request};
use crate::system::leases::GIVEN_BACK_AFTER;
use crate::system::leases::fleet::{Fleet, HELD, leased, per_year, replica};
use crate::system::leases::load::Load;

const LIMIT: u64 = 3_000;
/// Of each of two processes, before the outage.
const CALLS: u64 = 150;

/// Every process learns what is used, by a call that goes to Redis. Returns how many hits it gave
/// back.
async fn refund_one_each(fleet: &Fleet) -> u64 {
    let mut refund = request("d", &[&[("key", "hot")]]);
    refund.descriptors[0].is_negative_hits = true;
    for service in &fleet.services {
        service.client().await.answer(refund.clone()).await;
    }
    fleet.services.len() as u64
}

/// Two processes hold hits when Redis stops answering. They use these, and then their shares.
async fn held_hits_are_used_before_the_policy(
    begin: impl FnOnce(&mut RedisProcess, &Proxy),
    end: impl FnOnce(&mut RedisProcess, &Proxy),
) {
    let redis = persistent();
    let proxy = Proxy::before(redis.port());
    let url = format!("redis://{}", proxy.addr());
    let rules = leased(&per_year(LIMIT), ", lease: 60s");
    let start = || {
        let variables = [("REDIS_URL", &*url), ("STORE_TIMEOUT", "1s")];
        TestServer::with_rules(&rules).with_envs(&variables).start()
    };
    let mut fleet = Fleet::on(redis, vec![start(), start()]).await;
    let mut admitted = fleet.in_turn("hot", CALLS).await;
    assert_eq!(admitted, 2 * CALLS);
    eventually("no take is in flight", async || fleet.used("hot") == admitted + fleet.sum(HELD))
        .await;
    let refunded = refund_one_each(&fleet).await;
    let held: Vec<u64> = fleet.services.iter().map(|service| whole(service.metric(HELD))).collect();
    assert!(held.iter().all(|held| *held > 0), "{held:?}");

    begin(&mut fleet.redis, &proxy);
    let before = fleet.fallbacks();
    for (service, held) in held.iter().enumerate() {
        for call in 0..*held {
            assert_eq!(fleet.ask(service, "hot").await, 1, "call {call} of {held}");
        }
    }
    assert_eq!(fleet.fallbacks(), before, "a held hit was not used");
    admitted += held.iter().sum::<u64>();
    admitted += fleet.use_up("hot").await;
    assert!(fleet.fallbacks() > before, "Redis answered");
    eventually("Redis is given up", async || {
        fleet.in_turn("hot", 1).await;
        fleet.sum("tollgate_store_breaker_open") == 2
    })
    .await;
    assert_eq!(fleet.sum(HELD), 0);

    end(&mut fleet.redis, &proxy);
    eventually("Redis is used again", async || fleet.sum("tollgate_store_breaker_open") == 0).await;
    admitted += fleet.use_up("hot").await;
    // The second refund was not known to the first process.
    let unknown = fleet.sum("tollgate_store_ambiguous_total");
    let most = LIMIT + refunded + 1 + unknown;
    let least = LIMIT - fleet.hits("stranded") - unknown;
    assert!((least..=most).contains(&admitted), "{admitted}: {least} to {most}");
}

#[tokio::test]
async fn held_hits_are_used_while_redis_is_killed() {
    held_hits_are_used_before_the_policy(|redis, _| redis.kill(), |redis, _| redis.restart()).await;
}

#[tokio::test]
async fn held_hits_are_used_while_redis_does_not_answer_in_time() {
    for fault in [Fault::Stall, Fault::Delay(Duration::from_secs(3))] {
        let begin = |_: &mut RedisProcess, proxy: &Proxy| proxy.set(fault);
        let end = |_: &mut RedisProcess, proxy: &Proxy| proxy.set(Fault::None);
        held_hits_are_used_before_the_policy(begin, end).await;
    }
}

#[tokio::test]
async fn slow_redis_admits_the_limit_and_fails_no_call() {
    let redis = RedisProcess::start();
    let proxy = Proxy::before(redis.port());
    let rules = leased(&per_year(LIMIT), "");
    let url = format!("redis://{}", proxy.addr());
    let start = || replica(TestServer::with_rules(&rules), &url).start();
    let fleet = Fleet::on(redis, vec![start(), start()]).await;
    proxy.set(Fault::Delay(Duration::from_millis(200)));
    let load = Load::on(&fleet.services, "hot").await;
    load.is_over_limit(8).await;
    let answers = load.finish().await;
    assert_eq!(answers.failed, 0);
    assert!(fleet.hits("used") > LIMIT / 2, "few calls were leased");
    fleet.give_back(GIVEN_BACK_AFTER).await;
    proxy.set(Fault::None);
    assert_eq!(answers.admitted + fleet.use_up("hot").await, LIMIT);
}
