//! At most five requests in flight: who is inside, who is refused, and what becomes of a place that
//! nobody gives back.

use std::iter;
use std::time::Duration;

use crate::site::http::Request;
use crate::site::upstream::Answer;
use crate::site::{Builder, Counts, Outcome, Pending, Site, Store, Timed, eventually};

const PLACES: usize = 5;
/// For tests that wait until a lease is over. It may be over sooner than the test expects, so they
/// count no places that are taken.
const SHORT_LEASE: Duration = Duration::from_secs(2);
/// For tests that count places, and may take long.
const LONG_LEASE: Duration = Duration::from_secs(3_600);

/// What the first lines of concurrency.yaml promise to whoever tries it.
#[test]
fn of_eight_requests_at_once_three_are_refused() {
    for site in Site::with_every_store("concurrency.yaml") {
        let site = site.start();
        let requests: Vec<Pending> = (0..8).map(|_| report(&site)).collect();
        let replies: Vec<Timed> = requests.into_iter().map(Pending::finish).collect();
        assert_eq!(
            replies
                .iter()
                .filter(|reply| reply.outcome() == Outcome::Refused)
                .count(),
            3
        );
        site.adds_up_to(Counts {
            ok: 5,
            over_limit: 3,
            ..Counts::default()
        });
    }
}

#[test]
fn of_fifty_clients_five_are_inside_and_the_others_are_refused() {
    for site in with_every_store() {
        let site = site.start();
        let (inside, refused) = crowd(&site, 50);
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
        site.upstream().let_go(PLACES);
        for request in inside {
            assert_eq!(request.finish().outcome(), Outcome::Passed);
        }
        // Each asks when it comes and when it goes, the refused ones, too.
        has_been_asked(&site, 100);
        assert_eq!(room(&site), PLACES);
        assert_eq!(site.upstream().inside_max(), PLACES);
        site.adds_up_to(Counts {
            ok: 10,
            over_limit: 46,
            ..Counts::default()
        });
    }
}

#[test]
fn whoever_comes_again_and_again_finds_the_places_that_others_have_left() {
    for site in with_every_store() {
        let site = site.start();
        site.under_traffic(12, "/reports", |_| {
            for served in 1..=100 {
                is_inside(&site, PLACES);
                site.upstream().let_go(1);
                eventually("one is served", || {
                    (site.seen(Outcome::Passed) == served).then_some(())
                });
            }
            // Nobody is to wait for a test that is over.
            is_inside(&site, PLACES);
            site.upstream().answers("/reports", Answer::of(&[], "ok\n"));
            site.upstream().let_go(PLACES);
        });
        site.upstream()
            .answers("/reports", Answer::of(&[], "ok\n").later());
        assert_eq!(site.upstream().inside_max(), PLACES);
        assert!(site.seen(Outcome::Refused) > 0, "twelve clients do not fit");
        assert_eq!(settled_room(&site), PLACES);
    }
}

/// Envoy gives a place back when a request is over, whether it had one or not.
#[test]
fn what_a_refused_request_gives_back_is_nobody_elses_place() {
    for site in with_every_store() {
        let site = site.start();
        let inside: Vec<Pending> = (0..PLACES)
            .map(|_| enter(&site).expect("there is a place"))
            .collect();
        for refused in 1..=10 {
            enter(&site).expect_err("there is no place").was_refused();
            has_been_asked(&site, PLACES as u64 + 2 * refused);
        }
        assert_eq!(
            (inside.len(), site.upstream().inside_max()),
            (PLACES, PLACES)
        );
    }
}

#[test]
fn a_client_cannot_choose_the_name_of_its_place() {
    for site in with_every_store() {
        let site = site.start();
        let named = || site.begin(Request::get("/reports").with(&[("x-request-id", "mine")]));
        let requests: Vec<Pending> = (0..=PLACES).map(|_| named()).collect();
        eventually("one of them is refused", || {
            requests
                .iter()
                .any(|request| request.has_received("429"))
                .then_some(())
        });
        is_inside(&site, PLACES);
    }
}

