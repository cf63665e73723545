//! Requests whose strings are not UTF-8, as Envoy sends them for a header such as `x-user: a\xff`:
//! they match and are counted by their bytes, and are shown percent-encoded. With an error instead,
//! Envoy would let them pass without any limit.

use redis::Commands as _;
use tollgate::base::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate::base::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use tollgate::base::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollgate::base::proto::envoy::r#type::v3::RateLimitUnit;

use crate::support::redis::RedisProcess;
use crate::support::statsd::Statsd;
use crate::support::{Builder, Client, Code, TestServer, look_until};

const RULES: &str = "
domain: d
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: user, value: user_*, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: team, value: a*z, share_threshold: true, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: bucket, rate_limit: {unit: year, requests_per_unit: 3}, metadata: {tollgate: {algorithm: token_bucket}}}
  - {key: named, value: user_*, value_to_metric: true, rate_limit: {unit: year, requests_per_unit: 1, name: users}}
  - {key: detailed, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: place, rate_limit: {unit: year, requests_per_unit: 1}, metadata: {tollgate: {algorithm: concurrency, lease_by: place, lease: 24h}}}
";

fn request(domain: &[u8], descriptors: &[&[(&[u8], &[u8])]]) -> RateLimitRequest {
    let entry = |&(key, value): &(&[u8], &[u8])| Entry { key: key.to_vec(), value: value.to_vec() };
    let descriptors = descriptors.iter().map(|entries| RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    });
    RateLimitRequest { domain: domain.to_vec(), descriptors: descriptors.collect(), hits_addend: 0 }
}

/// One hit of this value.
async fn hit(client: &mut Client, key: &str, value: &[u8]) -> Code {
    let answer = client.call(request(b"d", &[&[(key.as_bytes(), value)]])).await;
    answer.unwrap_or_else(|status| panic!("{key}={value:?}: {status}")).overall_code()
}

/// In memory, and on Redis with keys of either format.
fn every_store(redis: &RedisProcess) -> [(&'static str, Builder); 3] {
    let on_redis = |format| {
        let server = TestServer::with_rules(RULES)
            .with_env("REDIS_URL", &redis.url())
            .with_env("CACHE_KEY_FORMAT", format);
        // Buckets have the same keys in both.
        server.with_env("CACHE_KEY_PREFIX", &format!("{format}:"))
    };
    [
        ("memory", TestServer::with_rules(RULES)),
        ("reference", on_redis("reference")),
        ("safe", on_redis("safe")),
    ]
}

#[tokio::test]
async fn each_byte_string_has_its_own_exact_counter_in_every_store() {
    // The last four are how some library might show or repair one of the others.
    let values: [&[u8]; 8] = [
        b"a\xff",
        b"a\xfe",
        b"a\xff\xff",
        b"\xffa",
        b"a%FF",
        "a\u{fffd}".as_bytes(),
        "aÿ".as_bytes(),
        b"a",
    ];
    let redis = RedisProcess::start();
    for (store, builder) in every_store(&redis) {
        let server = builder.start();
        let mut client = server.client().await;
        for key in ["user", "bucket"] {
            for round in 1..=4 {
                let expected = if round <= 3 { Code::Ok } else { Code::OverLimit };
                for value in values {
                    let code = hit(&mut client, key, value).await;
                    assert_eq!(code, expected, "{store}: hit {round} of {key}={value:?}");
                }
            }
        }
    }
    let mut keys: Vec<Vec<u8>> = redis.connection().keys("*").expect("it answers");
    keys.retain(|key| key.starts_with(b"reference:d_user_") || key.starts_with(b"safe:tg:d:user:"));
    let has = |begin: &[u8]| keys.iter().filter(|key| key.starts_with(begin)).count();
    assert_eq!(keys.len(), 2 * values.len(), "{keys:?}");
    for value in [&b"a\xff"[..], b"a\xfe", b"\xffa"] {
        let reference = [b"reference:d_user_", value, b"_"].concat();
        let safe = [b"safe:tg:d:user:", value, b":"].concat();
        assert_eq!((has(&reference), has(&safe)), (1, 1), "bytes of {value:?}: {keys:?}");
    }
}

#[tokio::test]
async fn the_other_limits_of_the_request_hold() {
    let server = TestServer::with_rules(RULES).start();
    let mut client = server.client().await;
    // No rule for the first, for its key, and a limit for the second.
    for expected in [Code::Ok, Code::Ok, Code::Ok, Code::OverLimit] {
        let answer =
            client.answer(request(b"d", &[&[(b"agent\xff", b"\xff")], &[(b"user", b"ann")]])).await;
        assert_eq!((answer.overall_code(), answer.statuses.len()), (expected, 2));
        assert_eq!(answer.statuses[0].current_limit, None);
    }
    // A limit that the request brings.
    for expected in [Code::Ok, Code::OverLimit] {
        let mut own = request(b"d", &[&[(b"any\xff", b"\xfe")]]);
        own.descriptors[0].limit =
            Some(RateLimitOverride { requests_per_unit: 1, unit: RateLimitUnit::Year.into() });
        assert_eq!(client.answer(own).await.overall_code(), expected);
    }
    server.assert_metric(
        r#"ratelimit_service_rate_limit_total_hits{domain="d",key1="any%FF_%FE"}"#,
        2.0,
    );
}

#[tokio::test]
async fn metrics_and_metadata_are_text() {
    let statsd = Statsd::start();
    let server = TestServer::with_rules(RULES)
        .with_env("USE_STATSD", "true")
        .with_env("STATSD_HOST", "127.0.0.1")
        .with_env("STATSD_PORT", &statsd.port())
        .with_env("STATS_FLUSH_INTERVAL", "20ms")
        .with_env("RESPONSE_DYNAMIC_METADATA", "true")
        .start();
    let mut client = server.client().await;
    let answer = client
        .answer(request(b"d", &[&[(b"detailed", b"100%\xff")], &[(b"named", b"user_\xfe")]]))
        .await;
    let metadata = format!("{:?}", answer.dynamic_metadata);
    for part in [r#""detailed=100%25%FF""#, r#""named=user_%FE""#] {
        assert!(metadata.contains(part), "{part}: {metadata}");
    }
    client.answer(request(b"nowhere\xff", &[&[(b"k", b"")]])).await;

    let stats = server.admin("/stats");
    let names = [
        "d.detailed_100%25%FF.total_hits",
        "d.named_user_%FE.total_hits",
        "nowhere%FF.domain_not_found",
    ];
    for name in names.map(|name| format!("ratelimit.service.rate_limit.{name}")) {
        assert!(stats.contains(&format!("{name}: 1\n")), "{name}: {stats}");
        look_until("statsd is told", || statsd.counter(&name) == 1);
    }
    // The page is read as text.
    server.assert_metric(
        r#"ratelimit_service_rate_limit_total_hits{domain="d",key1="detailed_100%25%FF"}"#,
        1.0,
    );
}

#[tokio::test]
async fn the_log_is_text() {
    let server = TestServer::with_rules(RULES).with_env("REFUSALS_LOG_SAMPLE_RATE", "1").start();
    let mut client = server.client().await;
    for expected in [Code::Ok, Code::OverLimit] {
        assert_eq!(hit(&mut client, "user", b"user_\xff%\n").await, expected);
    }
    server.assert_logged(r#"descriptor="user=user_%FF%25\\u{a}""#);
}
