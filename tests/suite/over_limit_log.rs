//! The log of refusals: off unless it is asked for, and bounded where it is on.

use tokio::time::Instant;

use crate::support::redis::RedisProcess;
use crate::support::{Code, TestServer, limit_of, look_until, request};

const RULES: &str = "{domain: d, descriptors: [{key: user, descriptors: [{key: path, rate_limit: {unit: year, requests_per_unit: 1}}]}]}";
const LEFT_OUT: &str = "tollgate_over_limit_log_dropped_total";

#[tokio::test]
async fn refusals_are_not_logged_unless_it_is_asked_for() {
    for rate in ["", "0"] {
        let server = TestServer::with_rules(&limit_of(1))
            .with_env("REFUSALS_LOG_SAMPLE_RATE", rate)
            .with_env("REFUSALS_LOG_LINES_PER_SECOND_MAX", "")
            .start();
        let mut client = server.client().await;
        assert_eq!(
            [
                client.ask("d", &[("k", "")]).await,
                client.ask("d", &[("k", "")]).await
            ],
            [Code::Ok, Code::OverLimit]
        );
        assert!(!server.log().contains("refused"), "{}", server.log());
    }
}

#[tokio::test]
async fn a_refusal_is_a_line_with_what_was_asked_which_rule_refused_and_when_to_come_again() {
    let server = TestServer::with_rules(RULES)
        .with_env("REFUSALS_LOG_SAMPLE_RATE", "1")
        .with_env("LOG_LEVEL", "warn")
        .start();
    let mut client = server.client().await;
    let descriptor = [("user", "ann\u{1b}[31m"), ("path", &*"/".repeat(1_000))];
    assert_eq!(
        [
            client.ask("d", &descriptor).await,
            client.ask("d", &descriptor).await
        ],
        [Code::Ok, Code::OverLimit]
    );
    let log = server.log();
    let lines: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("refused"))
        .collect();
    let [line] = lines[..] else {
        panic!("one line, not {log}")
    };
    for part in [
        "WARN",
        " domain=d ",
        r"user=ann\\u{1b}[31m,path=//",
        r#"...""#,
        " rule=d.user.path ",
        r#" limit="1 per year, fixed_window, refused hits count" "#,
        "left_out=0",
    ] {
        assert!(line.contains(part), "no {part} in {line}");
    }
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

#[tokio::test]
async fn a_line_names_the_policy_where_the_store_had_no_say() {
    let mut redis = RedisProcess::start();
    let server = TestServer::with_rules(&limit_of(5))
        .with_env("REDIS_URL", &redis.url())
        .with_env("ON_STORE_ERROR", "deny");
    let server = server.with_env("REFUSALS_LOG_SAMPLE_RATE", "1").start();
    redis.kill();
    assert_eq!(
        server.client().await.ask("d", &[("k", "")]).await,
        Code::OverLimit
    );
    assert!(
        server.log().contains(r#"store_policy="deny ("#),
        "{}",
        server.log()
    );
}

#[tokio::test]
async fn a_flood_of_refusals_is_so_many_lines_a_second_and_tells_how_many_were_left_out() {
    let server = TestServer::with_rules(&limit_of(1)).with_env("REFUSALS_LOG_SAMPLE_RATE", "1");
    let server = server
        .with_env("REFUSALS_LOG_LINES_PER_SECOND_MAX", "2")
        .with_env("LOG_FORMAT", "text")
        .start();
    let mut client = server.client().await;
    let began = Instant::now();
    for _ in 0..300 {
        client
            .call(request("d", &[&[("k", "")]]))
            .await
            .expect("there is an answer");
    }
    // The seconds that the calls took, and the two that they began and ended in.
    let seconds_max = began.elapsed().as_secs() + 2;
    assert!(
        u64::from(lines(&server)) <= 2 * seconds_max,
        "{} lines in {seconds_max} s",
        lines(&server)
    );
    let left_out = server.metric(LEFT_OUT).expect("it is on the page");
    assert_eq!(
        server.metric(LEFT_OUT),
        Some(299.0 - f64::from(lines(&server))),
        "each is either told or counted"
    );
    // The first line of a later second says so.
    look_until("lines tell how many were left out", || {
        server.json(r#"{"domain":"d","descriptors":[{"entries":[{"key":"k"}]}]}"#);
        told(&server) >= left_out
    });
    assert!(told(&server) <= server.metric(LEFT_OUT).expect("it is on the page"));
}

fn lines(server: &TestServer) -> u32 {
    u32::try_from(server.log().matches("refused domain").count()).expect("there are few")
}

/// What all lines together say was left out.
fn told(server: &TestServer) -> f64 {
    let log = server.log();
    let numbers = log
        .lines()
        .filter_map(|line| line.split("left_out=").nth(1)?.trim().parse::<f64>().ok());
    numbers.sum()
}

#[tokio::test]
async fn a_part_of_the_refusals_can_be_asked_for() {
    let server = TestServer::with_rules(&limit_of(1)).with_env("REFUSALS_LOG_SAMPLE_RATE", "0.5");
    let server = server
        .with_env("REFUSALS_LOG_LINES_PER_SECOND_MAX", "100000")
        .start();
    let mut client = server.client().await;
    for _ in 0..400 {
        client
            .call(request("d", &[&[("k", "")]]))
            .await
            .expect("there is an answer");
    }
    let told = server
        .log()
        .lines()
        .filter(|line| line.contains("refused"))
        .count();
    assert!((130..270).contains(&told), "{told} of 399");
    assert_eq!(server.metric(LEFT_OUT), Some(0.0));
}

#[test]
fn settings_of_the_log_of_refusals_that_make_no_sense_are_refused_by_name() {
    for (name, value) in [
        ("REFUSALS_LOG_SAMPLE_RATE", "2"),
        ("REFUSALS_LOG_SAMPLE_RATE", "all"),
        ("REFUSALS_LOG_LINES_PER_SECOND_MAX", "0"),
    ] {
        let ran = TestServer::with_rules(&limit_of(1))
            .with_env(name, value)
            .start_and_fail();
        assert_eq!(ran.code, Some(78), "{}", ran.stderr);
        assert!(ran.stderr.contains(name), "{}", ran.stderr);
    }
}