/// Well before the lease is over.
#[test]
fn who_hangs_up_inside_has_given_its_place_back() {
    for site in with_every_store() {
        let site = site.start();
        for _ in 0..4 {
            let inside: Vec<Pending> = (0..PLACES)
                .map(|_| eventually("there is a place", || enter(&site).ok()))
                .collect();
            inside.into_iter().for_each(Pending::hang_up);
            is_inside(&site, 0);
        }
        assert_eq!(settled_room(&site), PLACES);
    }
}

/// Some of them before Envoy has its verdict: then it gives nothing back.
#[test]
fn after_twenty_clients_have_hung_up_at_once_there_is_room_when_the_lease_is_over() {
    for site in with_every_store() {
        let site = with_lease(site, SHORT_LEASE).start();
        (0..20).for_each(|_| report(&site).hang_up());
        settled_room(&site);
    }
}

#[test]
fn a_client_that_hangs_up_before_its_verdict_keeps_its_place_until_the_lease_is_over() {
    let site = with_lease(
        behind_a_gate(Site::with("concurrency.yaml").on(Store::Redis)),
        LONG_LEASE,
    )
    .start();
    // From now on there is a connection to Redis.
    assert_eq!(room(&site), PLACES);
    has_been_asked(&site, 12);

    site.redis().stop();
    let request = report(&site);
    eventually("Redis is asked", || {
        (site.tollgate.metric("tollgate_store_calls_in_flight") == 1).then_some(())
    });
    request.hang_up();
    eventually("Envoy has given up its question", || {
        (site.envoy.stats()["cluster.tollgate.upstream_rq_tx_reset"] == 1).then_some(())
    });
    site.redis().cont();
    assert_eq!(room(&site), PLACES - 1, "the place is not given back");
}

#[test]
fn holders_that_never_come_back_are_forgotten_when_their_lease_is_over() {
    for site in with_every_store() {
        let site = with_lease(site, SHORT_LEASE).start();
        let begin = site.clock.now();
        for name in 1..=PLACES {
            let holder = format!(
                r#"{{"domain": "concurrency", "descriptors": [{{"entries": [
                    {{"key": "route", "value": "reports"}}, {{"key": "request_id", "value": "lost-{name}"}}]}}]}}"#
            );
            assert_eq!(site.tollgate.json(&holder).status, 200);
        }
        let inside = eventually("there is a place", || enter(&site).ok());
        assert!(
            site.clock.now() > begin.plus(SHORT_LEASE.into()),
            "a place was given away before its lease was over"
        );
        inside.hang_up();
        settled_room(&site);
    }
}

#[test]
fn a_redis_that_comes_back_empty_forgets_who_is_inside_and_nothing_else() {
    let site = without_a_verdict_nobody_gets_in().start();
    let before: Vec<Pending> = (0..PLACES)
        .map(|_| enter(&site).expect("there is a place"))
        .collect();
    site.redis().kill();
    site.redis().start_again();
    let mut after = vec![enter_when_redis_counts(&site).expect("it has forgotten the others")];
    after.extend((1..PLACES).map(|_| enter(&site).expect("there is a place")));
    // What those of before give back they do not have.
    let asked = asked(&site);
    before.into_iter().for_each(Pending::hang_up);
    has_been_asked(&site, asked + PLACES as u64);
    enter(&site).expect_err("there is no place").was_refused();
    after.into_iter().for_each(Pending::hang_up);
    assert_eq!(settled_room(&site), PLACES);
}

#[test]
fn a_redis_that_comes_back_with_what_it_knew_still_knows_who_is_inside() {
    let site = without_a_verdict_nobody_gets_in().start();
    let inside: Vec<Pending> = (0..PLACES)
        .map(|_| enter(&site).expect("there is a place"))
        .collect();
    site.redis().save();
    site.redis().kill();
    site.redis().start_again();
    enter_when_redis_counts(&site)
        .expect_err("there is no place")
        .was_refused();
    inside.into_iter().for_each(Pending::hang_up);
    assert_eq!(settled_room(&site), PLACES);
}

