//! Tollgate is restarted, its rules are changed, or Redis goes, while clients keep sending: every
//! request gets its reply, and every one is accounted for.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::e2e::env::{Counts, Env, Glimpse, Outcome, Store, limit_of_a_day, look_until};
use crate::support::redis::RedisProcess;

const CLIENTS: usize = 4;
/// What answers while Redis is away. The fourth, `error`, is for those who want Envoy to decide.
const POLICIES: [&str; 3] = ["local", "allow", "deny"];
/// Enough to know that traffic flows, on either side of whatever happens.
const SOME: u64 = 50;

/// How many that are depends on how long it is away, so they are counted on both sides: what passed
/// beyond the limits is exactly what Envoy says it got no verdict for. None of it was before the
/// drain had ended, and none after Tollgate was ready again.
#[test]
fn restart_admits_only_requests_sent_while_it_is_down() {
    const DRAIN_PERIOD: Duration = Duration::from_millis(300);
    for env in Env::with_every_store("envoy.yaml") {
        let env = env.with_env("DRAIN_PERIOD", "300ms").start();
        let [mut stopped_at, mut ended_at, mut started_at, mut back_at] = [env.clock.now(); 4];
        let seen = env.under_traffic(CLIENTS, "/search", |_| {
            more(&env, Outcome::OverLimit);
            stopped_at = env.clock.now();
            env.tollgate.stop();
            ended_at = env.clock.now();
            more(&env, Outcome::Passed);
            started_at = env.clock.now();
            env.tollgate.start_again();
            back_at = env.clock.now();
            more(&env, Outcome::OverLimit);
        });

        let passed: Vec<Glimpse> = seen
            .into_iter()
            .flatten()
            .filter(|glimpse| glimpse.outcome == Outcome::Passed)
            .collect();
        // The limit is 4, and who used it is forgotten with the process, or known to Redis.
        let within = if env.store() == Store::Memory { 8 } else { 4 };
        let unasked = passed.len() as u64 - within;
        env.assert_counts(Counts {
            ok: within,
            over_limit: env.seen(Outcome::OverLimit),
            error: unasked,
            failure_mode_allowed: unasked,
        });
        let drained_at = stopped_at.plus(DRAIN_PERIOD.into());
        assert_eq!(
            passed.iter().filter(|glimpse| glimpse.received_at < drained_at).count(),
            4,
            "before Tollgate had drained"
        );
        assert!(
            passed.iter().filter(|glimpse| glimpse.sent_at > back_at).count() as u64 <= within - 4,
            "after Tollgate was back"
        );
        let [stopping, starting] =
            [ended_at.since(drained_at), back_at.since(started_at)].map(Duration::from);
        println!(
            "{unasked} requests passed unasked: stopping took {stopping:?} after the drain, and starting {starting:?}"
        );
    }
}

/// With `failure_mode_deny: true` they get an error instead.
#[test]
fn failure_mode_deny_rejects_requests_without_a_verdict() {
    for env in Env::with_every_store("envoy.yaml") {
        let env = env
            .with_instead("failure_mode_deny: false", "failure_mode_deny: true")
            .with_env("DRAIN_PERIOD", "0")
            .start();
        env.get("/search").passed_with(3);
        env.tollgate.stop();
        for _ in 0..3 {
            assert_eq!(env.get("/search").outcome(), Outcome::Failed);
        }
        env.tollgate.start_again();
        env.get("/search").passed_with(if env.store() == Store::Memory { 3 } else { 2 });
        env.assert_counts(Counts { ok: 2, error: 3, ..Counts::default() });
    }
}

