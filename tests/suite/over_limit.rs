//! What becomes of a request over its limit: it waits for its slot, passes with word to the
//! upstream, or is rejected with the body of its rule.
//!
//! Both clocks are paused. The clock of counters is set by hand; tokio's advances to the next timer when
//! no task is ready. So tests do not sleep, and every wait is exact.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tollgate::api::convert;
use tollgate::config::{self, CompileOptions, Source};
use tollgate::limiter::fallback::Fallback;
use tollgate::limiter::queue::QUEUE_WAITERS_MAX;
use tollgate::limiter::response::Response;
use tollgate::limiter::{self, Limiter, Parts, Settings};
use tollgate::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollgate::rules::query::Query;
use tollgate::rules::stats::{METRIC_SERIES_MAX, StatsTable};
use tollgate::rules::{KeyFormat, LiveRules, OnStoreError};
use tollgate::store::Backend;
use tollgate::store::memory::Counters;
use tollgate::telemetry::metric::Metrics;
use tollgate::time::{Clock, MICROS_PER_SECOND, Span, Time};

use crate::support::{Code, TestServer, counted, eventually, request};

const START: Time = Time::from_micros(1_700_000_000 * MICROS_PER_SECOND);
/// `turn` has a slot each 100 ms, and whoever has to wait for five of them or fewer waits; `line`
/// is the same for ten minutes.
const RULES: &str = "
domain: d
descriptors:
  - key: turn
    rate_limit: {unit: second, requests_per_unit: 10}
    metadata: {tollgate: {algorithm: leaky_bucket, on_limit: queue, max_wait: 500ms}}
  - key: line
    rate_limit: {unit: second, requests_per_unit: 10}
    metadata: {tollgate: {algorithm: leaky_bucket, on_limit: queue, max_wait: 10m}}
  - key: slow
    rate_limit: {unit: second, requests_per_unit: 1}
    metadata: {tollgate: {algorithm: leaky_bucket, on_limit: queue, max_wait: 5s}}
  - key: rare
    rate_limit: {unit: minute, requests_per_unit: 6}
    metadata: {tollgate: {algorithm: leaky_bucket, on_limit: queue, max_wait: 1h}}
  - key: full
    rate_limit: {unit: hour, requests_per_unit: 0}
    metadata: {tollgate: {response_body: slow down}}
  - key: hour
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: cheap
    rate_limit: {unit: hour, requests_per_unit: 1}
    metadata: {tollgate: {on_limit: degrade, request_headers: {x-degraded: 'true'}}}
";

/// A runtime's limiter, with rules and counters of its own.
struct World {
    limiter: Limiter,
    metrics: Metrics,
}

/// Callers who have asked and wait for their answers.
struct Callers {
    waiting: JoinSet<(usize, Seen)>,
    began: Instant,
    count: usize,
}

/// What one of them saw.
#[derive(Debug)]
struct Seen {
    answer: Response,
    /// How long it took.
    took: Duration,
}

impl World {
    fn new() -> Self {
        Self::with_settings(Settings::default())
    }

    fn with_settings(settings: Settings) -> Self {
        let metrics = Metrics::new();
        let backend = Backend::Memory(Arc::new(Counters::new(1 << 20, "store", &metrics)));
        let stats = StatsTable::new(METRIC_SERIES_MAX, &metrics);
        let source = Source {
            name: "rules".into(),
            path: "rules.yaml".into(),
            text: RULES.into(),
        };
        let options = CompileOptions {
            key_format: KeyFormat::Safe,
            ..CompileOptions::new(stats.clone())
        };
        let rules = Arc::new(LiveRules::default());
        rules.replace(
            config::load(&[source], &options)
                .expect("they are good")
                .rules,
        );
        let fallback = Fallback::new(OnStoreError::Local, &metrics);
        let parts = Parts {
            rules,
            backend,
            fallback,
            clock: Clock::manual(START).0,
            stats,
            settings,
        };
        Self {
            limiter: Arc::new(limiter::Shared::new(parts, &metrics)).open(),
            metrics,
        }
    }

    /// Asks, and waits for the answer.
    async fn ask(&self, keys: &[&str]) -> Seen {
        let mut callers = Callers::new();
        callers.ask(self, keys, None);
        callers.answers().await.remove(0)
    }

    fn counted(&self, series: &str) -> u64 {
        counted(&self.metrics, series)
    }

