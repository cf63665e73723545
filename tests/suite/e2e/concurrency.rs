//! A concurrency limit of five behind Envoy: admission, release, and slots that are not released.

use std::iter;
use std::time::Duration;

use crate::e2e::env::http::Request;
use crate::e2e::env::upstream::Answer;
use crate::e2e::env::{Builder, Env, Outcome, Pending, Store, Timed, look_for, look_until};

const SLOTS: usize = 5;
/// For tests that wait until a lease is over. It may be over sooner than the test expects, so they
/// count no places that are taken.
const SHORT_LEASE: Duration = Duration::from_secs(2);
/// For tests that count places, and may take long.
const LONG_LEASE: Duration = Duration::from_secs(3_600);

/// The example at the top of concurrency.yaml.
#[test]
fn three_of_eight_concurrent_requests_are_over_limit() {
    for env in Env::with_every_store("concurrency.yaml") {
        let env = env.start();
        let requests: Vec<Pending> = (0..8).map(|_| report(&env)).collect();
        let replies: Vec<Timed> = requests.into_iter().map(Pending::finish).collect();
        assert_eq!(replies.iter().filter(|reply| reply.outcome() == Outcome::OverLimit).count(), 3);
        env.assert_verdicts(5, 3);
    }
}

#[test]
fn five_of_fifty_clients_are_admitted() {
    for env in with_every_store() {
        let env = env.start();
        let (inside, over_limit) = crowd(&env, 50);
        assert_eq!((inside.len(), over_limit.len()), (SLOTS, 45));
        for reply in over_limit {
            let reply = reply.was_over_limit().reply;
            assert_eq!(reply.header("x-ratelimit-limit"), Some("5"), "of no period");
            assert_eq!(reply.number("x-ratelimit-remaining"), 0);
            assert!(
                (1..=LONG_LEASE.as_secs()).contains(&reply.number("x-ratelimit-reset")),
                "until a lease is over: {reply:?}"
            );
        }
        env.upstream().release(SLOTS);
        for request in inside {
            assert_eq!(request.finish().outcome(), Outcome::Passed);
        }
        // Envoy checks each at its start and at its end, over-limit ones too.
        has_been_asked(&env, 100);
        assert_eq!(free_slots(&env), SLOTS);
        assert_eq!(env.upstream().inside_max(), SLOTS);
        env.assert_verdicts(10, 46);
    }
}

#[test]
fn retrying_clients_get_released_slots() {
    for env in with_every_store() {
        let env = env.start();
        env.under_traffic(12, "/reports", |_| {
            for served in 1..=100 {
                is_inside(&env, SLOTS);
                env.upstream().release(1);
                look_until("one is served", || env.seen(Outcome::Passed) == served);
            }
            // No request waits for the backend.
            is_inside(&env, SLOTS);
            env.upstream().answers("/reports", Answer::of(&[], "ok\n"));
            env.upstream().release(SLOTS);
        });
        env.upstream().answers("/reports", Answer::of(&[], "ok\n").later());
        assert_eq!(env.upstream().inside_max(), SLOTS);
        assert!(env.seen(Outcome::OverLimit) > 0, "twelve clients do not fit");
        assert_eq!(settled_free_slots(&env), SLOTS);
    }
}

/// Envoy gives a place back when a request is over, whether it had one or not.
#[test]
fn release_of_an_over_limit_request_frees_no_other_slot() {
    for env in with_every_store() {
        let env = env.start();
        let inside: Vec<Pending> =
            (0..SLOTS).map(|_| enter(&env).expect("there is a place")).collect();
        for over_limit in 1..=10 {
            enter(&env).expect_err("there is no place").was_over_limit();
            has_been_asked(&env, SLOTS as u64 + 2 * over_limit);
        }
        assert_eq!((inside.len(), env.upstream().inside_max()), (SLOTS, SLOTS));
    }
}

