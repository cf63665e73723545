//! Tollgate is restarted or away, or Redis stops, while clients send: every request gets its reply,
//! and every one is accounted for.

use std::time::Duration;

use crate::e2e::env::{Counts, Env, Outcome, Store, Timed, limit_of_a_day, look_until};

const CLIENTS: usize = 4;
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
        let [mut stopped_at, mut back_at] = [env.clock.now(); 2];
        let seen = env.under_traffic(CLIENTS, "/search", || {
            more(&env, Outcome::OverLimit);
            stopped_at = env.clock.now();
            env.tollgate.stop();
            more(&env, Outcome::Passed);
            env.tollgate.start_again();
            back_at = env.clock.now();
            more(&env, Outcome::OverLimit);
        });

        let passed = seen.into_iter().filter(|reply| reply.outcome() == Outcome::Passed);
        let passed: Vec<Timed> = passed.collect();
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
            passed.iter().filter(|reply| reply.received_at < drained_at).count(),
            4,
            "before Tollgate had drained"
        );
        assert!(
            passed.iter().filter(|reply| reply.sent_at > back_at).count() as u64 <= within - 4,
            "after Tollgate was back"
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

/// Tollgate denies before Envoy gives up, with the STORE_TIMEOUT of production.
#[test]
fn every_request_gets_a_verdict_while_redis_is_stopped() {
    let env = Env::with("envoy.yaml").on(Store::Redis);
    let env = env.with_env("STORE_TIMEOUT", "").with_env("ON_STORE_ERROR", "deny");
    let env = env.with_rules("web.yaml", &limit_of_a_day(1_000_000)).start();
    env.under_traffic(CLIENTS, "/search", || {
        more(&env, Outcome::Passed);
        env.redis().stop();
        more(&env, Outcome::OverLimit);
        env.redis().cont();
        more(&env, Outcome::Passed);
    });
    env.assert_verdicts(env.seen(Outcome::Passed), env.seen(Outcome::OverLimit));
}

/// Waits for some more requests of that outcome.
fn more(env: &Env, outcome: Outcome) {
    let enough = env.seen(outcome) + SOME;
    look_until(&format!("more requests are {outcome:?}"), || env.seen(outcome) >= enough);
}
