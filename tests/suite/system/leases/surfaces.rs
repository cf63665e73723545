//! What operators see of leases: counters, console, over-limit feed and log, spans, trial.

use std::io::BufRead as _;

use serde_json::json;

use crate::support::http::{self, Connection};
use crate::support::otlp::Collector;
use crate::support::redis::RedisProcess;
use crate::support::{Code, TestServer, eventually, look_until, tollgate};
use crate::system::leases::fleet::{Fleet, per_year, rules};

/// In the time of a test no lease returns by itself.
const LONG: &str = ", lease: 60s";
const COUNTER: &str = "/api/v1/counters?domain=d&e=key%3Dhot";

#[tokio::test]
async fn counters_and_console_show_what_is_held() {
    let fleet = Fleet::of(2, &per_year(1_000_000), LONG).await;
    let calls: u64 = 300;
    for call in 0..calls {
        let service = usize::try_from(call % 2).expect("one of two");
        assert_eq!(fleet.ask(service, "hot").await, 1);
    }
    let [one, other] = &fleet.services[..] else {
        panic!("two services");
    };
    let held = |server: &TestServer| server.admin_json(COUNTER)["leased"].as_u64();
    // No take is in flight any more.
    eventually("each hit was used or is held", async || {
        let used = one.admin_json(COUNTER)["used"].as_u64();
        let held = [one, other].map(|server| held(server).expect("a number"));
        used == Some(held.iter().sum::<u64>() + calls)
    })
    .await;
    let here = held(one).expect("a number");
    let there = held(other).expect("a number");
    assert!(here > 0 && there > 0, "{here} and {there}");
    one.assert_metric("tollgate_leased_hits", figure(here));

    let url = format!("http://{}", one.admin);
    let is_own = |line: &str| line.split_whitespace().eq(["leased", &here.to_string()]);
    for command in [&["counter", "get"], &["explain", "--live"]] {
        let ran = tollgate(&[&command[..], &["--url", &url, "d", "key=hot"]].concat());
        assert!(ran.stdout.lines().any(is_own), "{ran:?}");
    }

    let taken =
        one.metric(r#"tollgate_rule_lease_hits_total{domain="d",key1="key",event="taken"}"#);
    let taken = taken.expect("hits were taken");
    for (path, shown) in [
        (
            "key?domain=d&e=key%3Dhot",
            format!(">{here}</dd><dd class=\"note\">of used, held by this replica, one of 2<"),
        ),
        (
            "rule?domain=d&rule=d.key",
            format!(
                ">{here}</dd><dd class=\"note\">unused, of {taken} taken by this replica, one of 2"
            ),
        ),
    ] {
        let page = http::get(one.admin, &format!("/console/{path}")).body;
        assert!(page.contains(&shown), "{shown}: {page}");
    }
}

/// Reads until a line has this part.
fn find_line(connection: &mut Connection, part: &str) {
    let mut line = String::new();
    while !line.contains(part) {
        line.clear();
        let read = connection.0.read_line(&mut line).expect("it goes on");
        assert!(read > 0, "it ended before {part}");
    }
}

fn figure(count: u64) -> f64 {
    u32::try_from(count).expect("a few").into()
}

#[tokio::test]
async fn feed_log_and_spans_name_leases_as_source() {
    let redis = RedisProcess::start();
    let collector = Collector::start();
    let server = TestServer::with_rules(&rules(&per_year(200), "consistency: leased"))
        .with_envs(&[
            ("REDIS_URL", &*redis.url()),
            ("REFUSALS_LOG_SAMPLE_RATE", "1"),
            ("REFUSALS_LOG_LINES_PER_SECOND_MAX", "100000"),
            ("TRACING_ENABLED", "true"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{}", collector.http)),
        ])
        .start();
    server.metric_becomes("tollgate_replicas", 1.0).await;
    let mut feed = Connection::open(server.admin);
    feed.write(b"GET /api/v1/over-limit HTTP/1.1\r\nhost: test\r\n\r\n").expect("it is open");
    find_line(&mut feed, "text/event-stream");
    let mut client = server.client().await;
    let mut admitted = 0;
    for _ in 0..300 {
        let code = client.ask("d", &[("key", "hot")]).await;
        admitted += u32::from(code == Code::Ok);
    }
    assert_eq!(admitted, 200);
    let held = || server.metric("tollgate_lease_held_answers_total");
    assert!(held() > Some(0.0), "each call over limit asked Redis");
    look_until("each answer without Redis is logged as such", || {
        let lines = server.log().matches(" source=lease ").count();
        held() == Some(figure(lines as u64))
    });
    find_line(&mut feed, r#""source":"lease""#);
    for code in ["OK", "OVER_LIMIT"] {
        let span = collector.wait_for(&format!("{code} by a lease is traced"), |span| {
            let is =
                |name: &str, value: &str| span.attributes.get(name).is_some_and(|one| one == value);
            is("tollgate.code", code) && is("tollgate.source", "lease")
        });
        let children = collector.spans();
        assert!(
            children.iter().all(|child| child.parent != span.id),
            "Redis was not called: {span:#?}"
        );
    }
}

#[tokio::test]
async fn trial_has_a_class_for_leased_verdicts() {
    let redis = RedisProcess::start();
    let leased = rules(&per_year(400), "consistency: leased");
    let on_redis = |rules: &str| TestServer::with_rules(rules).with_env("REDIS_URL", &redis.url());
    {
        let before = on_redis(&rules(&per_year(400), "")).with_env("CACHE_KEY_PREFIX", "trial:");
        let before = before.start();
        let mut client = before.client().await;
        for _ in 0..200 {
            client.ask("d", &[("key", "hot")]).await;
        }
    }
    let upstream = TestServer::with_rules(&rules(&per_year(400), "")).start();
    let server = on_redis(&leased).with_env("TRIAL_UPSTREAM", &upstream.grpc.to_string()).start();
    server.metric_becomes("tollgate_replicas", 1.0).await;
    let mut client = server.client().await;
    for _ in 0..400 {
        assert_eq!(client.ask("d", &[("key", "hot")]).await, Code::Ok);
    }
    eventually("requests are compared", async || server.admin_json("/trial")["requests"] == 400)
        .await;
    let shown = server.admin_json("/trial");
    let rule = &shown["rules"][0];
    assert_eq!((&rule["over_here"], &rule["over_there"]), (&json!(200), &json!(0)));
    let held = server.metric("tollgate_lease_held_answers_total").expect("it is exposed");
    assert!(held > 0.0);
    assert_eq!(rule["classes"]["leased"].as_f64(), Some(held), "{rule}");
}