#[test]
fn client_cannot_choose_its_holder_name() {
    for env in with_every_store() {
        let env = env.start();
        let named = || env.begin(Request::get("/reports").with(&[("x-request-id", "mine")]));
        let requests: Vec<Pending> = (0..=SLOTS).map(|_| named()).collect();
        look_until("one of them is over limit", || {
            requests.iter().any(|request| request.has_received("429"))
        });
        is_inside(&env, SLOTS);
    }
}

/// Well before the lease is over.
#[test]
fn disconnecting_client_releases_its_slot() {
    for env in with_every_store() {
        let env = env.start();
        for _ in 0..4 {
            let inside: Vec<Pending> =
                (0..SLOTS).map(|_| look_for("there is a place", || enter(&env).ok())).collect();
            inside.into_iter().for_each(Pending::hang_up);
            is_inside(&env, 0);
        }
        assert_eq!(settled_free_slots(&env), SLOTS);
    }
}

/// Some of them before Envoy has its verdict: then it gives nothing back.
#[test]
fn slots_of_twenty_disconnected_clients_expire_with_their_leases() {
    for env in with_every_store() {
        let env = with_lease(env, SHORT_LEASE).start();
        (0..20).for_each(|_| report(&env).hang_up());
        settled_free_slots(&env);
    }
}

#[test]
fn disconnect_before_the_verdict_holds_the_slot_until_its_lease_expires() {
    let env = with_lease(behind_a_gate(Env::with("concurrency.yaml").on(Store::Redis)), LONG_LEASE)
        .start();
    // From now on there is a connection to Redis.
    assert_eq!(free_slots(&env), SLOTS);
    has_been_asked(&env, 12);

    env.redis().stop();
    let request = report(&env);
    look_until("Redis is asked", || env.tollgate.metric("tollgate_store_calls_in_flight") == 1);
    request.hang_up();
    look_until("Envoy has given up its question", || {
        env.envoy.stats()["cluster.tollgate.upstream_rq_tx_reset"] == 1
    });
    env.redis().cont();
    assert_eq!(free_slots(&env), SLOTS - 1, "the slot is not released");
}

#[test]
fn holders_without_release_expire_with_their_leases() {
    for env in with_every_store() {
        let env = with_lease(env, SHORT_LEASE).start();
        let begin = env.clock.now();
        for name in 1..=SLOTS {
            let holder = format!(
                r#"{{"domain": "concurrency", "descriptors": [{{"entries": [
                    {{"key": "route", "value": "reports"}}, {{"key": "request_id", "value": "lost-{name}"}}]}}]}}"#
            );
            assert_eq!(env.tollgate.server().json(&holder).status, 200);
        }
        let inside = look_for("there is a place", || enter(&env).ok());
        assert!(
            env.clock.now() > begin.plus(SHORT_LEASE.into()),
            "a place was given away before its lease was over"
        );
        inside.hang_up();
        settled_free_slots(&env);
    }
}

#[test]
fn redis_restarted_empty_loses_holders_only() {
    let env = failure_mode_deny().start();
    let before: Vec<Pending> = (0..SLOTS).map(|_| enter(&env).expect("there is a place")).collect();
    env.redis().kill();
    env.redis().restart();
    let mut after = vec![enter_when_redis_counts(&env).expect("it has forgotten the others")];
    after.extend((1..SLOTS).map(|_| enter(&env).expect("there is a place")));
    // What those of before give back they do not have.
    let asked = env.asked();
    before.into_iter().for_each(Pending::hang_up);
    has_been_asked(&env, asked + SLOTS as u64);
    enter(&env).expect_err("there is no place").was_over_limit();
    after.into_iter().for_each(Pending::hang_up);
    assert_eq!(settled_free_slots(&env), SLOTS);
}

