//! Metrics equal those of envoyproxy/ratelimit: on the Prometheus page with any mapping, in statsd and
//! in DogStatsD. No sink delays a request.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;

use tollgate::base::time::Span;
use tollgate::telemetry::dogstatsd::Tagging;
use tollgate::telemetry::metric::Metrics;
use tollgate::telemetry::statsd::{Exporter, Options, Protocol};

use crate::support::in_process::Log;
use crate::support::redis::RedisProcess;
use crate::support::statsd::{Received, Statsd};
use crate::support::{
    Builder, Client, Code, TestServer, eventually, http, limit_of, look_until, request,
};

/// Rules, mapping files, and the pages that the reference showed with them after [`make_calls`].
const RULES: &str = include_str!("metrics/rules.yaml");
const DEFAULT_PAGE: &str = include_str!("metrics/default.page");
const MAPPING: &str = include_str!("metrics/mapping.yaml");
const MAPPING_PAGE: &str = include_str!("metrics/mapping.page");
const ENVOY_GATEWAY: &str = include_str!("metrics/envoy_gateway.yaml");
const ENVOY_GATEWAY_PAGE: &str = include_str!("metrics/envoy_gateway.page");

/// Series whose names clients chose: what envoyproxy/ratelimit has behind `ratelimit_service_rate_limit_`
/// for each such name, and our family and labels.
const NAMED_BY_CLIENTS: [(&str, &str, &str); 3] = [
    ("nowhere_domain_not_found", "domain_not_found", r#"{domain="nowhere"}"#),
    ("d_detailed_with_dot_total_hits", "total_hits", DETAILED),
    ("d_detailed_with_dot_within_limit", "within_limit", DETAILED),
];
const DETAILED: &str = r#"{domain="d",key1="detailed_with",key2="dot"}"#;

/// A time for each call, in statsd.
const TIMES: &str = "ratelimit_server.ShouldRateLimit.response_time";

/// How often, the domain, and the entries of the one descriptor.
type Calls = (usize, &'static str, &'static [(&'static str, &'static str)]);

/// The calls that the recorded pages are of.
const CALLS: &[Calls] = &[
    (3, "d", &[("key1", "x")]),
    (1, "d", &[("key1", "x"), ("key2", "v")]),
    (1, "d", &[("key1", "x"), ("key2", "v"), ("key3", "a")]),
    (1, "d", &[("key1", "x"), ("key2", "v"), ("key3", "b")]),
    (2, "d", &[("shadow", "x")]),
    (1, "d", &[("detailed", "value")]),
    (1, "d", &[("detailed", "with.dot")]),
    (1, "d", &[("detailed", "10.0.0.1")]),
    (1, "nowhere", &[("k", "")]),
    (1, "", &[("k", "")]),
    (3, "d", &[("flood", "x")]),
    (3, "d", &[("key1", "x"), ("deep", "x")]),
];

async fn make_calls(client: &mut Client) {
    for (times, domain, entries) in CALLS {
        for _ in 0..*times {
            // One of them has no domain, and gets an error.
            let _ = client.call(request(domain, &[entries])).await;
        }
    }
}

/// With a short flush interval.
fn sending_to(statsd: &Statsd, rules: &str) -> Builder {
    let server = TestServer::with_rules(rules)
        .with_env("USE_STATSD", "true")
        .with_env("STATSD_HOST", "127.0.0.1");
    server
        .with_env("STATSD_PORT", &statsd.port())
        .with_env("STATS_FLUSH_INTERVAL", "20ms")
        .with_env("DRAIN_PERIOD", "0s")
}

const DOG_STATSD: [(&str, &str); 2] = [("USE_STATSD", "false"), ("USE_DOG_STATSD", "true")];

/// The counters of /stats except zeros, which statsd does not receive.
fn stats(server: &TestServer) -> BTreeMap<String, u64> {
    let stats = server.admin("/stats");
    let pairs = stats.lines().map(|line| line.rsplit_once(": ").expect("a name and a number"));
    pairs
        .map(|(name, value)| (name.to_owned(), value.parse().expect("a number")))
        .filter(|(_, value)| *value > 0)
        .collect()
}

/// Name and labels, and the value, of everything on a page that the reference could have, too, and
/// that is not zero.
fn series(page: &str) -> BTreeMap<&str, &str> {
    let lines = page
        .lines()
        .filter(|line| !["#", "tollgate_", "process_"].iter().any(|start| line.starts_with(start)));
    lines
        .map(|line| line.rsplit_once(' ').expect("a name and a number"))
        .filter(|(_, value)| *value != "0")
        .collect()
}

/// The Prometheus page is the recorded one, except times and connections, of
/// which there are others.
fn assert_as_recorded(server: &TestServer, recorded: &str) {
    let page = http::get(server.prometheus.expect("it is bound"), "/metrics").body;
    let as_ours = |recorded: String, &(theirs, family, labels): &(&str, &str, &str)| {
        let [theirs, family] =
            [theirs, family].map(|name| format!("ratelimit_service_rate_limit_{name}"));
        recorded
            .replace(&format!("# TYPE {theirs} "), &format!("# TYPE {family} "))
            .replace(&format!("{theirs} "), &format!("{family}{labels} "))
    };
    let recorded = NAMED_BY_CLIENTS.iter().fold(recorded.to_owned(), as_ours);
    let ours = series(&page);
    let theirs = series(&recorded);
    let varies =
        |name: &str| ["_bucket{", "_sum{", "_pool_cx_"].iter().any(|part| name.contains(part));
    for (name, value) in &theirs {
        // Times may be zero here.
        assert!(page.contains(&format!("\n{name} ")), "{name} is missing in\n{page}");
        let ours = ours.get(name);
        assert!(ours == Some(value) || varies(name), "{name} is {ours:?}, not {value}");
    }
    for name in ours.keys() {
        assert!(theirs.contains_key(name) || varies(name), "{name} is not in the reference");
    }
    for line in recorded.lines().filter(|line| line.starts_with("# TYPE")) {
        assert!(page.contains(&format!("{line}\n")), "{line} is missing in\n{page}");
    }
}

/// A server for Prometheus, with a mapping file.
fn mapped(rules: &str, mapping: &str) -> Builder {
    let server = TestServer::with_rules(rules).with_env("USE_PROMETHEUS", "true");
    let file = server.rules().with_file_name("mapping.yaml");
    fs::write(&file, mapping).expect("a file can be written");
    server.with_env("PROMETHEUS_MAPPER_YAML", &file.display().to_string())
}

/// A server for Prometheus, on a Redis, that answered the calls of the recorded pages.
pub(crate) async fn as_when_recorded(redis: &RedisProcess, mapping: Option<&str>) -> TestServer {
    let server = match mapping {
        Some(mapping) => mapped(RULES, mapping),
        None => TestServer::with_rules(RULES).with_env("USE_PROMETHEUS", "true"),
    };
    let server = server.with_env("REDIS_URL", &redis.address()).start();
    make_calls(&mut server.client().await).await;
    server
}

#[tokio::test]
async fn metrics_page_equals_the_reference_by_default() {
    let redis = RedisProcess::start();
    let server = as_when_recorded(&redis, None).await;
    assert_as_recorded(&server, DEFAULT_PAGE);
    assert!(server.metric("ratelimit_redis_pool_cx_active") >= Some(1.0));
}

#[tokio::test]
async fn metrics_page_equals_the_reference_with_a_mapping_file() {
    let redis = RedisProcess::start();
    let server = as_when_recorded(&redis, Some(MAPPING)).await;
    assert_as_recorded(&server, MAPPING_PAGE);
    let page = server.admin("/metrics");
    let buckets = page.matches("\ntook_bucket{method=\"ShouldRateLimit\"").count();
    assert_eq!(buckets, 4, "three bounds and infinity: {page}");
    server.assert_logged("ttl has no effect");
    server.assert_logged("mapping.yaml:3:3");
}

#[tokio::test]
async fn metrics_page_equals_the_reference_with_envoy_gateways_mapping() {
    let redis = RedisProcess::start();
    let server = as_when_recorded(&redis, Some(ENVOY_GATEWAY)).await;
    assert_as_recorded(&server, ENVOY_GATEWAY_PAGE);
    // Milliseconds, whatever the name says: 19 calls take longer than 19 µs, and less than a second
    // each.
    let sum = server
        .metric(r#"ratelimit_service_response_time_seconds_sum{grpc_method="ShouldRateLimit"}"#)
        .expect("the metric exists");
    assert!(sum > 0.019 && sum < 19_000.0, "{sum}");
    assert!(server.metric("tollgate_rules").is_some(), "what is our own is not dropped");
}

#[tokio::test]
async fn invalid_mapping_files_leave_the_usual_names() {
    let cases = [
        (
            "mappings:\n  - {match: a.b, name: m, match_type: wild}\n",
            "'wild' is no value of `match_type`",
        ),
        ("mappings: [", "mapping.yaml:1:"),
    ];
    for (text, expected) in cases {
        let server = mapped(&limit_of(1), text).start();
        server.assert_logged("ERROR");
        server.assert_logged(expected);
        server.client().await.ask("d", &[("k", "")]).await;
        server
            .assert_metric(r#"ratelimit_service_rate_limit_total_hits{domain="d",key1="k"}"#, 1.0);
    }
    let server = TestServer::with_rules(&limit_of(1))
        .with_env("USE_PROMETHEUS", "true")
        .with_env("PROMETHEUS_MAPPER_YAML", "/etc/statsd-exporter/conf.yaml")
        .start();
    server.assert_logged("PROMETHEUS_MAPPER_YAML: file not found; metrics keep their usual names");
    server.assert_metric("ratelimit_service_config_load_success", 1.0);
}

/// The calls of the recorded pages and those of names that statsd could trip over; ends the server,
/// and returns /stats and what statsd received.
async fn all_received(
    mut server: TestServer,
    statsd: &mut Statsd,
) -> (BTreeMap<String, u64>, Received) {
    let mut client = server.client().await;
    make_calls(&mut client).await;
    for value in ["a:b|c", "line\nbreak:1|c", "#@", "ünï"] {
        client.ask("d", &[("detailed", value)]).await;
    }
    let stats = stats(&server);
    end(&mut server, statsd).await;
    (stats, statsd.received())
}

/// Ends the server, and reads what it sent at last.
async fn end(server: &mut TestServer, statsd: &mut Statsd) {
    server.signal("TERM");
    assert_eq!(server.exit_code().await, Some(0));
    statsd.go();
}

#[tokio::test]
async fn statsd_totals_equal_the_stats_page() {
    // The last one receives everything by the flush at shutdown.
    for (protocol, interval) in [("tcp", "20ms"), ("udp", "20ms"), ("", "1h"), ("udp", "1h")] {
        let mut statsd = Statsd::start();
        let server = sending_to(&statsd, RULES)
            .with_env("STATSD_PROTOCOL", protocol)
            .with_env("STATS_FLUSH_INTERVAL", interval)
            .start();
        let (stats, received) = all_received(server, &mut statsd).await;
        assert_eq!(received.counters, stats, "{protocol} {interval}");
        assert_eq!(received.times.get(TIMES), Some(&23.0), "19 + 4 calls, {protocol} {interval}");
        let connections = usize::from(protocol != "udp");
        assert_eq!(received.connections, connections, "{protocol} {interval}");
        let zeros = received.lines.iter().filter(|line| line.contains(":0|c"));
        assert_eq!(zeros.count(), 0, "{:?}", received.lines);
        let hits = "ratelimit.service.rate_limit.d.detailed_line_break_1_c.total_hits";
        assert!(stats.contains_key(hits), "{stats:?}");
    }
}

#[tokio::test]
async fn gauges_are_sent_with_every_flush() {
    let redis = RedisProcess::start();
    let statsd = Statsd::start();
    let server = sending_to(&statsd, &limit_of(1))
        .with_env("REDIS_URL", &redis.address())
        .with_env("LOCAL_CACHE_SIZE_IN_BYTES", "10000")
        .start();
    let mut client = server.client().await;
    for _ in 0..4 {
        client.ask("d", &[("k", "")]).await;
    }
    let gauge = |name: &str| statsd.received().gauges.get(name).copied();
    eventually("over-limit cache hits are sent", async || {
        gauge("ratelimit.localcache.hitCount").is_some_and(|hits| hits >= 1)
    })
    .await;
    assert_eq!(gauge("ratelimit.localcache.evacuateCount"), Some(0));
    assert!(
        gauge("ratelimit.redis_pool.cx_active").is_some_and(|connections| connections >= 1),
        "{:?}",
        statsd.received().gauges
    );
    let times_sent = || {
        let lines = statsd.received().lines.into_iter();
        lines.filter(|line| line.starts_with("ratelimit.localcache.evacuateCount:0|g")).count()
    };
    let before = times_sent();
    eventually("it is sent again", async || times_sent() > before + 2).await;
    assert_eq!(
        statsd.counter("ratelimit.redis_pool.cx_total"),
        stats(&server)["ratelimit.redis_pool.cx_total"]
    );
}

#[tokio::test]
async fn extra_tags_are_sent_to_statsd_and_dogstatsd() {
    let statsd = Statsd::start();
    let server =
        sending_to(&statsd, &limit_of(9)).with_env("EXTRA_TAGS", "zone:eu.west,app:b").start();
    server.client().await.ask("d", &[("k", "")]).await;
    let name = "ratelimit.service.rate_limit.d.k.total_hits";
    eventually("it is received", async || {
        statsd.counter(&format!("{name}.__app=b.__zone=eu_west")) == 1
    })
    .await;
    let untagged: Vec<String> = statsd
        .received()
        .lines
        .into_iter()
        .filter(|line| !line.contains(".__app=b.__zone=eu_west:"))
        .collect();
    assert!(untagged.is_empty(), "{untagged:?}");

    let statsd = Statsd::start();
    let server = sending_to(&statsd, &limit_of(9))
        .with_envs(&DOG_STATSD)
        .with_env("EXTRA_TAGS", "zone:eu.west,app:b")
        .start();
    server.client().await.ask("d", &[("k", "")]).await;
    eventually("it is received", async || {
        statsd.counter(&format!("{name}|#app:b,zone:eu_west")) == 1
    })
    .await;
    assert_eq!(statsd.received().connections, 0, "it is sent by UDP");
}

#[tokio::test]
async fn statsd_receives_everything_after_outages() {
    let mut statsd = Statsd::away();
    let server = sending_to(&statsd, &limit_of(1_000)).start();
    let mut client = server.client().await;
    client.ask("d", &[("k", "")]).await;
    look_until("it is missed", || {
        server.metric("tollgate_statsd_flushes_failed_total") >= Some(1.0)
    });
    let hits = "ratelimit.service.rate_limit.d.k.total_hits";
    for expected in 1..=3 {
        statsd.come();
        eventually("it receives what was counted meanwhile", async || {
            statsd.counter(hits) == expected
        })
        .await;
        statsd.go();
        client.ask("d", &[("k", "")]).await;
        let failed = server.metric("tollgate_statsd_flushes_failed_total");
        look_until("it is missed again", || {
            server.metric("tollgate_statsd_flushes_failed_total") > failed
        });
    }
    statsd.come();
    eventually("nothing is lost or sent twice", async || {
        statsd.received().counters == stats(&server)
    })
    .await;
    server.assert_metric("tollgate_statsd_lines_lost_total", 0.0);
    let lines = || server.log().matches("does not accept metrics").count();
    look_until("it is logged each time that it was away", || lines() >= 4);
    assert_eq!(lines(), 4, "{}", server.log());
}

#[tokio::test]
async fn a_statsd_that_does_not_read_delays_no_request() {
    // A listener that never accepts: the kernel buffers what fits.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    // A long tag makes much of few lines.
    let long = "x".repeat(7_000);
    let mut server = sending_to(&Statsd::away(), &limit_of(1_000_000))
        .with_env("STATSD_PORT", &port.to_string())
        .with_env("EXTRA_TAGS", &format!("long:{long}"))
        .with_env("SHUTDOWN_TIMEOUT", "5s")
        .start();
    let mut client = server.client().await;
    let mut calls = 0_u32;
    eventually("it is given up", async || {
        for _ in 0..100 {
            assert_eq!(client.ask("d", &[("k", "")]).await, Code::Ok);
            calls += 1;
        }
        server.log().contains("does not accept metrics")
    })
    .await;
    let lost = server.metric(&format!("tollgate_statsd_lines_lost_total{{long=\"{long}\"}}"));
    assert!(lost > Some(0.0), "what was being written may have arrived or not");
    let requests = "ratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"";
    server.assert_metric(&format!("{requests},long=\"{long}\"}}"), f64::from(calls));
    server.signal("TERM");
    assert_eq!(server.exit_code().await, Some(0), "the last flush has an end, too");
}

#[tokio::test]
async fn missing_default_statsd_is_not_logged() {
    let statsd = Statsd::away();
    let log = Log::capture();
    let metrics = Metrics::new();
    let options = Options {
        host: "127.0.0.1".to_owned(),
        port: statsd.port().parse().expect("a port"),
        protocol: Protocol::Tcp,
        interval: Span::from_micros(20_000),
        tagging: Tagging::default(),
        is_requested: false,
    };
    let _exporter = Exporter::new(options, &metrics).start();
    eventually("it was tried twice", async || {
        let page = metrics.page();
        let failed = |times| format!("\ntollgate_statsd_flushes_failed_total {times}\n");
        ![0, 1].map(failed).iter().any(|line| page.contains(line))
    })
    .await;
    assert_eq!(log.lines(&["statsd"]), [""; 0]);
}

#[test]
fn disabled_statsd_receives_nothing() {
    let settings: [&[(&str, &str)]; 4] = [
        &[("USE_STATSD", "false")],
        &[("USE_PROMETHEUS", "true")],
        &[("DISABLE_STATS", "true")],
        &[("DISABLE_STATS", "true"), ("USE_STATSD", "true"), ("USE_PROMETHEUS", "true")],
    ];
    for settings in settings {
        let server = TestServer::with_rules(&limit_of(1)).with_env("STATS_FLUSH_INTERVAL", "10ms");
        let server = server.with_envs(settings).start();
        let flushes = server.metric("tollgate_statsd_flushes_failed_total");
        assert_eq!(flushes, None, "{settings:?}");
        let has_prometheus = settings == [("USE_PROMETHEUS", "true")];
        assert_eq!(server.prometheus.is_some(), has_prometheus, "{settings:?}");
        // The admin port shows it.
        server.assert_metric("ratelimit_service_config_load_success", 1.0);
        server.assert_not_logged("statsd");
    }
}

#[tokio::test]
async fn gauges_of_rules_follow_reloads() {
    let rule = |value: &str, limit: u32| {
        format!(
            "\n- {{key: k, value: {value}, rate_limit: {{unit: year, requests_per_unit: {limit}}}}}"
        )
    };
    let server = TestServer::with_rules(&format!(
        "domain: d\ndescriptors:{}{}\n",
        rule("a", 2),
        rule("b", 2)
    ));
    let server = server.start();
    server.client().await.ask("d", &[("k", "a")]).await;
    server.write("rules.yaml", &format!("domain: d\ndescriptors:{}\n", rule("a", 5)));
    let series = |gauge: &str, value: &str| {
        format!(
            r#"tollgate_rule_{gauge}{{domain="d",key1="k_{value}",limit="",rule="d.k_{value}"}}"#
        )
    };
    server.metric_becomes(&series("limit", "a"), 5.0).await;
    server.assert_metric(&series("used", "a"), 1.0);
    assert_eq!(server.metric(&series("limit", "b")), None);
}

#[tokio::test]
async fn gauges_of_rules_have_what_redis_says_is_used() {
    let redis = RedisProcess::start();
    let rules = "
domain: d
descriptors:
  - key: bucket
    value: a
    rate_limit: {unit: year, requests_per_unit: 10}
    metadata: {tollgate: {algorithm: token_bucket, burst: 30}}
  - key: work
    value: a
    descriptors:
      - key: holder
        rate_limit: {unit: second, requests_per_unit: 8}
        metadata: {tollgate: {algorithm: concurrency, lease_by: holder, lease: 1h}}
";
    let server = TestServer::with_rules(rules).with_env("REDIS_URL", &redis.address()).start();
    let mut client = server.client().await;
    let bucket = [("bucket", "a")];
    let [first, second] = ["1", "2"].map(|holder| [("work", "a"), ("holder", holder)]);
    for entries in [&bucket[..], &first, &second] {
        client.ask("d", entries).await;
    }
    let used = |labels: &str| format!("tollgate_rule_used{{domain=\"d\",{labels}}}");
    server.assert_metric(&used(r#"key1="bucket_a",limit="",rule="d.bucket_a""#), 1.0);
    let holders = r#"key1="work_a",key2="holder",limit="",rule="d.work_a.holder""#;
    server.assert_metric(&used(holders), 2.0);
}
