//! Headers that Tollgate writes arrive at the client, and agree with those that Envoy makes of the
//! same answer.

use tollgate::time::Span;

use crate::env::{Counts, Env};

const DAY: Span = Span::from_secs(86_400);

#[test]
fn retry_after_can_come_from_tollgate() {
    for env in Env::with_every_store("envoy.yaml") {
        let env = env
            .with_instead(
                "enable_retry_after_header: true",
                "enable_retry_after_header: false",
            )
            .with_env("RETRY_AFTER_HEADER_ENABLED", "true")
            .start();
        let first = env.get("/").passed_with(2);
        for remaining in [1, 0] {
            assert_eq!(
                env.get("/")
                    .passed_with(remaining)
                    .reply
                    .header("retry-after"),
                None
            );
        }
        let refused = env.get("/").was_refused();
        refused.counts_down("retry-after", first.after(Span::from_secs(20)));
        assert_eq!(
            refused.reply.number("retry-after"),
            refused.reply.number("x-ratelimit-reset")
        );
        env.adds_up_to(Counts {
            ok: 3,
            over_limit: 1,
            ..Counts::default()
        });
    }
}

#[test]
fn retry_after_is_there_once_when_both_send_it() {
    for env in Env::with_every_store("envoy.yaml") {
        let env = env.with_env("RETRY_AFTER_HEADER_ENABLED", "true").start();
        for remaining in [3, 2, 1, 0] {
            env.get("/search").passed_with(remaining);
        }
        let refused = env.get("/search").was_refused();
        refused.counts_down("retry-after", refused.end_of_window(DAY));
        env.adds_up_to(Counts {
            ok: 4,
            over_limit: 1,
            ..Counts::default()
        });
    }
}

#[test]
fn a_client_gets_the_references_headers_and_those_of_the_ietf() {
    for env in Env::with_every_store("envoy.yaml") {
        let env = env
            .with_env("LIMIT_RESPONSE_HEADERS_ENABLED", "true")
            .with_env("IETF_RATELIMIT_HEADERS_ENABLED", "true")
            .start();
        let mut replies: Vec<_> = [3, 2, 1, 0]
            .into_iter()
            .map(|remaining| (remaining, env.get("/search").passed_with(remaining)))
            .collect();
        replies.push((0, env.get("/search").was_refused()));
        for (remaining, timed) in replies {
            let reply = &timed.reply;
            assert_eq!(reply.number("ratelimit-limit"), 4);
            assert_eq!(reply.number("ratelimit-remaining"), remaining);
            timed.counts_down("ratelimit-reset", timed.end_of_window(DAY));
            let reset = reply.number("ratelimit-reset");
            assert_eq!(reply.number("x-ratelimit-reset"), reset);
            assert_eq!(
                reply.header("ratelimit-policy"),
                Some(r#""search";q=4;w=86400"#)
            );
            assert_eq!(
                reply.header("ratelimit"),
                Some(&*format!(r#""search";r={remaining};t={reset}"#))
            );
        }
        env.adds_up_to(Counts {
            ok: 4,
            over_limit: 1,
            ..Counts::default()
        });
    }
}
