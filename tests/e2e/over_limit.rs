//! Over the limit a request waits for its turn, is served something cheap, or is refused with a text: what clients and backends see.

use std::thread;
use std::time::Duration;

use tollgate::time::{Span, Time};

use crate::site::http::Request;
use crate::site::plays::{in_time, until_in_time};
use crate::site::{Counts, Outcome, Pending, Site, Store, Timed, eventually};

const DAY: Span = Span::from_secs(86_400);

/// Five a second, and at most two seconds to wait: the first goes at once, and ten can wait.
#[test]
fn who_comes_too_soon_waits_for_its_turn_and_who_would_wait_too_long_is_refused() {
    const CLIENTS: usize = 20;
    const SERVED: u32 = 11;
    const INTERVAL: Duration = Duration::from_millis(200);
    /// How much later than its turn a reply may come, on a machine that is busy.
    const TOLERANCE: Duration = Duration::from_millis(150);
    for store in Store::ALL {
        until_in_time(|| {
            let site = Site::with("over-limit.yaml").alone().on(store).start();
            let replies: Vec<Timed> = thread::scope(|scope| {
                let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(|| site.get("/checkout"))).collect();
                clients.into_iter().map(|client| client.join().expect("every request gets a reply")).collect()
            });
            let sent = replies.iter().map(|reply| reply.sent_at);
            let (first, last) = sent.clone().min().zip(sent.max()).expect("there are some");
            let apart = last.since(first);
            in_time(Duration::from(apart) < TOLERANCE, || format!("{store:?}: the last was sent {apart} after the first"))?;
            let (mut served, refused): (Vec<_>, Vec<_>) = replies.into_iter().partition(|reply| reply.outcome() == Outcome::Passed);
            for reply in refused {
                let took = Duration::from(reply.received_at.since(reply.sent_at));
                in_time(took < INTERVAL, || format!("{store:?}: it took {took:?} to refuse one"))?;
                // The queue is two seconds long, and moves on every 200 ms.
                assert_eq!(reply.was_refused().reply.number("retry-after"), 1);
            }

            served.sort_by_key(|reply| reply.received_at);
            // Who is asked about later than it was sent may find room that had not been there.
            assert!(served.len() >= SERVED as usize, "{served:?}");
            in_time(served.len() == SERVED as usize, || format!("{store:?}: {} were served", served.len()))?;
            for (place, reply) in (0..).zip(&served) {
                let turn = |since: Time| since.plus((INTERVAL * place).into());
                assert!(reply.received_at >= turn(first), "number {place} was served before its turn: {reply:?}");
                let late = Duration::from(reply.received_at.since(turn(last)));
                in_time(late < TOLERANCE, || format!("{store:?}: number {place} was served {late:?} after its turn"))?;
            }
            site.adds_up_to(Counts { ok: SERVED.into(), over_limit: CLIENTS as u64 - u64::from(SERVED), ..Counts::default() });
            Ok(())
        });
    }
}

/// Envoy would go on without a verdict, and let them in. Of its second Tollgate keeps a fifth for what is late by itself.
#[test]
fn whose_turn_would_come_too_late_for_envoy_is_refused() {
    for store in Store::ALL {
        until_in_time(|| {
            let site = Site::with("over-limit.yaml").alone().on(store).with_instead("timeout: 3s", "timeout: 1s").start();
            let requests: Vec<Pending> = (0..10).map(|_| site.begin(Request::get("/checkout"))).collect();
            let replies: Vec<Timed> = requests.into_iter().map(Pending::finish).collect();
            let errors = site.envoy.stats().get("cluster.backend.ratelimit.error").copied().unwrap_or(0);
            in_time(errors == 0, || format!("{store:?}: {errors} had no verdict in time"))?;
            let served = replies.iter().filter(|reply| reply.outcome() == Outcome::Passed).count();
            // The fifth turn comes when those four fifths are over.
            in_time((4..=5).contains(&served), || format!("{store:?}: {served} were served"))?;
            site.adds_up_to(Counts { ok: served as u64, over_limit: 10 - served as u64, ..Counts::default() });
            Ok(())
        });
    }
}

/// Others may have been told of later slots meanwhile, and theirs could not be moved.
#[test]
fn who_hangs_up_while_it_waits_has_used_its_slot() {
    const INTERVAL: Span = Span::from_secs(1);
    let rules = include_str!("../../deploy/envoy/rules/over-limit.yaml");
    assert!(rules.contains("requests_per_unit: 5"), "nothing is limited to five in {rules}");
    let rules = rules.replace("requests_per_unit: 5", "requests_per_unit: 1");
    for store in Store::ALL {
        until_in_time(|| {
            let site = Site::with("over-limit.yaml").on(store).with_rules("over-limit.yaml", &rules).start();
            let waits =
                |count| eventually(&format!("{count} wait"), || (site.tollgate.metric("tollgate_queue_waiters") == count).then_some(()));
            let first = site.get("/checkout");
            let second = site.begin(Request::get("/checkout"));
            waits(1);
            second.hang_up();
            waits(0);
            let third = site.get("/checkout");
            let second_turn = first.sent_at.plus(INTERVAL);
            in_time(third.sent_at < second_turn, || format!("{store:?}: the second would have been served by now"))?;
            assert_eq!(third.outcome(), Outcome::Passed);
            assert!(third.received_at >= second_turn.plus(INTERVAL), "the third was served in place of the second: {third:?}");
            Ok(())
        });
    }
}

#[test]
fn beyond_its_limit_a_request_is_served_by_a_backend_that_is_told_so() {
    for site in Site::with_every_store("over-limit.yaml") {
        let site = site.with_upstream().start();
        for remaining in [1, 0] {
            let served = site.get("/offers").passed_with(remaining);
            assert_eq!(served.reply.header("x-over-limit"), None);
            assert_eq!(site.upstream().was_told("x-degraded"), None);
        }
        for _ in 0..2 {
            let degraded = site.get("/offers").passed_with(0);
            assert_eq!(degraded.reply.header("x-over-limit"), Some(r#"["offers"]"#));
            assert_eq!(degraded.reply.header("retry-after"), None);
            assert_eq!(site.upstream().was_told("x-degraded").as_deref(), Some("true"));
        }
        site.adds_up_to(Counts { ok: 4, ..Counts::default() });
    }
}

#[test]
fn the_sample_backend_gives_a_cheap_answer_where_it_is_told_to() {
    for site in Site::with_every_store("over-limit.yaml") {
        let site = site.start();
        let bodies: Vec<String> = (0..3).map(|_| site.get("/offers").reply.body).collect();
        assert_eq!(bodies, ["ok\n", "ok\n", "something cheap\n"]);
    }
}

#[test]
fn a_refusal_says_what_the_rule_says() {
    for site in Site::with_every_store("over-limit.yaml") {
        let site = site.start();
        assert_eq!(site.get("/export").passed_with(0).reply.body, "ok\n");
        let refused = site.get("/export").was_refused();
        assert_eq!(refused.reply.body, "one export a day: come back tomorrow\n");
        assert_eq!(refused.reply.header("content-type"), Some("text/plain"));
        refused.counts_down("retry-after", refused.end_of_window(DAY));
        let call = Request::get("/export").post("").with(&[("content-type", "application/grpc"), ("te", "trailers")]);
        assert_eq!(site.send(call).outcome(), Outcome::Refused);
    }
}
