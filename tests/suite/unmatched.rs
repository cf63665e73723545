//! Calls that no rule matches, because a domain or a key is misspelled: metrics, the log and
//! `tollgate explain` name the mistake.

use tempfile::TempDir;

use crate::cli::rules_in;
use crate::support::{TestServer, look_until, tollgate};

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 2}}
";

#[tokio::test]
async fn misspelled_domain_is_logged_once_with_the_nearest_name() {
    let server = TestServer::with_rules(RULES).start();
    let mut client = server.client().await;
    for user in ["ann", "bob", "cyd"] {
        client.ask("shopp", &[("user", user)]).await;
    }
    let line = "unknown domain: its calls are not limited domain=shopp nearest=shop calls=1";
    look_until("it is logged", || server.log().contains(line));
    server.assert_logged_once("unknown domain");
    server.assert_metric(r#"tollgate_unmatched_descriptors_total{domain="shopp"}"#, 3.0);
    let known = r#"ratelimit_service_rate_limit_domain_not_found{domain="shopp"}"#;
    server.assert_metric(known, 3.0);
}

#[tokio::test]
async fn only_descriptors_without_a_rule_are_counted() {
    let server = TestServer::with_rules(RULES).start();
    let mut client = server.client().await;
    for entry in [("user", "ann"), ("usr", "ann"), ("usr", "bob"), ("user", "bob")] {
        client.ask("shop", &[entry]).await;
    }
    server.assert_metric(r#"tollgate_unmatched_descriptors_total{domain="shop"}"#, 2.0);
    assert!(!server.log().contains("unknown domain"), "{}", server.log());
}

#[test]
fn explain_proposes_the_name_that_is_meant() {
    let directory = TempDir::new().expect("a temporary directory");
    let rules = rules_in(&directory, RULES);
    for (words, code, expected) in [
        (["shop", "usr=42"], 4, "usr=42 -> nothing: no such key; did you mean `user`?"),
        (
            ["shopp", "user=42"],
            3,
            "domain shopp: unknown, so nothing is limited; did you mean `shop`?",
        ),
        (["other", "user=42"], 3, "domain other: unknown, so nothing is limited\n"),
    ] {
        let ran = tollgate(&["explain", &rules, words[0], words[1]]);
        assert_eq!(ran.code, Some(code), "{ran:?}");
        assert!(ran.stdout.contains(expected), "{ran:?}");
    }
}
