//! Requests up to the limit are served; over it the response says when to retry.

use tollgate::base::time::Span;

use crate::e2e::env::http::Request;
use crate::e2e::env::{Env, Outcome};

const DAY: Span = Span::from_secs(86_400);

#[test]
fn client_is_served_up_to_its_limit_and_gets_retry_after() {
    for env in Env::with_every_store("envoy.yaml") {
        let env = env.start();
        for remaining in [3, 2, 1, 0] {
            let served = env.get("/search").passed_with(remaining);
            assert_eq!(
                served.reply.header("x-ratelimit-limit"),
                Some(r#"4, 4;w=86400;name="search""#)
            );
            served.counts_down("x-ratelimit-reset", served.end_of_window(DAY));
            assert_eq!(served.reply.header("retry-after"), None);
            assert_eq!(served.reply.body, "ok\n");
        }
        for _ in 0..2 {
            let over_limit = env.get("/search").was_over_limit();
            assert_eq!(
                over_limit.reply.header("x-ratelimit-limit"),
                Some(r#"4, 4;w=86400;name="search""#)
            );
            assert_eq!(over_limit.reply.number("x-ratelimit-remaining"), 0);
            over_limit.counts_down("x-ratelimit-reset", over_limit.end_of_window(DAY));
            over_limit.counts_down("retry-after", over_limit.end_of_window(DAY));
            assert_eq!(over_limit.reply.body, "");
        }
        assert_eq!(env.rule_stat("web.path_/search.remote_address.total_hits"), 6);
        assert_eq!(env.rule_stat("web.path_/search.remote_address.over_limit"), 2);
        env.assert_verdicts(4, 2);
    }
}

/// The example at the top of envoy.yaml.
#[test]
fn fourth_request_within_a_minute_is_over_limit_for_twenty_seconds() {
    for env in Env::with_every_store("envoy.yaml") {
        let env = env.start();
        let first = env.get("/").passed_with(2);
        // A bucket is full again when every hit has been paid off: 20 seconds each, from the first
        // one on.
        first.counts_down("x-ratelimit-reset", first.after(Span::from_secs(20)));
        let second = env.get("/").passed_with(1);
        second.counts_down("x-ratelimit-reset", first.after(Span::from_secs(40)));
        let third = env.get("/").passed_with(0);
        third.counts_down("x-ratelimit-reset", first.after(Span::from_secs(60)));
        assert_eq!(third.reply.header("x-ratelimit-limit"), Some(r#"3, 3;w=60;name="home""#));

        let fourth = env.get("/").was_over_limit();
        fourth.counts_down("retry-after", first.after(Span::from_secs(20)));
        fourth.counts_down("x-ratelimit-reset", first.after(Span::from_secs(20)));
        env.assert_verdicts(3, 1);
    }
}

/// Envoy puts the value of a header into a descriptor as it came, and lets a request pass that gets
/// an error.
#[test]
fn header_that_is_not_utf8_is_limited_by_its_bytes() {
    let rules = "
domain: web
descriptors:
  - key: path
    descriptors:
      - key: user
        rate_limit: {unit: day, requests_per_unit: 3}
";
    for env in Env::with_every_store("envoy.yaml") {
        let env = env.with_rules("web.yaml", rules);
        let env = env
            .with_instead(
                "remote_address: {}",
                "request_headers: {header_name: x-user, descriptor_key: user}",
            )
            .start();
        let get = |user| env.send(Request::get("/").with_raw("x-user", user));
        for remaining in [2, 1, 0] {
            get(b"a\xff").passed_with(remaining);
        }
        get(b"a\xff").was_over_limit();
        get(b"a\xfe").passed_with(2);
        get("a\u{fffd}".as_bytes()).passed_with(2);
        env.assert_verdicts(5, 1);
    }
}

#[test]
fn over_limit_grpc_call_gets_resource_exhausted() {
    let half_day = Span::from_secs(12 * 3_600);
    for env in Env::with_every_store("envoy.yaml") {
        let env = env.start();
        let call = || env.send(Request::grpc("/report"));
        for remaining in [1, 0] {
            let served = call().passed_with(remaining);
            // Of half a day, which is no unit of Envoy's.
            assert_eq!(served.reply.header("x-ratelimit-limit"), Some("2"));
            served.counts_down("x-ratelimit-reset", served.end_of_window(half_day));
        }
        let over_limit = call();
        assert_eq!(over_limit.outcome(), Outcome::OverLimit);
        assert_eq!(over_limit.reply.status, 200, "gRPC has its own status");
        assert_eq!(over_limit.reply.number("grpc-status"), 8, "RESOURCE_EXHAUSTED");
        over_limit.counts_down("retry-after", over_limit.end_of_window(half_day));
        env.assert_verdicts(2, 1);
    }
}

#[test]
fn unlimited_and_shadow_rules_admit_every_request() {
    for env in Env::with_every_store("envoy.yaml") {
        let env = env.start();
        for _ in 0..5 {
            let unlimited = env.get("/health");
            assert_eq!(unlimited.outcome(), Outcome::Passed);
            assert_eq!(unlimited.reply.header("x-ratelimit-limit"), None);
        }
        for _ in 0..5 {
            let shadowed = env.get("/beta").passed_with(0);
            assert_eq!(
                shadowed.reply.header("x-ratelimit-limit"),
                Some(r#"1, 1;w=86400;name="beta""#)
            );
            assert_eq!(shadowed.reply.header("retry-after"), None);
        }
        assert_eq!(env.rule_stat("web.path_/beta.remote_address.total_hits"), 5);
        assert_eq!(env.rule_stat("web.path_/beta.remote_address.shadow_mode"), 4);
        // A rule without a limit has no counters, but its requests are asked about all the same.
        assert_eq!(env.asked(), 10);
        env.assert_verdicts(10, 0);
    }
}
