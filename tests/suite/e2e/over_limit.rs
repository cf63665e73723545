//! Requests over the limit are queued, degraded, or rejected with a body: what clients and backends
//! see.

use std::thread;

use tollgate::base::time::Span;

use crate::e2e::env::http::Request;
use crate::e2e::env::{Env, Outcome, Timed};

const DAY: Span = Span::from_secs(86_400);

/// One a second, and at most two seconds to wait: the first is served at once, and two can wait.
#[test]
fn requests_over_the_limit_are_queued_or_rejected() {
    const CLIENTS: usize = 20;
    const SERVED_MIN: usize = 3;
    const INTERVAL: Span = Span::from_secs(1);
    for env in Env::with_every_store("over-limit.yaml") {
        let env = env.with_instead("timeout: 3s", "timeout: 60s");
        let env = env.with_rules("over-limit.yaml", &checkout("second", "2s")).start();
        let replies: Vec<Timed> = thread::scope(|scope| {
            let clients: Vec<_> =
                (0..CLIENTS).map(|_| scope.spawn(|| env.get("/checkout"))).collect();
            clients
                .into_iter()
                .map(|client| client.join().expect("every request gets a reply"))
                .collect()
        });
        let first = replies.iter().map(|reply| reply.sent_at).min().expect("there are some");
        let (mut served, over_limit): (Vec<_>, Vec<_>) =
            replies.into_iter().partition(|reply| reply.outcome() == Outcome::Passed);
        // A request that is sent late may get a slot that was not free before.
        assert!(served.len() >= SERVED_MIN && !over_limit.is_empty(), "{served:?}");
        served.sort_by_key(|reply| reply.received_at);
        let mut turn = first;
        for reply in &served {
            assert!(reply.received_at >= turn, "served before its turn: {reply:?}");
            turn = turn.plus(INTERVAL);
        }
        let [ok, over] = [&served, &over_limit].map(|replies| replies.len() as u64);
        for reply in over_limit {
            // The queue is two seconds long, and moves on every second.
            assert_eq!(reply.was_over_limit().reply.number("retry-after"), 1);
        }
        env.assert_verdicts(ok, over);
    }
}

/// Otherwise Envoy would go on without a verdict, and let it in.
#[test]
fn request_whose_slot_is_after_the_deadline_is_rejected() {
    for env in Env::with_every_store("over-limit.yaml") {
        let env = env.with_instead("timeout: 3s", "timeout: 10s");
        let env = env.with_rules("over-limit.yaml", &checkout("minute", "1h")).start();
        assert_eq!(env.get("/checkout").outcome(), Outcome::Passed);
        env.get("/checkout").was_over_limit();
        env.assert_verdicts(1, 1);
    }
}

/// The sample's rules with one request a `unit` to `/checkout`, and another `max_wait`.
fn checkout(unit: &str, max_wait: &str) -> String {
    let rules = include_str!("../../../deploy/envoy/rules/over-limit.yaml");
    let (limit, wait) = ("unit: second, requests_per_unit: 5", "max_wait: 2s");
    assert!(rules.contains(limit) && rules.contains(wait), "another limit: {rules}");
    let rules = rules.replace(limit, &format!("unit: {unit}, requests_per_unit: 1"));
    rules.replace(wait, &format!("max_wait: {max_wait}"))
}

#[test]
fn degraded_request_is_marked_for_the_backend() {
    for env in Env::with_every_store("over-limit.yaml") {
        let env = env.with_upstream().start();
        for remaining in [1, 0] {
            let served = env.get("/offers").passed_with(remaining);
            assert_eq!(served.reply.header("x-over-limit"), None);
            assert_eq!(env.upstream().was_told("x-degraded"), None);
        }
        for _ in 0..2 {
            let degraded = env.get("/offers").passed_with(0);
            assert_eq!(degraded.reply.header("x-over-limit"), Some(r#"["offers"]"#));
            assert_eq!(degraded.reply.header("retry-after"), None);
            assert_eq!(env.upstream().was_told("x-degraded").as_deref(), Some("true"));
        }
        env.assert_verdicts(4, 0);
    }
}

#[test]
fn sample_backend_serves_degraded_requests() {
    for env in Env::with_every_store("over-limit.yaml") {
        let env = env.start();
        let bodies: Vec<String> = (0..3).map(|_| env.get("/offers").reply.body).collect();
        assert_eq!(bodies, ["ok\n", "ok\n", "something cheap\n"]);
    }
}

#[test]
fn rejection_has_the_rules_response_body() {
    for env in Env::with_every_store("over-limit.yaml") {
        let env = env.start();
        assert_eq!(env.get("/export").passed_with(0).reply.body, "ok\n");
        let over_limit = env.get("/export").was_over_limit();
        assert_eq!(over_limit.reply.body, "one export a day: come back tomorrow\n");
        assert_eq!(over_limit.reply.header("content-type"), Some("text/plain"));
        over_limit.counts_down("retry-after", over_limit.end_of_window(DAY));
        let call = env.send(Request::grpc("/export"));
        assert_eq!(call.outcome(), Outcome::OverLimit);
    }
}
