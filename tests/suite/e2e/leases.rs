//! A leased limit behind a real Envoy: never more than the limit passes, and clients see the headers
//! of an exact one.

use std::collections::BTreeMap;

use tollgate::base::time::{Span, Time};

use crate::e2e::env::{Env, Outcome, Store, look_until};

const LIMIT: u64 = 1_000;
const REQUESTS: u64 = 3_000;
const CLIENTS: usize = 8;
const MINUTE: Span = Span::from_secs(60);
const RULES: &str = "
domain: web
descriptors:
  - key: path
    value: /leased
    descriptors:
      - key: remote_address
        rate_limit: {unit: minute, requests_per_unit: 1000}
        metadata: {tollgate: {consistency: leased}}
  - key: path
    value: /exact
    descriptors:
      - key: remote_address
        rate_limit: {unit: minute, requests_per_unit: 1000}
";

#[test]
fn leased_limit_is_never_exceeded_and_has_the_headers_of_an_exact_one() {
    let env = Env::with("envoy.yaml").with_rules("web.yaml", RULES);
    let env = env.on(Store::Redis).start();
    look_until("the service knows how many replicas there are", || {
        env.tollgate.metric("tollgate_replicas") == 1
    });
    let mut over_limit = Vec::new();
    for path in ["/leased", "/exact"] {
        let answered = || env.seen(Outcome::Passed) + env.seen(Outcome::OverLimit);
        let before = answered();
        let seen = env.under_traffic(CLIENTS, path, |_| {
            look_until("all are answered", || answered() - before >= REQUESTS);
        });
        // By window. A request that was answered in the next one may belong to either.
        let mut passed = BTreeMap::<u64, u64>::new();
        let window_of = |time: Time| time.as_micros() / MINUTE.as_micros();
        for reply in seen.iter().flatten() {
            let window = window_of(reply.sent_at);
            if reply.outcome == Outcome::Passed && window == window_of(reply.received_at) {
                *passed.entry(window).or_default() += 1;
            }
        }
        assert!(passed.values().all(|&passed| passed <= LIMIT), "{path}: {passed:?}");
        assert!(passed.values().sum::<u64>() + CLIENTS as u64 >= LIMIT, "{path}: {passed:?}");
        over_limit.push(headers_over_limit(&env, path));
    }
    let [leased, exact] = &over_limit[..] else { panic!("one of each path") };
    assert_eq!(leased, exact);
    let used = r#"tollgate_rule_lease_hits_total{domain="web",key1="path_/leased",key2="remote_address",event="used"}"#;
    assert!(env.tollgate.metric(used) > LIMIT / 2);
    assert!(env.tollgate.metric("tollgate_lease_held_answers_total") > LIMIT / 2);
    env.assert_verdicts(env.seen(Outcome::Passed), env.seen(Outcome::OverLimit));
}

/// The headers of the next response over limit, but the date. Those that count down are checked.
fn headers_over_limit(env: &Env, path: &str) -> Vec<(String, String)> {
    // In a new window a whole limit passes first.
    let mut replies = (0..=LIMIT).map(|_| env.get(path));
    let over_limit = replies.find(|reply| reply.outcome() == Outcome::OverLimit);
    let over_limit = over_limit.expect("the limit is exceeded").was_over_limit();
    for header in ["x-ratelimit-reset", "retry-after"] {
        over_limit.counts_down(header, over_limit.end_of_window(MINUTE));
    }
    let headers = over_limit.reply.headers.iter().map(|header| {
        let (name, value) = header.split_once(": ").expect("name: value");
        let changes = ["date", "x-ratelimit-reset", "retry-after"].contains(&name);
        (name.to_owned(), if changes { "" } else { value }.to_owned())
    });
    headers.collect()
}
