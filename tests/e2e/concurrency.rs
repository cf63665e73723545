//! At most five requests in flight: who is inside, who is refused, and what becomes of a place that
//! nobody gives back.

use std::iter;
use std::time::Duration;

use crate::env::http::Request;
use crate::env::upstream::Answer;
use crate::env::{Builder, Counts, Env, Outcome, Pending, Store, Timed, eventually};

const PLACES: usize = 5;
/// For tests that wait until a lease is over. It may be over sooner than the test expects, so they
/// count no places that are taken.
const SHORT_LEASE: Duration = Duration::from_secs(2);
/// For tests that count places, and may take long.
const LONG_LEASE: Duration = Duration::from_secs(3_600);

/// What the first lines of concurrency.yaml promise to whoever tries it.
#[test]
fn of_eight_requests_at_once_three_are_refused() {
    for env in Env::with_every_store("concurrency.yaml") {
        let env = env.start();
        let requests: Vec<Pending> = (0..8).map(|_| report(&env)).collect();
        let replies: Vec<Timed> = requests.into_iter().map(Pending::finish).collect();
        assert_eq!(
            replies
                .iter()
                .filter(|reply| reply.outcome() == Outcome::Refused)
                .count(),
            3
        );
        env.adds_up_to(Counts {
            ok: 5,
            over_limit: 3,
            ..Counts::default()
        });
    }
}

#[test]
fn of_fifty_clients_five_are_inside_and_the_others_are_refused() {
    for env in with_every_store() {
        let env = env.start();
        let (inside, refused) = crowd(&env, 50);
        assert_eq!((inside.len(), refused.len()), (PLACES, 45));
        for reply in refused {
            let reply = reply.was_refused().reply;
            assert_eq!(reply.header("x-ratelimit-limit"), Some("5"), "of no period");
            assert_eq!(reply.number("x-ratelimit-remaining"), 0);
            assert!(
                (1..=LONG_LEASE.as_secs()).contains(&reply.number("x-ratelimit-reset")),
                "until a lease is over: {reply:?}"
            );
        }
        env.upstream().let_go(PLACES);
        for request in inside {
            assert_eq!(request.finish().outcome(), Outcome::Passed);
        }
        // Each asks when it comes and when it goes, the refused ones, too.
        has_been_asked(&env, 100);
        assert_eq!(room(&env), PLACES);
        assert_eq!(env.upstream().inside_max(), PLACES);
        env.adds_up_to(Counts {
            ok: 10,
            over_limit: 46,
            ..Counts::default()
        });
    }
}

#[test]
fn whoever_comes_again_and_again_finds_the_places_that_others_have_left() {
    for env in with_every_store() {
        let env = env.start();
        env.under_traffic(12, "/reports", |_| {
            for served in 1..=100 {
                is_inside(&env, PLACES);
                env.upstream().let_go(1);
                eventually("one is served", || {
                    (env.seen(Outcome::Passed) == served).then_some(())
                });
            }
            // Nobody is to wait for a test that is over.
            is_inside(&env, PLACES);
            env.upstream().answers("/reports", Answer::of(&[], "ok\n"));
            env.upstream().let_go(PLACES);
        });
        env.upstream()
            .answers("/reports", Answer::of(&[], "ok\n").later());
        assert_eq!(env.upstream().inside_max(), PLACES);
        assert!(env.seen(Outcome::Refused) > 0, "twelve clients do not fit");
        assert_eq!(settled_room(&env), PLACES);
    }
}

/// Envoy gives a place back when a request is over, whether it had one or not.
#[test]
fn what_a_refused_request_gives_back_is_nobody_elses_place() {
    for env in with_every_store() {
        let env = env.start();
        let inside: Vec<Pending> = (0..PLACES)
            .map(|_| enter(&env).expect("there is a place"))
            .collect();
        for refused in 1..=10 {
            enter(&env).expect_err("there is no place").was_refused();
            has_been_asked(&env, PLACES as u64 + 2 * refused);
        }
        assert_eq!(
            (inside.len(), env.upstream().inside_max()),
            (PLACES, PLACES)
        );
    }
}

