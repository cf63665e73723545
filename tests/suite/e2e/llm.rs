//! Tokens of a language model: reserved by an estimate when a request begins, and settled when it
//! is over.

use tollgate::base::time::Span;

use crate::e2e::env::http::Request;
use crate::e2e::env::upstream::Answer;
use crate::e2e::env::{Env, Outcome, Pending, look_until};

const DAY: Span = Span::from_secs(86_400);
const JSON: &[(&str, &str)] = &[("content-type", "application/json")];
const IN_PIECES: &[(&str, &str)] = &[("content-type", "text/event-stream")];

/// The example at the top of llm.yaml.
#[test]
fn thirty_of_four_hundred_reserved_tokens_are_used() {
    for env in Env::with_every_store("llm.yaml") {
        let env = env.start();
        ask(&env, "ann", "400").finish().passed_with(600);
        settles(&env, "ann", 970);
    }
}

#[test]
fn unused_part_of_an_estimate_is_refunded() {
    for env in Env::with_every_store("llm.yaml") {
        let env = env.with_upstream().start();
        env.upstream()
            .answers("/v1/chat", Answer::of(JSON, r#"{"usage": {"total_tokens": 150}}"#).later());
        let call = ask(&env, "ann", "400");
        is_inside(&env, 1);
        has_left(&env, "ann", 600);
        env.upstream().release(1);
        call.finish().passed_with(600);
        settles(&env, "ann", 850);
        // Everybody has a budget of their own.
        has_left(&env, "bob", 1_000);
        let looks = env.seen(Outcome::Passed);
        env.assert_verdicts(looks, 0);
    }
}

#[test]
fn streamed_response_is_settled_by_its_last_chunk() {
    for env in Env::with_every_store("llm.yaml") {
        let env = env.with_upstream().start();
        let answer = Answer::of(IN_PIECES, "data: {\"text\": \"Fo\", \"usage\": null}\n\n");
        env.upstream().answers(
            "/v1/chat",
            answer.then(
                "data: {\"text\": \"ur.\", \"usage\": {\"total_tokens\": 60}}\n\ndata: [DONE]\n\n",
            ),
        );
        let call = ask(&env, "ann", "100");
        look_until("the first piece comes", || call.has_received("Fo"));
        assert!(!call.has_received("ur."));
        has_left(&env, "ann", 900);
        env.upstream().release(1);
        call.finish().passed_with(900);
        settles(&env, "ann", 940);
    }
}

#[test]
fn usage_beyond_the_estimate_is_charged() {
    for env in Env::with_every_store("llm.yaml") {
        let env = env.with_upstream().start();
        env.upstream().answers("/v1/chat", Answer::of(JSON, r#"{"usage": {"total_tokens": 610}}"#));
        ask(&env, "ann", "100").finish().passed_with(900);
        settles(&env, "ann", 390);
        // The second ends beyond the limit, and is charged all the same.
        ask(&env, "ann", "390").finish().passed_with(0);
        look_until("both are charged", || charged(&env) == 100 + 510 + 390 + 220);
        let over_limit = ask(&env, "ann", "1").finish().was_over_limit();
        over_limit.counts_down("retry-after", over_limit.end_of_window(DAY));
        env.get_as("ann", "/balance").was_over_limit();
        ask(&env, "bob", "100").finish().passed_with(900);
        settles(&env, "bob", 390);
    }
}

#[test]
fn over_limit_call_neither_consumes_nor_refunds() {
    for env in Env::with_every_store("llm.yaml") {
        let env = env.with_upstream().start();
        env.upstream()
            .answers("/v1/chat", Answer::of(JSON, r#"{"usage": {"total_tokens": 700}}"#).later());
        let call = ask(&env, "ann", "700");
        is_inside(&env, 1);
        for _ in 0..3 {
            ask(&env, "ann", "301").finish().was_over_limit();
        }
        has_left(&env, "ann", 300);
        let last = ask(&env, "ann", "300");
        is_inside(&env, 2);
        env.upstream().release(2);
        call.finish().passed_with(300);
        last.finish().passed_with(0);
        look_until("the last one is charged for more", || {
            charged(&env) == 700 + 3 * 301 + 300 + 400
        });
        // More than the budget is used, which a peek says, too.
        env.get_as("ann", "/balance").was_over_limit();
        // Five calls and two peeks; and two settlements, one of which is zero.
        assert_eq!(env.asked(), 5 + 2 + 2);
        env.assert_verdicts(3, 4);
    }
}

#[test]
fn disconnected_call_is_charged_known_usage_or_its_estimate() {
    for env in Env::with_every_store("llm.yaml") {
        let env = env.with_upstream().start();
        let upstream = env.upstream();
        upstream.answers(
            "/v1/chat",
            Answer::of(IN_PIECES, "data: {\"text\": \"Fo\"}\n\n")
                .then("data: {\"usage\": {\"total_tokens\": 60}}\n\n"),
        );
        let early = ask(&env, "ann", "400");
        look_until("the first piece comes", || early.has_received("Fo"));
        early.hang_up();
        is_inside(&env, 0);
        upstream.answers(
            "/v1/chat",
            Answer::of(IN_PIECES, "data: {\"usage\": {\"total_tokens\": 60}}\n\n")
                .then("data: [DONE]\n\n"),
        );
        let late = ask(&env, "ann", "100");
        look_until("it says what was used", || late.has_received("usage"));
        late.hang_up();
        is_inside(&env, 0);
        settles(&env, "ann", 1_000 - 400 - 60);
    }
}

/// Envoy would not ask about it at all.
#[test]
fn call_without_a_valid_estimate_is_rejected() {
    for env in Env::with_every_store("llm.yaml") {
        let env = env.with_upstream().start();
        let asks = |headers: &[(&str, &str)]| {
            let request = Request::get("/v1/chat").with(headers);
            let reply = request.send(&mut env.connect());
            reply.expect("Envoy answers").status
        };
        assert_eq!(asks(&[("x-api-key", "ann")]), 400);
        assert_eq!(asks(&[("x-estimated-tokens", "5")]), 400);
        for estimate in ["", "0", "-5", "some", "1e3", "0x10", " ", "1000000", "5, 5"] {
            assert_eq!(
                asks(&[("x-api-key", "ann"), ("x-estimated-tokens", estimate)]),
                400,
                "{estimate:?}"
            );
        }
        assert_eq!((env.asked(), env.upstream().inside_max()), (0, 0));
        assert_eq!(asks(&[("x-api-key", "ann"), ("x-estimated-tokens", "5")]), 200);
    }
}

#[test]
fn first_of_two_estimates_is_reserved_and_settled() {
    for env in Env::with_every_store("llm.yaml") {
        let env = env.with_upstream().start();
        env.upstream().answers("/v1/chat", Answer::of(JSON, r#"{"usage": {"total_tokens": 150}}"#));
        let twice =
            [("x-api-key", "ann"), ("x-estimated-tokens", "400"), ("x-estimated-tokens", "some")];
        env.send(Request::get("/v1/chat").with(&twice)).passed_with(600);
        settles(&env, "ann", 850);
    }
}

/// A call of the model with an estimate.
fn ask<'s>(env: &'s Env, api_key: &str, estimate: &str) -> Pending<'s> {
    env.begin(
        Request::get("/v1/chat").with(&[("x-api-key", api_key), ("x-estimated-tokens", estimate)]),
    )
}

fn is_inside(env: &Env, calls: usize) {
    look_until(&format!("the model has {calls} calls"), || env.upstream().inside() == calls);
}

fn has_left(env: &Env, api_key: &str, tokens: u64) {
    env.get_as(api_key, "/balance").passed_with(tokens);
}

/// The answer may be there before what it came to is.
fn settles(env: &Env, api_key: &str, tokens: u64) {
    let left = || env.get_as(api_key, "/balance").reply.number("x-ratelimit-remaining");
    look_until(&format!("{tokens} tokens are left"), || left() == tokens);
}

/// How many tokens were asked for or settled, of all callers.
fn charged(env: &Env) -> u64 {
    env.rule_stat("llm.api_key.total_hits")
}