    /// The same of a counter of a rule, which is not there before it counts.
    fn counted_of(&self, count: &str, key: &str) -> u64 {
        let series = format!("{count}{{domain=\"d\",key1=\"{key}\"}} ");
        self.metrics
            .page()
            .lines()
            .find_map(|line| line.strip_prefix(&series)?.parse().ok())
            .unwrap_or(0)
    }
}

impl Callers {
    fn new() -> Self {
        Self {
            waiting: JoinSet::new(),
            began: Instant::now(),
            count: 0,
        }
    }

    /// One more, who asks about one descriptor for each key. It can be made to go away.
    fn ask(&mut self, world: &World, keys: &[&str], deadline: Option<Time>) -> AbortHandle {
        let (limiter, request, number, began) = (
            world.limiter.clone(),
            request_of(keys),
            self.count,
            self.began,
        );
        self.count += 1;
        self.waiting.spawn(async move {
            let query = Query {
                deadline,
                ..convert::query(&request)
            };
            let answer = limiter
                .decide(&query, None)
                .await
                .expect("there is an answer");
            (
                number,
                Seen {
                    answer,
                    took: began.elapsed(),
                },
            )
        })
    }

    /// Lets everybody do what can be done without waiting.
    async fn settle(&self) {
        for _ in 0..(self.count + 10) {
            tokio::task::yield_now().await;
        }
    }

    /// What they saw, in the order in which they came, of those who have not gone away.
    async fn answers(mut self) -> Vec<Seen> {
        let mut seen = Vec::new();
        while let Some(ended) = self.waiting.join_next().await {
            seen.extend(ended.ok());
        }
        seen.sort_by_key(|(number, _)| *number);
        seen.into_iter().map(|(_, seen)| seen).collect()
    }
}

impl Seen {
    fn millis(&self) -> u128 {
        self.took.as_millis()
    }

    fn is_over_limit(&self) -> bool {
        self.answer.over_limit
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.answer
            .response_headers
            .iter()
            .find(|header| &*header.name == name)
            .map(|header| &*header.value)
    }
}

fn request_of(keys: &[&str]) -> RateLimitRequest {
    let descriptors: Vec<[(&str, &str); 1]> = keys.iter().map(|key| [(*key, "")]).collect();
    request(
        "d",
        &descriptors
            .iter()
            .map(|descriptor| &descriptor[..])
            .collect::<Vec<_>>(),
    )
}

#[tokio::test(start_paused = true)]
async fn rejected_queued_hits_consume_nothing_of_other_limits() {
    let world = World::new();
    let mut callers = Callers::new();
    for _ in 0..6 {
        callers.ask(&world, &["turn"], None);
    }
    callers.settle().await;
    assert!(world.ask(&["turn", "hour"]).await.is_over_limit());
    assert!(
        !world.ask(&["hour"]).await.is_over_limit(),
        "the only one of this hour"
    );
}