#[test]
fn a_client_cannot_choose_the_name_of_its_place() {
    for env in with_every_store() {
        let env = env.start();
        let named = || env.begin(Request::get("/reports").with(&[("x-request-id", "mine")]));
        let requests: Vec<Pending> = (0..=PLACES).map(|_| named()).collect();
        eventually("one of them is refused", || {
            requests
                .iter()
                .any(|request| request.has_received("429"))
                .then_some(())
        });
        is_inside(&env, PLACES);
    }
}

/// Well before the lease is over.
#[test]
fn who_hangs_up_inside_has_given_its_place_back() {
    for env in with_every_store() {
        let env = env.start();
        for _ in 0..4 {
            let inside: Vec<Pending> = (0..PLACES)
                .map(|_| eventually("there is a place", || enter(&env).ok()))
                .collect();
            inside.into_iter().for_each(Pending::hang_up);
            is_inside(&env, 0);
        }
        assert_eq!(settled_room(&env), PLACES);
    }
}

/// Some of them before Envoy has its verdict: then it gives nothing back.
#[test]
fn after_twenty_clients_have_hung_up_at_once_there_is_room_when_the_lease_is_over() {
    for env in with_every_store() {
        let env = with_lease(env, SHORT_LEASE).start();
        (0..20).for_each(|_| report(&env).hang_up());
        settled_room(&env);
    }
}

#[test]
fn a_client_that_hangs_up_before_its_verdict_keeps_its_place_until_the_lease_is_over() {
    let env = with_lease(
        behind_a_gate(Env::with("concurrency.yaml").on(Store::Redis)),
        LONG_LEASE,
    )
    .start();
    // From now on there is a connection to Redis.
    assert_eq!(room(&env), PLACES);
    has_been_asked(&env, 12);

    env.redis().stop();
    let request = report(&env);
    eventually("Redis is asked", || {
        (env.tollgate.metric("tollgate_store_calls_in_flight") == 1).then_some(())
    });
    request.hang_up();
    eventually("Envoy has given up its question", || {
        (env.envoy.stats()["cluster.tollgate.upstream_rq_tx_reset"] == 1).then_some(())
    });
    env.redis().cont();
    assert_eq!(room(&env), PLACES - 1, "the place is not given back");
}

#[test]
fn holders_that_never_come_back_are_forgotten_when_their_lease_is_over() {
    for env in with_every_store() {
        let env = with_lease(env, SHORT_LEASE).start();
        let begin = env.clock.now();
        for name in 1..=PLACES {
            let holder = format!(
                r#"{{"domain": "concurrency", "descriptors": [{{"entries": [
                    {{"key": "route", "value": "reports"}}, {{"key": "request_id", "value": "lost-{name}"}}]}}]}}"#
            );
            assert_eq!(env.tollgate.json(&holder).status, 200);
        }
        let inside = eventually("there is a place", || enter(&env).ok());
        assert!(
            env.clock.now() > begin.plus(SHORT_LEASE.into()),
            "a place was given away before its lease was over"
        );
        inside.hang_up();
        settled_room(&env);
    }
}

#[test]
fn a_redis_that_comes_back_empty_forgets_who_is_inside_and_nothing_else() {
    let env = without_a_verdict_nobody_gets_in().start();
    let before: Vec<Pending> = (0..PLACES)
        .map(|_| enter(&env).expect("there is a place"))
        .collect();
    env.redis().kill();
    env.redis().start_again();
    let mut after = vec![enter_when_redis_counts(&env).expect("it has forgotten the others")];
    after.extend((1..PLACES).map(|_| enter(&env).expect("there is a place")));
    // What those of before give back they do not have.
    let asked = asked(&env);
    before.into_iter().for_each(Pending::hang_up);
    has_been_asked(&env, asked + PLACES as u64);
    enter(&env).expect_err("there is no place").was_refused();
    after.into_iter().for_each(Pending::hang_up);
    assert_eq!(settled_room(&env), PLACES);
}

