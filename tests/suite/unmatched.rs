//! Calls that no rule matches, because a domain or a key is misspelled: metrics and the log name the
//! mistake, and `tollgate explain` does (`explain.rs`).

use crate::support::{TestServer, look_until};

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