/// A backend in which whoever gets in stays until the test lets it go.
fn behind_a_gate(site: Builder) -> Builder {
    site.with_upstream_that(|upstream| {
        upstream.answers("/reports", Answer::of(&[], "ok\n").later())
    })
}

fn with_every_store() -> impl Iterator<Item = Builder> {
    Site::with_every_store("concurrency.yaml")
        .map(|site| with_lease(behind_a_gate(site), LONG_LEASE))
}

/// With another lease than that of the sample.
fn with_lease(site: Builder, lease: Duration) -> Builder {
    let rules = include_str!("../../deploy/envoy/rules/concurrency.yaml");
    assert!(
        rules.contains("lease: 30s"),
        "there is no such lease in {rules}"
    );
    site.with_rules(
        "concurrency.yaml",
        &rules.replace("lease: 30s", &format!("lease: {lease:?}")),
    )
}

/// On a Redis without which every request fails: so every other answer is its own.
fn without_a_verdict_nobody_gets_in() -> Builder {
    let site = Site::with("concurrency.yaml")
        .on(Store::Redis)
        .with_env("ON_STORE_ERROR", "error");
    with_lease(behind_a_gate(site), LONG_LEASE)
        .with_instead("failure_mode_deny: false", "failure_mode_deny: true")
}

fn report(site: &Site) -> Pending<'_> {
    site.begin(Request::get("/reports"))
}

/// Sends requests all at once. Gives those that got in, and the replies to the others.
fn crowd(site: &Site, requests: usize) -> (Vec<Pending<'_>>, Vec<Timed>) {
    let before = site.upstream().inside();
    let requests: Vec<Pending> = (0..requests).map(|_| report(site)).collect();
    let answered = || {
        requests
            .iter()
            .filter(|request| request.has_received("HTTP"))
            .count()
    };
    eventually("each is inside or refused", || {
        (site.upstream().inside() - before + answered() == requests.len()).then_some(())
    });
    let (answered, inside): (Vec<_>, Vec<_>) = requests
        .into_iter()
        .partition(|request| request.has_received("HTTP"));
    (inside, answered.into_iter().map(Pending::finish).collect())
}

/// Sends a request. Gives it when it is inside, or else the reply.
fn enter(site: &Site) -> Result<Pending<'_>, Timed> {
    let (mut inside, mut answered) = crowd(site, 1);
    inside
        .pop()
        .ok_or_else(|| answered.pop().expect("it is one or the other"))
}

/// The same as soon as Redis is asked again.
fn enter_when_redis_counts(site: &Site) -> Result<Pending<'_>, Timed> {
    eventually("Redis counts", || {
        Some(enter(site)).filter(|entered| {
            !entered
                .as_ref()
                .is_err_and(|reply| reply.outcome() == Outcome::Failed)
        })
    })
}

/// How many get in until somebody is refused. They have left when it returns.
fn room(site: &Site) -> usize {
    let inside: Vec<Pending> = iter::repeat_with(|| enter(site))
        .take(3 * PLACES)
        .map_while(Result::ok)
        .collect();
    let room = inside.len();
    site.upstream().let_go(room);
    assert!(
        inside
            .into_iter()
            .all(|request| request.finish().outcome() == Outcome::Passed)
    );
    room
}

/// The same when everybody has left who is going to, and all places are there again; at least.
fn settled_room(site: &Site) -> usize {
    is_inside(site, 0);
    eventually("all places are there again", || {
        Some(room(site)).filter(|room| *room >= PLACES)
    })
}

fn is_inside(site: &Site, requests: usize) {
    eventually(&format!("{requests} are inside"), || {
        (site.upstream().inside() == requests).then_some(())
    });
}

/// How often Envoy has asked.
fn asked(site: &Site) -> u64 {
    site.tollgate
        .stat("ratelimit_server.ShouldRateLimit.total_requests")
}

fn has_been_asked(site: &Site, times: u64) {
    eventually(&format!("Tollgate is asked {times} times"), || {
        (asked(site) == times).then_some(())
    });
}
