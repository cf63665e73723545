//! A limit for each algorithm, and a client who counts how much of it passes: what has to be exact
//! wherever the counters are.

use tollgate::base::proto::envoy::service::ratelimit::v3::rate_limit_response::DescriptorStatus;
use tollgate::base::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::Status;

use super::{Builder, Client, Code, TestServer, descriptor, eventually};

/// As a rule says them, each by the key of that rule.
pub(crate) const ALGORITHMS: [(&str, &str); 8] = [
    ("counted", "algorithm: fixed_window"),
    ("dropped", "algorithm: fixed_window, over_limit_hits: drop"),
    ("sliding", "algorithm: sliding_window"),
    ("strict", "algorithm: sliding_window, buckets: 6"),
    ("log", "algorithm: sliding_log"),
    ("token", "algorithm: token_bucket"),
    ("leaky", "algorithm: leaky_bucket, burst: LIMIT"),
    ("places", "algorithm: concurrency, lease_by: caller, lease: 24h"),
];

/// A client of such rules.
pub(crate) struct Counting {
    pub(crate) client: Client,
    /// How often it has asked, which also names who holds a place.
    asked: usize,
}

/// Rules of domain `d`: for each algorithm a year's limit, with whatever else belongs at the top of
/// the file.
pub(crate) fn rules(limit: u32, top: &str) -> String {
    let rule = |(key, algorithm): &(&str, &str)| {
        let algorithm = algorithm.replace("LIMIT", &limit.to_string());
        // Where it matters who calls, that is the last entry, and the others count it as one.
        format!(
            "  - key: {key}\n    descriptors:\n      - key: caller\n        rate_limit: {{unit: year, requests_per_unit: {limit}}}\n        metadata: {{tollgate: {{{algorithm}}}}}\n"
        )
    };
    let rules: String = ALGORITHMS.iter().map(rule).collect();
    format!("domain: d\n{top}descriptors:\n{rules}")
}

/// A service with these rules and a long STORE_TIMEOUT, so that a busy machine causes no fallback.
pub(crate) fn service(limit: u32, settings: &[(&'static str, String)]) -> TestServer {
    answered_by_redis(TestServer::with_rules(&rules(limit, "")), settings).start()
}

/// The same for other rules.
pub(crate) fn answered_by_redis(builder: Builder, settings: &[(&'static str, String)]) -> Builder {
    builder.with_env("ON_STORE_ERROR", "error").with_envs(settings)
}

impl Counting {
    pub(crate) async fn at(server: &TestServer) -> Self {
        Self { client: server.client().await, asked: 0 }
    }

    /// One hit of each of these counters, in one request.
    pub(crate) fn request(&mut self, counters: &[(&str, &str)]) -> RateLimitRequest {
        self.asked += 1;
        let holder = self.asked.to_string();
        let descriptors = counters.iter().map(|&(key, value)| {
            let caller = if key == "places" { &*holder } else { "" };
            descriptor(&[(key, value), ("caller", caller)])
        });
        RateLimitRequest { domain: "d".into(), descriptors: descriptors.collect(), hits_addend: 0 }
    }

    pub(crate) async fn try_ask(
        &mut self,
        counters: &[(&str, &str)],
    ) -> Result<RateLimitResponse, Status> {
        let request = self.request(counters);
        self.client.call(request).await
    }

    /// What Redis says of each counter.
    pub(crate) async fn ask(&mut self, counters: &[(&str, &str)]) -> RateLimitResponse {
        self.try_ask(counters).await.unwrap_or_else(|error| panic!("{counters:?}: {error}"))
    }

    /// How many of these hits are admitted, one by one.
    pub(crate) async fn admitted(&mut self, key: &str, value: &str, hits: u32) -> u32 {
        let mut admitted = 0;
        for _ in 0..hits {
            admitted += u32::from(self.ask(&[(key, value)]).await.overall_code() == Code::Ok);
        }
        admitted
    }

    /// The same hits of these values with each algorithm: all of a limit passes, and nothing more.
    pub(crate) async fn admits_exactly(
        &mut self,
        limit: u32,
        values: impl IntoIterator<Item = &str>,
    ) {
        for value in values {
            for (key, algorithm) in ALGORITHMS {
                assert_eq!(
                    self.admitted(key, value, limit + 2).await,
                    limit,
                    "{algorithm}: {value}"
                );
            }
        }
    }

    /// This counter is over its limit, and whoever is told so is locked out for no longer than a
    /// limit of a year can take.
    pub(crate) async fn is_over_but_not_for_ever(&mut self, counter: (&str, &str)) {
        let answer = self.ask(&[counter]).await;
        assert_eq!(answer.overall_code(), Code::OverLimit, "{counter:?}: nothing was given away");
        let wait = answer.statuses[0].duration_until_reset.as_ref().expect("it is told").seconds;
        // With windows that are cut, one that leaves a piece later counts whole until then.
        assert!(wait <= 2 * 366 * 86_400, "{counter:?}: {wait} s");
    }

    /// Waits until Redis counts, for each of these counters. Whatever it takes for that is counted,
    /// too.
    pub(crate) async fn wait_for_verdicts(&mut self, counters: &[(&str, &str)]) {
        eventually("Redis has verdicts", async || self.try_ask(counters).await.is_ok()).await;
    }

    /// Of counters that are asked with `all_or_nothing`, one that is full keeps the others as they
    /// are. Those of each algorithm are full in turn.
    pub(crate) async fn rejections_consume_nothing(&mut self, limit: u32) {
        for (refusing, _) in ALGORITHMS {
            let full = [(refusing, "full")];
            for _ in 0..limit {
                assert_eq!(self.ask(&full).await.overall_code(), Code::Ok);
            }
            let value = format!("beside {refusing}");
            let others: Vec<(&str, &str)> = ALGORITHMS
                .iter()
                .filter(|(key, _)| *key != refusing)
                .map(|(key, _)| (*key, &*value))
                .collect();
            for _ in 0..3 {
                let answer = self.ask(&[&full[..], &others].concat()).await;
                assert_eq!(answer.overall_code(), Code::OverLimit);
            }
            let answer = self.ask(&others).await;
            let remaining = |status: &DescriptorStatus| status.limit_remaining;
            assert!(
                answer.statuses.iter().map(remaining).all(|left| left == limit - 1),
                "beside {refusing}: {answer:?}"
            );
        }
    }
}
