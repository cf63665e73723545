//! Three services with eight clients each share one counter in Redis: together they grant exactly
//! the limit, in every round.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Barrier, Mutex};
use std::thread;

use tokio::runtime;
use tollgate::base::proto::envoy::service::ratelimit::v3::RateLimitRequest;

use crate::support::redis::RedisProcess;
use crate::support::{Code, TestServer, request};

pub(crate) const SERVICES: usize = 3;
pub(crate) const CLIENTS: usize = 8;
const ROUNDS: usize = 100;
/// Calls of each client in a round: all together, twice what the limit allows.
const CALLS: usize = 4;
const LIMIT: usize = SERVICES * CLIENTS * CALLS / 2;

/// Concurrency names the holder by the last entry; the other algorithms count one value of it.
const ALGORITHMS: [&str; 6] = [
    "fixed_window",
    "token_bucket",
    "sliding_window",
    "sliding_window, buckets: 6",
    "sliding_log",
    "concurrency, lease: 24h, lease_by: caller",
];

#[test]
fn every_algorithm_is_exact_across_services() {
    let redis = RedisProcess::start();
    let rule = |(number, algorithm): (usize, &&str)| {
        format!(
            "  - key: round{number}\n    descriptors:\n      - key: caller\n        rate_limit: {{unit: year, requests_per_unit: {LIMIT}}}\n        metadata: {{tollgate: {{algorithm: {algorithm}}}}}\n"
        )
    };
    let rules: String = ALGORITHMS.iter().enumerate().map(rule).collect();
    // Every verdict is Redis' own.
    let services = [(); SERVICES].map(|()| {
        TestServer::with_rules(&format!("domain: d\ndescriptors:\n{rules}"))
            .with_env("REDIS_URL", &redis.url())
            .with_env("ON_STORE_ERROR", "error")
            .start()
    });
    for (number, algorithm) in ALGORITHMS.into_iter().enumerate() {
        let key = format!("round{number}");
        let granted = race(&services, ROUNDS, CALLS, |call| {
            let caller = if algorithm.contains("lease_by") {
                format!("{} {}", call.client, call.number)
            } else {
                String::new()
            };
            request("d", &[&[(&key, &call.round.to_string()), ("caller", &caller)]])
        });
        assert_eq!(granted, [LIMIT; ROUNDS], "{algorithm}");
    }
}

/// One call of a race.
pub(crate) struct RaceCall {
    pub(crate) round: usize,
    pub(crate) client: usize,
    number: usize,
}

/// Eight clients of each service make so many calls in each round, all at the same time. Returns
/// how many of each round were admitted.
pub(crate) fn race(
    services: &[TestServer],
    rounds: usize,
    calls: usize,
    request_of: impl Fn(RaceCall) -> RateLimitRequest + Sync,
) -> Vec<usize> {
    let granted: Vec<AtomicUsize> = (0..rounds).map(|_| AtomicUsize::new(0)).collect();
    let errors = Mutex::new(Vec::new());
    let barrier = Barrier::new(services.len() * CLIENTS);
    thread::scope(|scope| {
        for (client, service) in services.iter().flat_map(|service| [service; CLIENTS]).enumerate()
        {
            let granted = &granted;
            let barrier = &barrier;
            let errors = &errors;
            let request_of = &request_of;
            scope.spawn(move || {
                let runtime = runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("a runtime can be built");
                runtime.block_on(async {
                    let mut connection = service.client().await;
                    for (round, granted) in granted.iter().enumerate() {
                        barrier.wait();
                        for number in 0..calls {
                            let call = RaceCall { round, client, number };
                            match connection.call(request_of(call)).await {
                                Ok(answer) if answer.overall_code() == Code::Ok => {
                                    _ = granted.fetch_add(1, Relaxed);
                                }
                                Ok(_) => {}
                                // Not a panic: the other clients would wait for this one forever.
                                Err(error) => {
                                    errors.lock().expect("no client panics with it").push(error);
                                }
                            }
                        }
                    }
                });
            });
        }
    });
    let errors = errors.into_inner().expect("no client panics with it");
    assert!(errors.is_empty(), "{} errors, such as {}", errors.len(), errors[0]);
    granted.into_iter().map(AtomicUsize::into_inner).collect()
}
