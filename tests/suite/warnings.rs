//! Limits that are used up to a threshold of `warn_at`: what clients, Envoy and operators get, and
//! that each crossing is reported once.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::races::{RaceCall, SERVICES, race};
use crate::support::redis::RedisProcess;
use crate::support::{Code, TestServer, assert_has, request};
use crate::top::{event, feed};

const RULES: &str = "
domain: d
descriptors:
- key: team
  rate_limit: {name: team, unit: day, requests_per_unit: 10}
  metadata:
    tollgate:
      warn_at: [50%, 80%]
      limits: [{requests: 20, unit: month, calendar: UTC, warn_at: 25%}]
- key: soft
  shadow_mode: true
  rate_limit: {unit: day, requests_per_unit: 2}
  metadata: {tollgate: {warn_at: 50%}}
- {key: plain, rate_limit: {unit: day, requests_per_unit: 10}}
- key: all
  value: x
  rate_limit: {unit: day, requests_per_unit: 10}
  metadata: {tollgate: {limits: [{name: monthly, requests: 20, unit: month, calendar: UTC}]}}
";
const LINE: &str = "limit is used up to a threshold";

/// A call of `/json`.
fn ask(server: &TestServer, entry: &str, hits: u32) -> Value {
    let body = format!(
        r#"{{"domain":"d","descriptors":[{{"entries":[{{"key":"{entry}","value":"x"}}]}}],"hitsAddend":{hits}}}"#
    );
    server.json(&body).json()
}

/// A header of a response; empty without.
fn header<'a>(answer: &'a Value, name: &str) -> &'a str {
    let headers = answer["responseHeadersToAdd"].as_array();
    let mut headers = headers.into_iter().flatten();
    let header = headers.find(|header| header["key"] == name);
    header.and_then(|header| header["value"].as_str()).unwrap_or_default()
}

/// The warnings of a response: those of the header, without the seconds, and of the metadata.
fn warnings(answer: &Value) -> [Value; 2] {
    let header = header(answer, "x-ratelimit-warning");
    let members = header.split(", ").filter(|member| !member.is_empty());
    let members = members.map(|member| {
        let (used, secs) = member.split_once(";t=").expect("seconds");
        assert!((1..=31 * 86_400).contains(&secs.parse().unwrap_or(0)), "{member}");
        used
    });
    let metadata = &answer["dynamicMetadata"]["tollgate"]["warnings"];
    [members.collect(), metadata.clone()]
}

