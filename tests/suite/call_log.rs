//! The lines about calls at LOG_LEVEL=debug.

use tokio::time::Instant;

use crate::support::redis::RedisProcess;
use crate::support::{Builder, Code, TestServer, limit_of, look_until, request};

const RULES: &str = "
domain: rl
descriptors:
  - {key: k, rate_limit: {unit: year, requests_per_unit: 1}}
  - key: generic_key
    value: slow
    rate_limit: {unit: year, requests_per_unit: 9}
  - key: generic_key
    value: other
    descriptors: [{key: user, rate_limit: {unlimited: true}}]
";
/// The domain and the descriptors of a call, what is found for them, and the code.
const CALLS: &str = "
rl | generic_key=slowpath | no rule for this value of generic_key, nearest is slow | OK
rl | generic_kee=slow | no rule for key generic_kee, nearest is generic_key | OK
rl | generic_key=other | no rule: generic_key_other has no rate_limit | OK
rl | k=v,path=/a | no rule: nothing is below k | OK
rl | generic_key=other,user=ann | rule rl.generic_key_other.user: unlimited, or replaced by another rule of the call | OK
ingress | k=v | no rule: unknown domain, nearest is rl | OK
rl | k=v | rule rl.k: OK by store, 0 left of 1 per year, fixed_window, over-limit hits count | OK
rl | k=v; x= | rule rl.k: OVER_LIMIT by store, 0 left of 1 per year, fixed_window, over-limit hits count; no rule for key x, nearest is k | OVER_LIMIT
";
const DROPPED: &str = "tollgate_call_log_dropped_total";

fn server(level: &str) -> Builder {
    TestServer::with_rules(RULES).with_env("LOG_LEVEL", level)
}

/// The lines about calls, without their times.
fn lines(server: &TestServer) -> Vec<String> {
    let log = server.log();
    let lines = log.lines().filter_map(|line| line.split_once(" DEBUG "));
    let of_calls = lines.map(|(_, rest)| rest.trim().to_owned());
    of_calls.filter(|line| line.starts_with("call ")).collect()
}

#[tokio::test]
async fn each_call_is_a_line_with_what_was_received_and_found() {
    let server = server("debug").with_env("ADMIN_REDACT", "none").start();
    let mut client = server.client().await;
    for line in CALLS.trim().lines() {
        let cells: Vec<&str> = line.split(" | ").collect();
        let [domain, descriptors, found, code] = cells[..] else { panic!("four cells: {line}") };
        let entries = |one: &'static str| one.split(',').filter_map(|entry| entry.split_once('='));
        let each: Vec<Vec<_>> = descriptors.split("; ").map(|one| entries(one).collect()).collect();
        let each: Vec<&[_]> = each.iter().map(Vec::as_slice).collect();
        let before = lines(&server).len();
        client.answer(request(domain, &each)).await;
        look_until("it is logged", || lines(&server).len() > before);
        let expected = format!(
            r#"call domain={domain} descriptors="{descriptors}" found="{found}" code={code}"#
        );
        let logged = &lines(&server)[before..];
        assert!(logged.len() == 1 && logged[0].starts_with(&expected), "{logged:?}\n{expected}");
    }
    client.call(request("", &[&[("k", "v")]])).await.expect_err("it has no domain");
    look_until("it is logged", || {
        let invalid = r#"call domain="" descriptors="k=v" error="#;
        lines(&server).last().is_some_and(|line| line.starts_with(invalid))
    });
}

#[test]
fn calls_by_json_are_lines() {
    let server = server("debug").start();
    server.json(r#"{"domain":"rl","descriptors":[{"entries":[{"key":"x","value":"1"}]}]}"#);
    look_until("it is logged", || !lines(&server).is_empty());
    assert!(lines(&server)[0].contains("no rule for key x, nearest is k"));
}

#[tokio::test]
async fn values_of_lines_are_shown_as_admin_redact_says() {
    let server = server("debug").with_env("ADMIN_REDACT", "drop").start();
    let mut client = server.client().await;
    client.ask("rl", &[("k", "ann@example.org")]).await;
    client.ask("rl", &[("generic_key", "slow")]).await;
    look_until("both are logged", || lines(&server).len() == 2);
    server.assert_not_logged("ann@example.org");
    let expected = "descriptors=\"k=\" ";
    assert!(lines(&server)[0].contains(expected), "{:?}", lines(&server));
    assert!(lines(&server)[1].contains("generic_key=slow"), "a value of the rules");
}

#[tokio::test]
async fn a_line_names_the_fallback() {
    let mut redis = RedisProcess::start();
    let server = server("debug").with_env("REDIS_URL", &redis.url()).start();
    redis.kill();
    server.client().await.ask("rl", &[("k", "v")]).await;
    look_until("it is logged", || !lines(&server).is_empty());
    assert!(lines(&server)[0].contains("rule rl.k: OK by fallback"), "{:?}", lines(&server));
}

#[tokio::test]
async fn without_debug_no_call_is_a_line() {
    for level in ["", "info"] {
        let server = server(level).start();
        let mut client = server.client().await;
        assert_eq!(client.ask("rl", &[("x", "v")]).await, Code::Ok);
        assert_eq!(server.json("{}").status, 400);
        server.assert_not_logged("call domain");
        assert_eq!(server.metric(DROPPED), Some(0.0));
    }
}

#[tokio::test]
async fn lines_of_calls_are_bounded_per_second_and_drops_counted() {
    let server = TestServer::with_rules(&limit_of(1)).with_env("LOG_LEVEL", "debug").start();
    let mut client = server.client().await;
    let began = Instant::now();
    for _ in 0..1_000 {
        client.answer(request("d", &[&[("k", "")]])).await;
    }
    let seconds_max = began.elapsed().as_secs() + 2;
    look_until("each is logged or counted", || {
        let logged = u32::try_from(lines(&server).len()).expect("a few");
        server.metric(DROPPED) == Some(1_000.0 - f64::from(logged))
    });
    let logged = lines(&server).len() as u64;
    assert!(logged <= 100 * seconds_max, "{logged} lines in {seconds_max} s");
}
