//! A concurrency limit of five behind Envoy: admission, release, and slots that are not released.

use std::iter;

use crate::e2e::env::http::Request;
use crate::e2e::env::upstream::Answer;
use crate::e2e::env::{Builder, Env, Outcome, Pending, Store, Timed, look_for, look_until};

const SLOTS: usize = 5;
/// In place of the sample's: tests that count places may take long.
const LEASE_SECONDS: u64 = 3_600;

#[test]
fn five_of_fifty_clients_are_admitted() {
    for env in with_every_store() {
        let (inside, over_limit) = crowd(&env, 50);
        assert_eq!((inside.len(), over_limit.len()), (SLOTS, 45));
        for reply in over_limit {
            let reply = reply.was_over_limit().reply;
            assert_eq!(reply.header("x-ratelimit-limit"), Some("5"), "of no period");
            assert_eq!(reply.number("x-ratelimit-remaining"), 0);
            assert!(
                (1..=LEASE_SECONDS).contains(&reply.number("x-ratelimit-reset")),
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

/// Envoy gives a place back when a request is over, whether it had one or not.
#[test]
fn release_of_an_over_limit_request_frees_no_other_slot() {
    for env in with_every_store() {
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
        for _ in 0..4 {
            let inside: Vec<Pending> =
                (0..SLOTS).map(|_| look_for("there is a place", || enter(&env).ok())).collect();
            inside.into_iter().for_each(Pending::hang_up);
            is_inside(&env, 0);
        }
        assert_eq!(settled_free_slots(&env), SLOTS);
    }
}

#[test]
fn disconnect_before_the_verdict_holds_the_slot_until_its_lease_expires() {
    let env = behind_a_gate(Env::with("concurrency.yaml").on(Store::Redis));
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

/// With a backend that holds admitted requests until the test releases them.
fn behind_a_gate(env: Builder) -> Env {
    let rules = include_str!("../../../deploy/envoy/rules/concurrency.yaml");
    assert!(rules.contains("lease: 30s"), "there is no such lease in {rules}");
    let rules = rules.replace("lease: 30s", &format!("lease: {LEASE_SECONDS}s"));
    let env = env.with_rules("concurrency.yaml", &rules).with_upstream().start();
    env.upstream().answers("/reports", Answer::of(&[], "ok\n").later());
    env
}

fn with_every_store() -> impl Iterator<Item = Env> {
    Env::with_every_store("concurrency.yaml").map(behind_a_gate)
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
