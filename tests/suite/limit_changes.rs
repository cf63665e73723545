//! A limit that changes while it counts, as docs/algorithms.md states it: a counter goes on under
//! its new limit as long as its algorithm, its period, and how that is cut stay what they were;
//! else it starts anew.

use tollgate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate::proto::envoy::service::ratelimit::v3::RateLimitRequest;

use crate::support::redis::RedisProcess;
use crate::support::{Client, Code, TestServer, descriptor, eventually};

/// What a rule says: its unit, its requests, and its `tollgate` block.
type Said = (&'static str, u32, &'static str);
/// What it is called, what it says first, how many hits are taken then, what it says later, and
/// what remains then.
type Change = (&'static str, Said, u64, Said, u32);

const BUCKET: &str = "algorithm: token_bucket";
const LEAKY: &str = "algorithm: leaky_bucket, burst: 10";
const SLIDING: &str = "algorithm: sliding_window";
const CUT: &str = "algorithm: sliding_window, buckets: 4";
const LOG: &str = "algorithm: sliding_log";
const HELD: &str = "algorithm: concurrency, lease_by: holder, lease: 1h";

const CHANGES: [Change; 34] = [
    (
        "fixed window raised",
        ("year", 10, ""),
        6,
        ("year", 20, ""),
        14,
    ),
    (
        "fixed window lowered",
        ("year", 10, ""),
        6,
        ("year", 4, ""),
        0,
    ),
    (
        "fixed window of another unit",
        ("year", 10, ""),
        6,
        ("month", 10, ""),
        10,
    ),
    (
        "fixed window of two units",
        ("year", 10, ""),
        6,
        ("year", 10, "unit_multiplier: 2"),
        10,
    ),
    (
        "fixed window that drops",
        ("year", 10, "unit_multiplier: 2"),
        6,
        ("year", 10, "unit_multiplier: 2, over_limit_hits: drop"),
        4,
    ),
    (
        "fixed window that becomes a bucket",
        ("year", 10, ""),
        6,
        ("year", 10, BUCKET),
        10,
    ),
    (
        "sliding window raised",
        ("year", 10, SLIDING),
        6,
        ("year", 20, SLIDING),
        14,
    ),
    (
        "sliding window lowered",
        ("year", 10, SLIDING),
        6,
        ("year", 4, SLIDING),
        0,
    ),
    (
        "sliding window of another unit",
        ("year", 10, SLIDING),
        6,
        ("month", 10, SLIDING),
        10,
    ),
    (
        "sliding window that is cut",
        ("year", 10, SLIDING),
        6,
        ("year", 10, CUT),
        10,
    ),
    (
        "cut window raised",
        ("year", 10, CUT),
        6,
        ("year", 20, CUT),
        14,
    ),
    (
        "cut window lowered",
        ("year", 10, CUT),
        6,
        ("year", 4, CUT),
        0,
    ),
    (
        "cut window that is cut again",
        ("year", 10, CUT),
        6,
        ("year", 10, "algorithm: sliding_window, buckets: 5"),
        10,
    ),
    (
        "cut window of another unit",
        ("year", 10, CUT),
        6,
        ("month", 10, CUT),
        10,
    ),
    ("log raised", ("year", 10, LOG), 6, ("year", 20, LOG), 14),
    ("log lowered", ("year", 10, LOG), 6, ("year", 4, LOG), 0),
    (
        "log of another unit",
        ("year", 10, LOG),
        6,
        ("month", 10, LOG),
        10,
    ),
    (
        "log that becomes a window",
        ("year", 10, LOG),
        6,
        ("year", 10, SLIDING),
        10,
    ),
    (
        "bucket raised",
        ("year", 10, BUCKET),
        6,
        ("year", 20, BUCKET),
        14,
    ),
    (
        "bucket lowered",
        ("year", 10, BUCKET),
        6,
        ("year", 4, BUCKET),
        0,
    ),
    (
        "bucket made deeper",
        ("year", 10, BUCKET),
        6,
        ("year", 10, "algorithm: token_bucket, burst: 15"),
        9,
    ),
    (
        "bucket made flatter",
        ("year", 10, BUCKET),
        6,
        ("year", 10, "algorithm: token_bucket, burst: 8"),
        2,
    ),
    // 285 a year are the most that are counted in µs; beyond, the state is another one.
    (
        "bucket made much deeper",
        ("year", 10, BUCKET),
        6,
        ("year", 10, "algorithm: token_bucket, burst: 1000"),
        1_000,
    ),
    (
        "bucket of another unit",
        ("year", 10, BUCKET),
        6,
        ("month", 10, BUCKET),
        10,
    ),
    (
        "bucket that counts",
        ("year", 10, BUCKET),
        6,
        (
            "year",
            10,
            "algorithm: token_bucket, over_limit_hits: count",
        ),
        4,
    ),
    (
        "bucket that queues",
        ("year", 10, BUCKET),
        6,
        (
            "year",
            10,
            "algorithm: token_bucket, on_limit: queue, max_wait: 1s",
        ),
        4,
    ),
    (
        "bucket that becomes leaky",
        ("year", 10, BUCKET),
        6,
        ("year", 10, LEAKY),
        10,
    ),
    (
        "leaky bucket raised",
        ("year", 10, LEAKY),
        6,
        ("year", 20, LEAKY),
        4,
    ),
    (
        "leaky bucket made deeper",
        ("year", 10, LEAKY),
        6,
        ("year", 10, "algorithm: leaky_bucket, burst: 12"),
        6,
    ),
    (
        "holders raised",
        ("year", 10, HELD),
        6,
        ("year", 20, HELD),
        14,
    ),
    (
        "holders lowered",
        ("year", 10, HELD),
        6,
        ("year", 4, HELD),
        0,
    ),
    (
        "holders of another unit",
        ("year", 10, HELD),
        6,
        ("day", 10, HELD),
        4,
    ),
    (
        "holders with another lease",
        ("year", 10, HELD),
        6,
        (
            "year",
            10,
            "algorithm: concurrency, lease_by: holder, lease: 2h",
        ),
        4,
    ),
    (
        "holders that are no longer known by name",
        ("year", 10, HELD),
        6,
        ("year", 10, BUCKET),
        10,
    ),
];

fn rules(said: impl Fn(&Change) -> Said) -> String {
    let rule = |change: &Change| {
        let (unit, requests, block) = said(change);
        // Those that are held are known by the last entry, and the others counted by all of them.
        format!(
            "  - key: case\n    value: {}\n    descriptors:\n      - key: holder\n        rate_limit: {{unit: {unit}, requests_per_unit: {requests}}}\n        metadata: {{tollgate: {{{block}}}}}\n",
            change.0
        )
    };
    format!(
        "domain: d\ndescriptors:\n{}",
        CHANGES.iter().map(rule).collect::<String>()
    )
}

async fn ask(client: &mut Client, change: &Change, holder: u64, hits: u64) -> (Code, u32) {
    // Who holds is another one each time, and whoever counts counts for one.
    let holder = if change.1.2 == HELD {
        holder.to_string()
    } else {
        String::new()
    };
    let descriptor = RateLimitDescriptor {
        hits_addend: Some(hits),
        ..descriptor(&[("case", change.0), ("holder", &holder)])
    };
    let request = RateLimitRequest {
        domain: "d".into(),
        descriptors: vec![descriptor],
        hits_addend: 0,
    };
    let response = client.call(request).await.expect("there is an answer");
    (
        response.statuses[0].code(),
        response.statuses[0].limit_remaining,
    )
}

async fn goes_on_or_starts_anew(server: TestServer) {
    let mut client = server.client().await;
    for change in &CHANGES {
        let (_, (_, requests, _), hits, ..) = *change;
        for number in 1..=hits {
            assert_eq!(
                ask(&mut client, change, number, 1).await,
                (Code::Ok, requests - u32::try_from(number).expect("few")),
                "{}",
                change.0
            );
        }
    }
    let before = server
        .metric("ratelimit_service_config_load_success")
        .expect("it is counted");
    server.write("rules.yaml", &rules(|change| change.3));
    eventually("the new limits are in force", async || {
        server
            .metric("ratelimit_service_config_load_success")
            .is_some_and(|loads| loads > before)
    })
    .await;
    for change in &CHANGES {
        let (name, _, hits, _, remaining) = *change;
        let (_, left) = ask(&mut client, change, hits + 1, 0).await;
        assert_eq!(left, remaining, "{name}");
        let (code, _) = ask(&mut client, change, hits + 1, 1).await;
        assert_eq!(code == Code::Ok, remaining > 0, "{name}");
    }
}

#[tokio::test]
async fn a_limit_that_changes_goes_on_counting_or_starts_anew_in_memory() {
    goes_on_or_starts_anew(TestServer::with_rules(&rules(|change| change.1)).start()).await;
}

#[tokio::test]
async fn a_limit_that_changes_goes_on_counting_or_starts_anew_in_redis() {
    let redis = RedisProcess::start();
    let builder = TestServer::with_rules(&rules(|change| change.1));
    goes_on_or_starts_anew(
        builder
            .with_env("REDIS_URL", &redis.url())
            .with_env("ON_STORE_ERROR", "error")
            .start(),
    )
    .await;
}