/// How often thresholds were crossed, by limit and threshold.
fn crossings(server: &TestServer, rule: &str) -> BTreeMap<String, f64> {
    let page = server.admin("/metrics");
    let series =
        page.lines().filter_map(|line| line.strip_prefix("tollgate_limit_crossings_total{"));
    let series = series.filter(|line| line.contains(&format!(r#"rule="{rule}""#)));
    let values = series.map(|line| {
        let label = |name: &str| {
            let (_, rest) = line.split_once(&format!("{name}=\"")).expect("a label");
            rest.split_once('"').expect("its end").0.to_owned()
        };
        let (_, value) = line.rsplit_once(' ').expect("a value");
        let name = format!("{} {}", label("limit"), label("threshold"));
        (name, value.parse().expect("a number"))
    });
    values.collect()
}

fn by_name<const N: usize>(crossings: [(&str, f64); N]) -> BTreeMap<String, f64> {
    crossings.map(|(name, count)| (name.to_owned(), count)).into()
}

#[test]
fn responses_warn_from_the_lowest_threshold_on() {
    let server = TestServer::with_rules(RULES).with_env("RESPONSE_DYNAMIC_METADATA", "true");
    let server = server.start();
    assert_eq!(warnings(&ask(&server, "team", 4)), [json!([]), json!(null)]);
    let answer = ask(&server, "team", 4);
    assert_eq!(
        warnings(&answer),
        [
            json!([r#""team";used=80"#, r#""team-month";used=40"#]),
            json!([
                {"name": "team", "used_percent": 80, "threshold_percent": 80},
                {"name": "team-month", "used_percent": 40, "threshold_percent": 25},
            ]),
        ]
    );
    let mut limits = answer["dynamicMetadata"]["tollgate"]["limits"].clone();
    for limit in limits.as_array_mut().expect("a list") {
        assert!(limit["reset_seconds"].take().as_f64() >= Some(1.0), "{limit}");
    }
    let limit = |name, limit, used, remaining| {
        json!({
            "rule": "d.team", "name": name, "over_limit": false, "limit": limit, "used": used,
            "remaining": remaining, "reset_seconds": null,
        })
    };
    let expected = [limit("team", 10, 8, 2), limit("team-month", 20, 8, 12)];
    assert_eq!(limits, json!(expected));

    let over = ask(&server, "team", 3);
    assert_eq!(over["overallCode"], "OVER_LIMIT");
    assert_eq!(warnings(&over), [json!([]), json!(null)]);
    assert_eq!(over["dynamicMetadata"]["tollgate"]["limits"][0]["over_limit"], true);
    let plain = ask(&server, "plain", 10);
    assert_eq!(warnings(&plain), [json!([]), json!(null)]);
    assert_eq!(plain["dynamicMetadata"]["tollgate"]["limits"], json!(null));
}

#[test]
fn ietf_headers_and_gauges_have_each_limit() {
    let server = TestServer::with_rules(RULES).with_env("IETF_RATELIMIT_HEADERS_ENABLED", "true");
    let server = server.start();
    let answer = ask(&server, "all", 4);
    let policies = r#""descriptor-0";q=10;w=86400, "monthly";q=20"#;
    assert_eq!(header(&answer, "RateLimit-Policy"), policies);
    let members = header(&answer, "RateLimit").split(", ");
    let remaining: Vec<_> =
        members.map(|member| member.split(";t=").next().unwrap_or_default()).collect();
    assert_eq!(remaining, [r#""descriptor-0";r=6"#, r#""monthly";r=16"#]);
    for (limit, requests) in [("", 10.0), ("monthly", 20.0)] {
        let labels = format!(r#"{{domain="d",key1="all_x",limit="{limit}",rule="d.all_x"}}"#);
        server.assert_metric(&format!("tollgate_rule_limit{labels}"), requests);
        server.assert_metric(&format!("tollgate_rule_used{labels}"), 4.0);
    }
}

#[tokio::test]
async fn crossings_are_counted_logged_and_sent_to_readers() {
    let server = TestServer::with_rules(RULES).with_env("ADMIN_REDACT", "drop").start();
    let mut events = feed(&server, "");
    let mut client = server.client().await;
    for _ in 0..10 {
        assert_eq!(client.ask("d", &[("team", "ann")]).await, Code::Ok);
    }
    assert_eq!(client.ask("d", &[("team", "ann")]).await, Code::OverLimit);
    let expected =
        by_name([("team 100", 1.0), ("team 50", 1.0), ("team 80", 1.0), ("team-month 25", 1.0)]);
    assert_eq!(crossings(&server, "d.team"), expected);

    let found: Vec<Value> = (0..5).map(|_| event(&mut events)).collect();
    let of_type = |event: &Value| {
        ["type", "limit_name", "threshold_percent", "used_percent"]
            .map(|field| event[field].clone())
    };
    let expected = json!([
        ["warning", "team", 50, 50],
        ["warning", "team-month", 25, 25],
        ["warning", "team", 80, 80],
        ["warning", "team", 100, 100],
        ["over_limit", "team", null, null],
    ]);
    assert_eq!(json!(found.iter().map(of_type).collect::<Vec<_>>()), expected);
    assert_eq!(found[0]["descriptor"], json!([["team", ""]]));

    let log = server.log_with("threshold_percent=100");
    let lines: Vec<&str> = log.lines().filter(|line| line.contains(LINE)).collect();
    assert_eq!(lines.len(), 4, "{log}");
    let parts = [
        "WARN",
        " domain=d ",
        r#" descriptor="team=" "#,
        " rule=d.team ",
        " limit_name=team-month ",
        " threshold_percent=25 ",
        " used_percent=25 ",
    ];
    assert_has(lines[1], &parts);
    assert!(!log.contains("ann"), "{log}");
}

#[test]
fn soft_limit_warns_beyond_its_end_and_crosses_once() {
    let server = TestServer::with_rules(RULES).start();
    let used = |hits| warnings(&ask(&server, "soft", hits))[0].clone();
    assert_eq!(used(1), json!([r#""descriptor-0";used=50"#]));
    assert_eq!(used(3), json!([r#""descriptor-0";used=200"#]));
    assert_eq!(used(1), json!([r#""descriptor-0";used=250"#]));
    let expected = by_name([(" 100", 1.0), (" 50", 1.0)]);
    assert_eq!(crossings(&server, "d.soft"), expected);
}

/// A limit of its own is a command in the pipelines of all replicas, and a chain is a script.
#[test]
fn each_threshold_of_each_counter_is_crossed_once_on_all_replicas() {
    const ROUNDS: usize = 40;
    const CALLS: usize = 4;
    const LIMIT: usize = 48;
    let redis = RedisProcess::start();
    for (rule, limits) in
        [("alone", ""), ("chain", ", limits: [{requests: 96, unit: month, warn_at: [1%, 50%]}]")]
    {
        let rules = format!(
            "{{domain: d, descriptors: [{{key: {rule}, rate_limit: {{unit: year, requests_per_unit: {LIMIT}}}, metadata: {{tollgate: {{warn_at: [1%, 50%, 99%]{limits}}}}}}}]}}"
        );
        let start = || {
            // Every verdict is Redis' own.
            TestServer::with_rules(&rules)
                .with_env("REDIS_URL", &redis.url())
                .with_env("ON_STORE_ERROR", "error")
                .start()
        };
        let services: Vec<TestServer> = (0..SERVICES).map(|_| start()).collect();
        let request_of = |call: RaceCall| request("d", &[&[(rule, &*call.round.to_string())]]);
        assert_eq!(race(&services, ROUNDS, CALLS, request_of), [LIMIT; ROUNDS]);
        let mut sums = BTreeMap::new();
        for (name, count) in
            services.iter().flat_map(|service| crossings(service, &format!("d.{rule}")))
        {
            *sums.entry(name).or_default() += count;
        }
        let all = f64::from(u32::try_from(ROUNDS).expect("it fits"));
        let mut expected = by_name([(" 1", all), (" 50", all), (" 99", all), (" 100", all)]);
        if rule == "chain" {
            expected.extend(by_name([("chain-month 1", all), ("chain-month 50", all)]));
        }
        assert_eq!(sums, expected);
    }
}