#[test]
fn reload_loses_no_response() {
    const LIMITS: [u64; 5] = [1_000_000, 2_000_000, 3_000_000, 4_000_000, 5_000_000];
    for env in Env::with_every_store("envoy.yaml") {
        let env = env.with_rules("web.yaml", &limit_of_a_day(LIMITS[0])).start();
        let seen = env.under_traffic(CLIENTS, "/search", |traffic| {
            for limit in LIMITS {
                env.write_rules("web.yaml", &limit_of_a_day(limit));
                look_until("the new limit is in force", || traffic.latest_limit() == limit);
                more(&env, Outcome::Passed);
            }
            env.write_rules("web.yaml", "domain: [");
            look_until("invalid rules are rejected", || {
                env.tollgate.stat("ratelimit.service.config_load_error") > 0
            });
            more(&env, Outcome::Passed);
        });

        let sent: usize = seen.iter().map(Vec::len).sum();
        env.assert_verdicts(sent as u64, 0);
        for client in &seen {
            assert!(
                client.is_sorted_by_key(|glimpse| glimpse.limit),
                "no request gets old rules after new ones"
            );
        }
        let limits: BTreeSet<u64> = seen.iter().flatten().map(|glimpse| glimpse.limit).collect();
        assert_eq!(limits, LIMITS.into(), "invalid rules change no limit");
        // Counters outlive rules: what was used is used.
        env.get("/search").passed_with(LIMITS[4] - sent as u64 - 1);
    }
}

#[test]
fn every_request_gets_a_verdict_while_redis_is_killed() {
    for policy in POLICIES {
        every_request_gets_a_verdict(policy, RedisProcess::kill, RedisProcess::restart);
    }
}

#[test]
fn every_request_gets_a_verdict_while_redis_is_stopped() {
    for policy in POLICIES {
        every_request_gets_a_verdict(policy, |redis| redis.stop(), |redis| redis.cont());
    }
}

/// Envoy never has to do without a verdict, and what the verdict is, the policy says.
fn every_request_gets_a_verdict(
    policy: &str,
    begin: fn(&mut RedisProcess),
    end: fn(&mut RedisProcess),
) {
    let rules = "
domain: web
descriptors:
  - key: path
    descriptors:
      - key: remote_address
        rate_limit: {unit: year, requests_per_unit: 1000000}
";
    let env = Env::with("envoy.yaml").on(Store::Redis).with_default_store_timeout();
    let env = env.with_rules("web.yaml", rules).with_env("ON_STORE_ERROR", policy).start();
    let seen = env.under_traffic(2, "/search", |_| {
        more(&env, Outcome::Passed);
        begin(&mut env.redis());
        let before = env.tollgate.fallbacks(policy);
        look_until("the policy answers", || env.tollgate.fallbacks(policy) >= before + SOME);
        end(&mut env.redis());
        let hits = hits_in_redis(&env);
        look_until("Redis counts again", || hits_in_redis(&env) > hits);
        more(&env, Outcome::Passed);
    });

    let (passed, over_limit): (Vec<Glimpse>, Vec<Glimpse>) =
        seen.into_iter().flatten().partition(|glimpse| glimpse.outcome == Outcome::Passed);
    assert!(
        passed.iter().all(|glimpse| glimpse.limit > 0),
        "{policy}: a request passed without a verdict"
    );
    // The limit is never reached: only on_store_error rejects.
    let by_policy = if policy == "deny" { env.tollgate.fallbacks(policy) } else { 0 };
    assert_eq!(over_limit.len() as u64, by_policy, "{policy}");
    env.assert_verdicts(passed.len() as u64, over_limit.len() as u64);
}

/// How many hits Redis has counted in all windows that it knows.
fn hits_in_redis(env: &Env) -> u64 {
    let redis = env.redis();
    let keys: Vec<String> = redis.command(&["KEYS", "*"]);
    let hits = keys.iter().map(|key| redis.command::<Option<u64>>(&["GET", key]));
    hits.flatten().sum()
}

/// Waits for some more requests of that outcome.
fn more(env: &Env, outcome: Outcome) {
    let enough = env.seen(outcome) + SOME;
    look_until(&format!("more requests are {outcome:?}"), || env.seen(outcome) >= enough);
}
