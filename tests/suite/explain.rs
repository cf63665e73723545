//! `tollgate explain` and `/explain`: what they say of each request, and the exit codes.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cli::{TREE, rules_in};
use crate::support::{
    TestServer, assert_has, http, sample, tollgate, tollgate_with_env, tollgate_with_stdin,
};

/// Entries of a descriptor against [`TREE`], the exit code, and lines that explain must have.
const EXPLAINED: &str = "
user=alice | 0 | user=alice -> user_alice (its key and value); => limit 3 per minute; rules.yaml:3
path=/api/cart | 0 | path=/api/cart -> path_/api/* (a pattern); => limit 4 per second
path=/api/?a=b, c | 0 | path=/api/?a=b, c -> path_/api/* (a pattern); => limit 4 per second
tenant=t; plan=gold | 0 | plan=gold -> plan (its key, for any value); => limit 5 per day
tenant=10.0.0.1, 10.0.0.2; plan | 0 | tenant=10.0.0.1, 10.0.0.2 -> tenant (its key, for any value); => limit 5 per day
user=alice; more=1 | 4 | the rules end here, and the descriptor goes on: too deep to match; => not limited
tenant=t | 4 | no rate_limit here: not limited; => not limited
user=bob | 4 | user=bob -> nothing: no such value, no pattern, no default; => not limited
user=alice, bob | 4 | user=alice, bob -> nothing: no such value, no pattern, no default; => not limited
nobody=knows | 4 | nobody=knows -> nothing: no such key; => not limited
usr=alice | 4 | usr=alice -> nothing: no such key; did you mean `user`?; => not limited
user=allice | 4 | user=allice -> nothing: no such value, no pattern, no default; did you mean `alice`?
internal=1 | 0 | => unlimited: passes, and is not counted
";

#[test]
fn explain_is_the_same_for_words_json_and_http() {
    let directory = TempDir::new().expect("a temporary directory");
    let path = rules_in(&directory, TREE);
    let server =
        TestServer::with_directory(directory.path()).with_env("CACHE_KEY_FORMAT", "safe").start();
    for line in EXPLAINED.trim().lines() {
        let cells: Vec<&str> = line.split(" | ").collect();
        let [entries, code, expected] = cells[..] else { panic!("three cells, not {line}") };
        let entries: Vec<&str> = entries.split("; ").collect();
        let explain = |arguments: &[&str]| {
            let arguments = [&["explain", &path], arguments].concat();
            let ran = tollgate_with_env(&arguments, &[("CACHE_KEY_FORMAT", "safe")]);
            assert_eq!(ran.code, code.parse().ok(), "{ran:?}");
            ran.stdout
        };
        let words = explain(&[&["shop"], &entries[..]].concat());
        assert_has(&words, &expected.split("; ").collect::<Vec<_>>());
        let json = |entry: &&str| {
            let (key, value) = entry.split_once('=').unwrap_or((entry, ""));
            json!({"key": key, "value": value})
        };
        let json: Vec<Value> = entries.iter().map(json).collect();
        let request = json!({"domain": "shop", "descriptors": [{"entries": json}]}).to_string();
        assert_eq!(explain(&["--json", &request]), words);
        let pair =
            |entry: &&str| format!("&descriptor={}", utf8_percent_encode(entry, NON_ALPHANUMERIC));
        let pairs: String = entries.iter().map(pair).collect();
        assert_eq!(server.admin(&format!("/explain?domain=shop{pairs}")), words);
        assert_eq!(http::post(server.admin, "/explain", &request).body, words);
    }
}

#[test]
fn explain_of_json_shows_the_limits_and_hits_of_the_request() {
    let directory = TempDir::new().expect("a temporary directory");
    let path = rules_in(&directory, TREE);
    let request = r#"{
        "domain": "shop",
        "descriptors": [
            {"entries": [{"key": "user", "value": "alice"}]},
            {"entries": [{"key": "user", "value": "alice"}], "limit": {"requests_per_unit": 7, "unit": "HOUR"}, "hits_addend": 0},
            {"entries": [{"key": "user", "value": "alice"}], "hits_addend": 2, "is_negative_hits": true}
        ],
        "hits_addend": 3
    }"#;
    let ran = tollgate(&["explain", &path, "--json", request]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let of_each: Vec<&str> = ran.stdout.split("descriptor user=alice\n").skip(1).collect();
    let expected = [
        ("3 per minute", "3\n"),
        ("7 per hour", "0: reads the counter, and counts nothing\n"),
        ("3 per minute", "gives back 2\n"),
    ];
    assert_eq!(of_each.len(), expected.len(), "{}", ran.stdout);
    for (text, (limit, hits)) in of_each.iter().zip(expected) {
        assert!(text.contains(&format!("=> limit {limit}")), "{text}");
        assert!(text.contains(&format!("     hits  {hits}")), "{text}");
    }
    let piped = tollgate_with_stdin(&["explain", &path, "--json", "-"], request);
    assert_eq!((piped.code, &piped.stdout), (Some(0), &ran.stdout));
    // One descriptor without a rule is enough.
    let mixed = request.replacen("alice", "bob", 1);
    let ran = tollgate(&["explain", &path, "--json", &mixed]);
    assert_eq!(ran.code, Some(4));
}

/// Arguments of explain, separated by spaces, and what the error must contain.
const NOT_EXPLAINED: &str = r#"
shop =alice => the entry `=alice` has no key; write key=value
shop user => write an entry without a value as KEY=
one two shop user=alice => `PATH one two shop user=alice` is not [RULES] DOMAIN KEY=VALUE...
--live shop user=alice => --live: the rules are those of the service; leave RULES out
 user=alice => rate limit domain must not be empty
shop --json {} => --json has domain and entries
--json {} => rate limit domain must not be empty
--json {"domain":"shop"} => rate limit descriptor list must not be empty
--json {"domain":"shop","descriptor":[]} => --json:
--json user=alice => --json:
"#;

#[test]
fn invalid_requests_to_explain_exit_with_64_and_say_what_to_write() {
    let directory = TempDir::new().expect("a temporary directory");
    let path = rules_in(&directory, TREE);
    for line in NOT_EXPLAINED.lines().skip(1) {
        let (arguments, expected) = line.split_once(" => ").expect("arguments => an error");
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let ran = tollgate(&[&["explain", &path], &arguments[..]].concat());
        assert_eq!(ran.stdout, "", "{line}: {ran:?}");
        ran.assert_failed(64, &[&expected.replace("PATH", &path)]);
    }
}

/// A domain of the sample rules, the entries of a descriptor, and what explain must say of it.
const EXPLAINED_SAMPLES: &str = r#"
shop | recommendations=1 | on_limit: degrade: passes, never rejected; the upstream gets x-degraded: true
shop | report=1 | => limit 10 per second, leaky_bucket, burst 1, queue up to 200 ms, over-limit hits drop
shop | report=1 | on_limit: queue: waits for its slot, rejected if that takes longer
gateway | user=ann | => limit 60 per minute, sliding_window, 6 buckets, over-limit hits drop
gateway | user=ann | :sliding_window-6:60000000:us (safe form)
gateway | user=ann api=login | on_limit: reject: the response body is "Too many attempts. Try again in a few minutes."
gateway | api=pay request_id=r1 | => limit 8 at once, concurrency, lease 30 s
gateway | api=pay request_id=r1 | key   tg:gateway:api:pay:request_id::concurrency:0:us (safe form)
gateway | api=pay request_id=r1 | holder r1
gateway | api=pay request_id= | rejected with INVALID_ARGUMENT: descriptors[0] has no value for request_id, which names the holder of a slot; send one that no other request has
"#;

#[test]
fn explain_tells_what_happens_over_the_limit_and_who_holds_a_place() {
    let rules = sample("config");
    for line in EXPLAINED_SAMPLES.trim().lines() {
        let cells: Vec<&str> = line.split(" | ").collect();
        let [domain, entries, expected] = cells[..] else { panic!("three cells, not {line}") };
        let entries: Vec<&str> = entries.split(' ').collect();
        let ran = tollgate(&[&["explain", &rules, domain], &entries[..]].concat());
        let has_line = ran.stdout.lines().any(|said| said.ends_with(expected));
        assert!(has_line, "{line}: {}", ran.stdout);
        let is_rejected = ran.stdout.starts_with("rejected with INVALID_ARGUMENT");
        assert_eq!(ran.code, Some(i32::from(is_rejected)), "{line}");
    }
    let all_or_nothing = "domain gateway\nall or nothing: a request that one limit rejects consumes nothing from the others\n";
    let request = json!({"domain": "gateway", "descriptors": [
        {"entries": [{"key": "user", "value": "ann"}]},
        {"entries": [{"key": "ip", "value": "::1"}]},
    ]});
    let explain = |words: &[&str]| tollgate(&[&["explain", &rules], words].concat()).stdout;
    let both = explain(&["--json", &request.to_string()]);
    assert!(both.starts_with(all_or_nothing), "{both}");
    assert!(!explain(&["gateway", "user=ann"]).contains("all or nothing"));
}

#[test]
fn explain_shows_whether_the_key_is_enforced() {
    let directory = TempDir::new().expect("a temporary directory");
    let rules = "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {unit: day, requests_per_unit: 1}\n    metadata: {tollgate: {enforce_percent: 19}}\n";
    for (percent, expected) in [
        (19, "enforce_percent leaves this key out: counted, never rejected"),
        (20, "enforce_percent includes this key: over limit is enforced"),
    ] {
        let rules = rules.replace("19", &percent.to_string());
        let path = rules_in(&directory, &rules);
        let ran = tollgate(&["explain", &path, "shop", "user=42"]);
        let option = format!("enforce_percent: {percent} (by the rule");
        assert!(ran.stdout.contains(expected) && ran.stdout.contains(&option), "{ran:?}");
    }
}

#[test]
fn explain_shows_the_key_in_the_configured_form() {
    let directory = TempDir::new().expect("a temporary directory");
    let path = rules_in(&directory, TREE);
    let arguments = ["explain", &path, "shop", "user=alice"];
    let safe = "key   tg:shop:user:alice:fixed_window:60:s: (safe form; on Redis the window's start in seconds follows)\n";
    let reference =
        "key   shop_user_alice_ (reference form; on Redis the window's start in seconds follows)\n";
    for (format, expected) in [("", reference), ("reference", reference), ("safe", safe)] {
        let ran = tollgate_with_env(&arguments, &[("CACHE_KEY_FORMAT", format)]);
        assert!(ran.stdout.contains(expected), "{format}: {ran:?}");
    }
    let server = TestServer::with_rules(TREE).with_env("CACHE_KEY_FORMAT", "reference").start();
    let page = server.admin("/explain?domain=shop&descriptor=user%3Dalice");
    assert!(page.contains(safe), "{page}");
}

#[test]
fn explain_lists_the_domains_when_it_does_not_know_one() {
    let directory = TempDir::new().expect("a temporary directory");
    let path = rules_in(&directory, TREE);
    for (domain, nearest) in [("shoo", "; did you mean `shop`?"), ("other", "")] {
        let ran = tollgate(&["explain", &path, domain, "user=alice"]);
        let unknown = format!("domain {domain}: unknown, so nothing is limited{nearest}\n");
        ran.assert_printed(3, &[&format!("{unknown}known domains: shop\n")]);
    }
}