#[test]
fn redis_restarted_with_its_data_keeps_holders() {
    let env = failure_mode_deny().start();
    let inside: Vec<Pending> = (0..SLOTS).map(|_| enter(&env).expect("there is a place")).collect();
    env.redis().text(&["SAVE"]);
    env.redis().kill();
    env.redis().restart();
    enter_when_redis_counts(&env).expect_err("there is no place").was_over_limit();
    inside.into_iter().for_each(Pending::hang_up);
    assert_eq!(settled_free_slots(&env), SLOTS);
}

/// A backend that holds admitted requests until the test releases them.
fn behind_a_gate(env: Builder) -> Builder {
    env.with_upstream_that(|upstream| upstream.answers("/reports", Answer::of(&[], "ok\n").later()))
}

fn with_every_store() -> impl Iterator<Item = Builder> {
    Env::with_every_store("concurrency.yaml").map(|env| with_lease(behind_a_gate(env), LONG_LEASE))
}

/// With another lease than that of the sample.
fn with_lease(env: Builder, lease: Duration) -> Builder {
    let rules = include_str!("../../../deploy/envoy/rules/concurrency.yaml");
    assert!(rules.contains("lease: 30s"), "there is no such lease in {rules}");
    env.with_rules("concurrency.yaml", &rules.replace("lease: 30s", &format!("lease: {lease:?}")))
}

/// On a Redis without which every request fails: so every other answer is its own.
fn failure_mode_deny() -> Builder {
    let env = Env::with("concurrency.yaml").on(Store::Redis).with_env("ON_STORE_ERROR", "error");
    with_lease(behind_a_gate(env), LONG_LEASE)
        .with_instead("failure_mode_deny: false", "failure_mode_deny: true")
}

fn report(env: &Env) -> Pending<'_> {
    env.begin(Request::get("/reports"))
}

/// Sends requests all at once. Gives those that got in, and the replies to the others.
fn crowd(env: &Env, requests: usize) -> (Vec<Pending<'_>>, Vec<Timed>) {
    let before = env.upstream().inside();
    let requests: Vec<Pending> = (0..requests).map(|_| report(env)).collect();
    let answered = || requests.iter().filter(|request| request.has_received("HTTP")).count();
    look_until("each is admitted or over limit", || {
        env.upstream().inside() - before + answered() == requests.len()
    });
    let (answered, inside): (Vec<_>, Vec<_>) =
        requests.into_iter().partition(|request| request.has_received("HTTP"));
    (inside, answered.into_iter().map(Pending::finish).collect())
}

/// Sends a request. Gives it when it is inside, or else the reply.
fn enter(env: &Env) -> Result<Pending<'_>, Timed> {
    let (mut inside, mut answered) = crowd(env, 1);
    inside.pop().ok_or_else(|| answered.pop().expect("it is one or the other"))
}

/// The same as soon as Redis is asked again.
fn enter_when_redis_counts(env: &Env) -> Result<Pending<'_>, Timed> {
    look_for("Redis counts", || {
        Some(enter(env)).filter(|entered| {
            !entered.as_ref().is_err_and(|reply| reply.outcome() == Outcome::Failed)
        })
    })
}

/// Requests admitted until one is over limit. All have ended when it returns.
fn free_slots(env: &Env) -> usize {
    let inside: Vec<Pending> =
        iter::repeat_with(|| enter(env)).take(3 * SLOTS).map_while(Result::ok).collect();
    let free_slots = inside.len();
    env.upstream().release(free_slots);
    assert!(inside.into_iter().all(|request| request.finish().outcome() == Outcome::Passed));
    free_slots
}

/// The same once all released slots are free again, at least.
fn settled_free_slots(env: &Env) -> usize {
    is_inside(env, 0);
    look_for("all slots are free again", || {
        Some(free_slots(env)).filter(|free_slots| *free_slots >= SLOTS)
    })
}

fn is_inside(env: &Env, requests: usize) {
    look_until(&format!("{requests} are inside"), || env.upstream().inside() == requests);
}

fn has_been_asked(env: &Env, times: u64) {
    look_until(&format!("Tollgate is asked {times} times"), || env.asked() == times);
}
