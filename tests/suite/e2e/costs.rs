//! Requests that cost more than one, nothing, something given back, or what is only known at the
//! end; limits that Envoy brings along.

use tollgate::base::time::Span;

use crate::e2e::env::{Env, Outcome, look_until};

const DAY: Span = Span::from_secs(86_400);

#[test]
fn order_consumes_five_a_peek_nothing_and_a_refund_returns_no_more_than_was_consumed() {
    for env in Env::with_every_store("costs.yaml") {
        let env = env.start();
        env.get_as("ann", "/balance").passed_with(10);
        env.get_as("ann", "/order").passed_with(5);
        for _ in 0..3 {
            env.get_as("ann", "/balance").passed_with(5);
        }
        env.get_as("ann", "/order").passed_with(0);
        env.get_as("ann", "/order").was_over_limit();
        // Nothing is left, and to look is allowed all the same.
        env.get_as("ann", "/balance").passed_with(0);
        // Everybody has credits of their own.
        env.get_as("bob", "/order").passed_with(5);
        env.get_as("ann", "/refund").passed_with(5);
        env.get_as("ann", "/order").passed_with(0);
        for remaining in [5, 10, 10] {
            env.get_as("ann", "/refund").passed_with(remaining);
        }
        env.get_as("ann", "/balance").passed_with(10);
        // Of orders, and of nothing else.
        for (name, hits) in [("total_hits", 25), ("within_limit", 20), ("over_limit", 5)] {
            let name = format!("costs.meter_credits.api_key.{name}");
            assert_eq!(env.rule_stat(&name), hits, "{name}");
        }
        env.assert_verdicts(14, 1);
    }
}

#[test]
fn response_size_is_charged_after_it_is_sent() {
    const TOTAL_HITS: &str = "ratelimit.service.rate_limit.costs.meter_bytes.api_key.total_hits";
    for env in Env::with_every_store("costs.yaml") {
        let env = env.start();
        // The third begins with nothing left, which is not over yet, and ends beyond the limit.
        for (remaining, charged) in [(100, 50), (50, 100), (0, 150)] {
            let downloaded = env.get_as("ann", "/download").passed_with(remaining);
            assert_eq!(downloaded.reply.body.len(), 50);
            look_until(&format!("{charged} bytes are charged"), || {
                env.tollgate.stat(TOTAL_HITS) == charged
            });
        }
        let over_limit = env.get_as("ann", "/download").was_over_limit();
        over_limit.counts_down("x-ratelimit-reset", over_limit.end_of_window(DAY));
        env.get_as("bob", "/download").passed_with(100);
        look_until("bob is charged", || env.tollgate.stat(TOTAL_HITS) == 200);
        // Envoy checks each request before and after it, over-limit ones (of 0 bytes) too, and counts
        // the first check only.
        look_until("everything is asked twice", || env.asked() == 10);
        env.get_as("ann", "/download").was_over_limit();
        env.assert_verdicts(4, 2);
    }
}

#[test]
fn limit_in_the_request_overrides_the_rule() {
    for env in Env::with_every_store("costs.yaml") {
        let env = env.start();
        // One that is written in a route, and one that an earlier filter found out; the rules
        // mention neither.
        for (path, limit) in [("/trial", 1), ("/member", 2)] {
            for remaining in (0..limit).rev() {
                let served = env.get_as("ann", path).passed_with(remaining);
                assert_eq!(
                    served.reply.header("x-ratelimit-limit"),
                    Some(&*format!("{limit}, {limit};w=86400"))
                );
                served.counts_down("x-ratelimit-reset", served.end_of_window(DAY));
            }
            env.get_as("ann", path).was_over_limit();
            env.get_as("bob", path).passed_with(limit - 1);
        }
        env.assert_verdicts(5, 2);
    }
}

/// As costs.yaml warns: Envoy asks nothing where it has no descriptor.
#[test]
fn request_without_a_key_is_not_checked() {
    for env in Env::with_every_store("costs.yaml") {
        let env = env.start();
        for _ in 0..3 {
            assert_eq!(env.get("/order").outcome(), Outcome::Passed);
        }
        assert_eq!(env.asked(), 0);
    }
}
