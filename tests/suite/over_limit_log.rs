//! The over-limit log: off by default, sampled, and bounded per second.

use serde_json::json;
use tokio::time::Instant;

use crate::settings::K;
use crate::support::redis::RedisProcess;
use crate::support::{Code, TestServer, assert_has, limit_of, look_until, request};

const RULES: &str = "{domain: d, descriptors: [{key: user, descriptors: [{key: path, rate_limit: {unit: year, requests_per_unit: 1}}]}]}";
const DROPPED: &str = "tollgate_over_limit_log_dropped_total";

#[tokio::test]
async fn over_limit_log_is_off_by_default() {
    for rate in ["", "0"] {
        let server = TestServer::with_rules(&limit_of(1))
            .with_env("REFUSALS_LOG_SAMPLE_RATE", rate)
            .with_env("REFUSALS_LOG_LINES_PER_SECOND_MAX", "")
            .start();
        let mut client = server.client().await;
        assert_eq!(
            [client.ask("d", &[("k", "")]).await, client.ask("d", &[("k", "")]).await],
            [Code::Ok, Code::OverLimit]
        );
        server.assert_not_logged("over limit");
    }
}

#[tokio::test]
async fn over_limit_line_has_request_rule_limit_and_retry() {
    let server = TestServer::with_rules(RULES)
        .with_env("REFUSALS_LOG_SAMPLE_RATE", "1")
        .with_env("LOG_LEVEL", "warn")
        .start();
    let mut client = server.client().await;
    let descriptor = [("user", "ann\u{1b}[31m"), ("path", &*"/".repeat(1_000))];
    assert_eq!(
        [client.ask("d", &descriptor).await, client.ask("d", &descriptor).await],
        [Code::Ok, Code::OverLimit]
    );
    let log = server.log_with("over limit");
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("over limit")).collect();
    let [line] = lines[..] else { panic!("one line, not {log}") };
    let parts = [
        "WARN",
        " domain=d ",
        r"user=ann\\u{1b}[31m,path=//",
        r#"...""#,
        " rule=d.user.path ",
        r#" limit="1 per year, fixed_window, over-limit hits count" "#,
        " source=store ",
        "dropped=0",
    ];
    assert_has(line, &parts);
    let secs: u64 = line
        .split("retry_after_secs=")
        .nth(1)
        .and_then(|rest| rest.split(' ').next()?.parse().ok())
        .expect("it is a number");
    assert!((1..=366 * 86_400).contains(&secs), "{line}");
    assert!(
        line.len() < 600 && !line.contains('\u{1b}') && !line.contains("store_policy"),
        "{line}"
    );
}

#[test]
fn over_limit_line_and_dynamic_metadata_name_the_fallback() {
    let mut redis = RedisProcess::start();
    let server = TestServer::with_rules(&limit_of(5))
        .with_env("REDIS_URL", &redis.url())
        .with_env("ON_STORE_ERROR", "deny")
        .with_env("RESPONSE_DYNAMIC_METADATA", "true");
    let server = server.with_env("REFUSALS_LOG_SAMPLE_RATE", "1").start();
    redis.kill();
    let answer = server.json(K).json();
    let answered = (&answer["overallCode"], &answer["dynamicMetadata"]["tollgate"]["source"]);
    assert_eq!(answered, (&json!("OVER_LIMIT"), &json!("fallback")), "{answer}");
    server.assert_logged(r#"source=fallback store_policy="deny ("#);
}

#[tokio::test]
async fn over_limit_lines_per_second_are_bounded_and_drops_counted() {
    let server = TestServer::with_rules(&limit_of(1)).with_env("REFUSALS_LOG_SAMPLE_RATE", "1");
    let server = server
        .with_env("REFUSALS_LOG_LINES_PER_SECOND_MAX", "2")
        .with_env("LOG_FORMAT", "text")
        .start();
    let mut client = server.client().await;
    let began = Instant::now();
    for _ in 0..300 {
        client.answer(request("d", &[&[("k", "")]])).await;
    }
    // The calls began and ended within a second.
    let seconds_max = began.elapsed().as_secs() + 2;
    assert!(
        u64::from(lines(&server)) <= 2 * seconds_max,
        "{} lines in {seconds_max} s",
        lines(&server)
    );
    look_until("each line is logged or counted", || {
        server.metric(DROPPED) == Some(299.0 - f64::from(lines(&server)))
    });
    look_until("a line of a later second says how many were dropped", || {
        server.json(r#"{"domain":"d","descriptors":[{"entries":[{"key":"k"}]}]}"#);
        server.log().lines().any(|line| line.contains("dropped=") && !line.contains("dropped=0"))
    });
}

fn lines(server: &TestServer) -> u32 {
    u32::try_from(server.log().matches("over limit domain").count()).expect("fits")
}
