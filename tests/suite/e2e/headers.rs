//! Headers that Tollgate writes arrive at the client, and agree with those that Envoy makes of the
//! same answer.

use tollgate::base::time::Span;

use crate::e2e::env::Env;

const DAY: Span = Span::from_secs(86_400);

#[test]
fn retry_after_is_sent_once_if_both_are_configured() {
    for env in Env::with_every_store("envoy.yaml") {
        let env = env.with_env("RETRY_AFTER_HEADER_ENABLED", "true").start();
        for remaining in [3, 2, 1, 0] {
            env.get("/search").passed_with(remaining);
        }
        let over_limit = env.get("/search").was_over_limit();
        over_limit.counts_down("retry-after", over_limit.end_of_window(DAY));
        env.assert_verdicts(4, 1);
    }
}

#[test]
fn responses_have_the_references_and_ietf_headers() {
    for env in Env::with_every_store("envoy.yaml") {
        let env = env
            .with_env("LIMIT_RESPONSE_HEADERS_ENABLED", "true")
            .with_env("IETF_RATELIMIT_HEADERS_ENABLED", "true")
            .start();
        let mut replies: Vec<_> = [3, 2, 1, 0]
            .into_iter()
            .map(|remaining| (remaining, env.get("/search").passed_with(remaining)))
            .collect();
        replies.push((0, env.get("/search").was_over_limit()));
        for (remaining, timed) in replies {
            let reply = &timed.reply;
            assert_eq!(reply.number("ratelimit-limit"), 4);
            assert_eq!(reply.number("ratelimit-remaining"), remaining);
            timed.counts_down("ratelimit-reset", timed.end_of_window(DAY));
            let reset = reply.number("ratelimit-reset");
            assert_eq!(reply.number("x-ratelimit-reset"), reset);
            assert_eq!(reply.header("ratelimit-policy"), Some(r#""search";q=4;w=86400"#));
            assert_eq!(
                reply.header("ratelimit"),
                Some(&*format!(r#""search";r={remaining};t={reset}"#))
            );
        }
        env.assert_verdicts(4, 1);
    }
}