#[tokio::test(start_paused = true)]
async fn the_later_of_two_slots_decides_the_wait() {
    let world = World::new();
    assert_eq!(world.ask(&["turn", "slow"]).await.millis(), 0);
    assert_eq!(world.ask(&["turn", "slow"]).await.millis(), 1_000);
    assert_eq!(
        world.counted_of("tollgate_rule_queued_hits_total", "turn"),
        1
    );
    assert_eq!(
        world.counted_of("tollgate_rule_queued_hits_total", "slow"),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn peeks_and_refunds_do_not_wait() {
    let world = World::new();
    let mut callers = Callers::new();
    for _ in 0..4 {
        callers.ask(&world, &["turn"], None);
    }
    callers.settle().await;
    for (hits, give_back) in [(0, false), (1, true)] {
        let mut request = request_of(&["turn"]);
        request.descriptors[0].hits_addend = Some(hits);
        request.descriptors[0].is_negative_hits = give_back;
        let began = Instant::now();
        world
            .limiter
            .decide(&convert::query(&request), None)
            .await
            .expect("there is an answer");
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
    // What was given back is a slot for whoever comes next.
    callers.ask(&world, &["turn"], None);
    let seen: Vec<u128> = callers.answers().await.iter().map(Seen::millis).collect();
    assert_eq!(seen, [0, 100, 200, 300, 300]);
}

#[tokio::test(start_paused = true)]
async fn queue_waiters_are_bounded() {
    let world = World::new();
    let mut callers = Callers::new();
    for _ in 0..=QUEUE_WAITERS_MAX {
        // The first one need not wait.
        callers.ask(&world, &["line"], None);
    }
    callers.settle().await;
    assert_eq!(world.counted("tollgate_queue_waiters"), 1_024);
    let rejected = world.ask(&["line"]).await;
    assert_eq!((rejected.is_over_limit(), rejected.millis()), (true, 0));
    assert!(
        !world.ask(&["turn"]).await.is_over_limit(),
        "there is room at once, so there is no need for a place"
    );
    assert!(world.ask(&["turn"]).await.is_over_limit());
    assert!(
        !world.ask(&["hour"]).await.is_over_limit(),
        "others never need one"
    );
    assert_eq!(world.counted("tollgate_queue_full_total"), 3);

    // The next turn leaves a place for one more.
    tokio::time::advance(Duration::from_millis(100)).await;
    callers.settle().await;
    assert_eq!(world.counted("tollgate_queue_waiters"), 1_023);
    let last = callers.ask(&world, &["line"], None);
    callers.settle().await;
    assert_eq!(world.counted("tollgate_queue_waiters"), 1_024);
    last.abort();
    let seen = callers.answers().await;
    assert_eq!(seen.len(), 1 + QUEUE_WAITERS_MAX);
    assert!(
        seen.iter()
            .enumerate()
            .all(|(slot, seen)| seen.millis() == slot as u128 * 100),
        "each at its time"
    );
}

#[tokio::test]
async fn jitter_lengthens_retry_after_only() {
    let settings = |jitter: u64| Settings {
        retry_after_header_enabled: true,
        ietf_ratelimit_headers_enabled: true,
        retry_after_jitter: Span::from_secs(jitter),
        ..Settings::default()
    };
    let seen_with = async |jitter: u64| {
        let world = World::with_settings(settings(jitter));
        let mut seen = BTreeSet::new();
        for _ in 0..200 {
            let rejected = world.ask(&["full"]).await;
            assert_eq!(rejected.answer.statuses[0].reset_secs, 2_800);
            assert_eq!(
                rejected.header("RateLimit"),
                Some("\"descriptor-0\";r=0;t=2800")
            );
            seen.insert(
                rejected
                    .header("Retry-After")
                    .expect("it is wanted")
                    .parse::<u64>()
                    .expect("it is seconds"),
            );
        }
        assert_eq!(
            world.ask(&["hour"]).await.header("Retry-After"),
            None,
            "it is for refusals alone"
        );
        seen.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(seen_with(0).await, [2_800]);
    assert_eq!(seen_with(3).await, [2_800, 2_801, 2_802, 2_803]);
}

#[test]
fn retry_after_jitter_is_a_setting() {
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"full"}]}]}"#;
    let server = TestServer::with_rules(RULES)
        .with_env("RETRY_AFTER_HEADER_ENABLED", "true")
        .with_env("RETRY_AFTER_JITTER", "36000s")
        .start();
    let far = (0..20).filter(|_| {
        let answer: Value = serde_json::from_str(&server.json(body).body).expect("it is JSON");
        let secs = answer["responseHeadersToAdd"][0]["value"]
            .as_str()
            .and_then(|secs| secs.parse::<u64>().ok());
        secs.expect("it is seconds") > 3_600
    });
    assert!(
        far.count() > 0,
        "an hour has 3,600 s, and nine of ten are to be longer than that"
    );
}

#[test]
fn degraded_json_responses_are_200_with_upstream_headers() {
    let server = TestServer::with_rules(RULES).start();
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"cheap"}]}]}"#;
    assert!(!server.json(body).body.contains("degraded"));
    let reply = server.json(body);
    let answer: Value = serde_json::from_str(&reply.body).expect("it is JSON");
    assert_eq!(reply.status, 200);
    assert_eq!(
        answer["requestHeadersToAdd"],
        json!([{"key": "x-degraded", "value": "true"}])
    );
    assert_eq!(answer["dynamicMetadata"], json!({"degraded": ["d.cheap"]}));
}

#[tokio::test]
async fn queued_requests_are_served_during_drain() {
    let mut server = TestServer::with_rules(RULES)
        .with_env("DRAIN_PERIOD", "0s")
        .start();
    let (mut first, mut second) = (server.client().await, server.client().await);
    let waiting = async {
        first.ask("d", &[("slow", "")]).await;
        first.ask("d", &[("slow", "")]).await
    };
    let stopping = async {
        server.metric_becomes("tollgate_queue_waiters", 1.0).await;
        server.signal("TERM");
        eventually("no more calls are taken", async || {
            second.call(request_of(&["hour"])).await.is_err()
        })
        .await;
    };
    let (code, ()) = tokio::join!(waiting, stopping);
    assert_eq!(code, Code::Ok);
    assert_eq!(server.exit_code().await, Some(0));
}
