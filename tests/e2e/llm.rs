//! Tokens of a language model: reserved by an estimate when a request begins, and settled when it
//! is over.

use tollgate::time::Span;

use crate::site::http::Request;
use crate::site::upstream::Answer;
use crate::site::{Counts, Outcome, Pending, Site, eventually};

const DAY: Span = Span::from_secs(86_400);
const JSON: &[(&str, &str)] = &[("content-type", "application/json")];
const IN_PIECES: &[(&str, &str)] = &[("content-type", "text/event-stream")];

/// What the first lines of llm.yaml promise to whoever tries it.
#[test]
fn of_four_hundred_tokens_that_were_reserved_thirty_are_used() {
    for site in Site::with_every_store("llm.yaml") {
        let site = site.start();
        ask(&site, "ann", "400").finish().passed_with(600);
        settles(&site, "ann", 970);
    }
}

#[test]
fn an_estimate_is_reserved_while_a_call_runs_and_what_it_did_not_use_is_given_back() {
    for site in Site::with_every_store("llm.yaml") {
        let site = site.with_upstream().start();
        site.upstream().answers(
            "/v1/chat",
            Answer::of(JSON, r#"{"usage": {"total_tokens": 150}}"#).later(),
        );
        let call = ask(&site, "ann", "400");
        is_inside(&site, 1);
        has_left(&site, "ann", 600);
        site.upstream().let_go(1);
        call.finish().passed_with(600);
        settles(&site, "ann", 850);
        // Everybody has a budget of their own.
        has_left(&site, "bob", 1_000);
        assert_eq!(overdrawn(&site), 0);
        let looks = site.seen(Outcome::Passed);
        site.adds_up_to(Counts {
            ok: looks,
            ..Counts::default()
        });
    }
}

#[test]
fn an_answer_in_pieces_is_not_held_back_and_is_settled_by_what_its_last_ones_say() {
    for site in Site::with_every_store("llm.yaml") {
        let site = site.with_upstream().start();
        let answer = Answer::of(IN_PIECES, "data: {\"text\": \"Fo\", \"usage\": null}\n\n");
        site.upstream().answers(
            "/v1/chat",
            answer.then(
                "data: {\"text\": \"ur.\", \"usage\": {\"total_tokens\": 60}}\n\ndata: [DONE]\n\n",
            ),
        );
        let call = ask(&site, "ann", "100");
        eventually("the first piece comes", || {
            call.has_received("Fo").then_some(())
        });
        assert!(!call.has_received("ur."));
        has_left(&site, "ann", 900);
        site.upstream().let_go(1);
        call.finish().passed_with(900);
        settles(&site, "ann", 940);
    }
}

#[test]
fn what_was_used_beyond_the_estimate_is_charged_and_too_much_of_it_locks_out() {
    for site in Site::with_every_store("llm.yaml") {
        let site = site.with_upstream().start();
        site.upstream().answers(
            "/v1/chat",
            Answer::of(JSON, r#"{"usage": {"total_tokens": 610}}"#),
        );
        // As much again as the budget is let pass: 510 too many are within that, and twice 510 are
        // not.
        for too_many in [510, 1_020] {
            assert_eq!(ask(&site, "ann", "100").finish().outcome(), Outcome::Passed);
            eventually("it is charged", || {
                (overdrawn(&site) == too_many).then_some(())
            });
        }
        let refused = ask(&site, "ann", "100").finish().was_refused();
        refused.counts_down("retry-after", refused.end_of_window(DAY));
        // Nothing was reserved for it with the other rule.
        has_left(&site, "ann", 800);
        ask(&site, "bob", "100").finish().passed_with(900);
        eventually("bob is charged", || {
            (overdrawn(&site) == 1_530).then_some(())
        });
    }
}

#[test]
fn beyond_the_budget_a_call_is_refused_and_neither_pays_nor_gets_anything_back() {
    for site in Site::with_every_store("llm.yaml") {
        let site = site.with_upstream().start();
        site.upstream().answers(
            "/v1/chat",
            Answer::of(JSON, r#"{"usage": {"total_tokens": 700}}"#).later(),
        );
        let call = ask(&site, "ann", "700");
        is_inside(&site, 1);
        for _ in 0..3 {
            ask(&site, "ann", "301").finish().was_refused();
        }
        has_left(&site, "ann", 300);
        let last = ask(&site, "ann", "300");
        is_inside(&site, 2);
        site.upstream().let_go(2);
        call.finish().passed_with(300);
        last.finish().passed_with(0);
        eventually("the last one is charged for more", || {
            (overdrawn(&site) == 400).then_some(())
        });
        has_left(&site, "ann", 0);
        // Five calls and two looks; and two settlements, one of which comes to nothing.
        assert_eq!(asked(&site), 5 + 2 + 2);
        site.adds_up_to(Counts {
            ok: 4,
            over_limit: 3,
            ..Counts::default()
        });
    }
}

#[test]
fn who_hangs_up_has_used_what_is_known_or_else_what_was_reserved() {
    for site in Site::with_every_store("llm.yaml") {
        let site = site.with_upstream().start();
        let upstream = site.upstream();
        upstream.answers(
            "/v1/chat",
            Answer::of(IN_PIECES, "data: {\"text\": \"Fo\"}\n\n")
                .then("data: {\"usage\": {\"total_tokens\": 60}}\n\n"),
        );
        let early = ask(&site, "ann", "400");
        eventually("the first piece comes", || {
            early.has_received("Fo").then_some(())
        });
        early.hang_up();
        is_inside(&site, 0);
        upstream.answers(
            "/v1/chat",
            Answer::of(IN_PIECES, "data: {\"usage\": {\"total_tokens\": 60}}\n\n")
                .then("data: [DONE]\n\n"),
        );
        let late = ask(&site, "ann", "100");
        eventually("it says what was used", || {
            late.has_received("usage").then_some(())
        });
        late.hang_up();
        is_inside(&site, 0);
        settles(&site, "ann", 1_000 - 400 - 60);
    }
}

/// Envoy would not ask about it at all.
#[test]
fn a_call_without_a_good_estimate_gets_nowhere() {
    for site in Site::with_every_store("llm.yaml") {
        let site = site.with_upstream().start();
        let asks = |headers: &[(&str, &str)]| {
            site.connect()
                .send(Request::get("/v1/chat").with(headers))
                .expect("Envoy answers")
                .status
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
        assert_eq!((asked(&site), site.upstream().inside_max()), (0, 0));
        assert_eq!(
            asks(&[("x-api-key", "ann"), ("x-estimated-tokens", "5")]),
            200
        );
    }
}

#[test]
fn of_two_estimates_the_first_is_reserved_and_settled() {
    for site in Site::with_every_store("llm.yaml") {
        let site = site.with_upstream().start();
        site.upstream().answers(
            "/v1/chat",
            Answer::of(JSON, r#"{"usage": {"total_tokens": 150}}"#),
        );
        let twice = [
            ("x-api-key", "ann"),
            ("x-estimated-tokens", "400"),
            ("x-estimated-tokens", "some"),
        ];
        site.send(Request::get("/v1/chat").with(&twice))
            .passed_with(600);
        settles(&site, "ann", 850);
    }
}

/// A call of the model with an estimate.
fn ask<'s>(site: &'s Site, api_key: &str, estimate: &str) -> Pending<'s> {
    site.begin(
        Request::get("/v1/chat").with(&[("x-api-key", api_key), ("x-estimated-tokens", estimate)]),
    )
}

fn is_inside(site: &Site, calls: usize) {
    eventually(&format!("the model has {calls} calls"), || {
        (site.upstream().inside() == calls).then_some(())
    });
}

fn has_left(site: &Site, api_key: &str, tokens: u64) {
    site.get_as(api_key, "/balance").passed_with(tokens);
}

/// The answer may be there before what it came to is.
fn settles(site: &Site, api_key: &str, tokens: u64) {
    let left = || {
        site.get_as(api_key, "/balance")
            .reply
            .number("x-ratelimit-remaining")
    };
    eventually(&format!("{tokens} tokens are left"), || {
        (left() == tokens).then_some(())
    });
}

/// How many tokens were charged beyond the estimates.
fn overdrawn(site: &Site) -> u64 {
    site.tollgate
        .stat("ratelimit.service.rate_limit.llm.meter_overdraft.api_key.total_hits")
}

/// How often Envoy has asked.
fn asked(site: &Site) -> u64 {
    site.tollgate
        .stat("ratelimit_server.ShouldRateLimit.total_requests")
}