#[test]
fn a_redis_that_comes_back_with_what_it_knew_still_knows_who_is_inside() {
    let env = without_a_verdict_nobody_gets_in().start();
    let inside: Vec<Pending> = (0..PLACES)
        .map(|_| enter(&env).expect("there is a place"))
        .collect();
    env.redis().save();
    env.redis().kill();
    env.redis().start_again();
    enter_when_redis_counts(&env)
        .expect_err("there is no place")
        .was_refused();
    inside.into_iter().for_each(Pending::hang_up);
    assert_eq!(settled_room(&env), PLACES);
}

/// A backend in which whoever gets in stays until the test lets it go.
fn behind_a_gate(env: Builder) -> Builder {
    env.with_upstream_that(|upstream| upstream.answers("/reports", Answer::of(&[], "ok\n").later()))
}

fn with_every_store() -> impl Iterator<Item = Builder> {
    Env::with_every_store("concurrency.yaml").map(|env| with_lease(behind_a_gate(env), LONG_LEASE))
}

/// With another lease than that of the sample.
fn with_lease(env: Builder, lease: Duration) -> Builder {
    let rules = include_str!("../../deploy/envoy/rules/concurrency.yaml");
    assert!(
        rules.contains("lease: 30s"),
        "there is no such lease in {rules}"
    );
    env.with_rules(
        "concurrency.yaml",
        &rules.replace("lease: 30s", &format!("lease: {lease:?}")),
    )
}

/// On a Redis without which every request fails: so every other answer is its own.
fn without_a_verdict_nobody_gets_in() -> Builder {
    let env = Env::with("concurrency.yaml")
        .on(Store::Redis)
        .with_env("ON_STORE_ERROR", "error");
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
    let answered = || {
        requests
            .iter()
            .filter(|request| request.has_received("HTTP"))
            .count()
    };
    eventually("each is inside or refused", || {
        (env.upstream().inside() - before + answered() == requests.len()).then_some(())
    });
    let (answered, inside): (Vec<_>, Vec<_>) = requests
        .into_iter()
        .partition(|request| request.has_received("HTTP"));
    (inside, answered.into_iter().map(Pending::finish).collect())
}

/// Sends a request. Gives it when it is inside, or else the reply.
fn enter(env: &Env) -> Result<Pending<'_>, Timed> {
    let (mut inside, mut answered) = crowd(env, 1);
    inside
        .pop()
        .ok_or_else(|| answered.pop().expect("it is one or the other"))
}

/// The same as soon as Redis is asked again.
fn enter_when_redis_counts(env: &Env) -> Result<Pending<'_>, Timed> {
    eventually("Redis counts", || {
        Some(enter(env)).filter(|entered| {
            !entered
                .as_ref()
                .is_err_and(|reply| reply.outcome() == Outcome::Failed)
        })
    })
}

/// How many get in until somebody is refused. They have left when it returns.
fn room(env: &Env) -> usize {
    let inside: Vec<Pending> = iter::repeat_with(|| enter(env))
        .take(3 * PLACES)
        .map_while(Result::ok)
        .collect();
    let room = inside.len();
    env.upstream().let_go(room);
    assert!(
        inside
            .into_iter()
            .all(|request| request.finish().outcome() == Outcome::Passed)
    );
    room
}

/// The same when everybody has left who is going to, and all places are there again; at least.
fn settled_room(env: &Env) -> usize {
    is_inside(env, 0);
    eventually("all places are there again", || {
        Some(room(env)).filter(|room| *room >= PLACES)
    })
}

fn is_inside(env: &Env, requests: usize) {
    eventually(&format!("{requests} are inside"), || {
        (env.upstream().inside() == requests).then_some(())
    });
}

/// How often Envoy has asked.
fn asked(env: &Env) -> u64 {
    env.tollgate
        .stat("ratelimit_server.ShouldRateLimit.total_requests")
}

fn has_been_asked(env: &Env, times: u64) {
    eventually(&format!("Tollgate is asked {times} times"), || {
        (asked(env) == times).then_some(())
    });
}
