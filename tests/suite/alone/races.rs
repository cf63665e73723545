//! Three services, eight clients of each, one counter in Redis: together they let through exactly the limit, every time.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Barrier, Mutex};
use std::thread;

use tokio::runtime;

use crate::support::redis::RedisProcess;
use crate::support::{Code, TestServer, alone, request};

const SERVICES: usize = 3;
const CLIENTS: usize = 8;
const ROUNDS: usize = 200;
/// How often each client asks in a round: twice as often as the limit allows, all together.
const ASKS: usize = 4;
const LIMIT: usize = SERVICES * CLIENTS * ASKS / 2;

#[test]
fn three_services_with_eight_clients_each_admit_exactly_a_fixed_window_200_times_over() {
    admit_exactly_the_limit("fixed_window");
}

#[test]
fn three_services_with_eight_clients_each_admit_exactly_a_bucket_200_times_over() {
    admit_exactly_the_limit("token_bucket");
}

#[test]
fn three_services_with_eight_clients_each_admit_exactly_a_sliding_window_200_times_over() {
    admit_exactly_the_limit("sliding_window");
}

#[test]
fn three_services_with_eight_clients_each_admit_exactly_sub_windows_200_times_over() {
    admit_exactly_the_limit("sliding_window, buckets: 6");
}

#[test]
fn three_services_with_eight_clients_each_admit_exactly_a_log_200_times_over() {
    admit_exactly_the_limit("sliding_log");
}

#[test]
fn three_services_with_eight_clients_each_let_exactly_as_many_hold_a_place_200_times_over() {
    admit_exactly_the_limit("concurrency, lease: 1h, lease_by: caller");
}

fn admit_exactly_the_limit(algorithm: &str) {
    // So many threads would starve whoever looks at the clock.
    let _alone = alone();
    let redis = RedisProcess::start();
    // Where it matters who calls, that is the last entry, and the others count it as one.
    let rules = format!(
        "domain: d\ndescriptors:\n  - key: round\n    descriptors:\n      - key: caller\n        rate_limit: {{unit: year, requests_per_unit: {LIMIT}}}\n        metadata: {{tollgate: {{algorithm: {algorithm}}}}}\n"
    );
    let knows_callers = algorithm.contains("lease_by");
    let start = || {
        // Nobody but Redis may answer.
        TestServer::with_rules(&rules).with_env("REDIS_URL", &redis.url()).with_env("ON_STORE_ERROR", "error").start()
    };
    let services: Vec<TestServer> = (0..SERVICES).map(|_| start()).collect();
    let admitted: Vec<AtomicUsize> = (0..ROUNDS).map(|_| AtomicUsize::new(0)).collect();
    let errors = Mutex::new(Vec::new());
    let together = Barrier::new(SERVICES * CLIENTS);
    thread::scope(|scope| {
        for (number, service) in services.iter().flat_map(|service| [service; CLIENTS]).enumerate() {
            let (admitted, together, errors) = (&admitted, &together, &errors);
            scope.spawn(move || {
                let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be built");
                runtime.block_on(async {
                    let mut client = service.client().await;
                    for (round, admitted) in admitted.iter().enumerate() {
                        together.wait();
                        for ask in 0..ASKS {
                            let caller = if knows_callers { format!("{number} {ask}") } else { String::new() };
                            match client.call(request("d", &[&[("round", &round.to_string()), ("caller", &caller)]])).await {
                                Ok(answer) if answer.overall_code() == Code::Ok => _ = admitted.fetch_add(1, Relaxed),
                                Ok(_) => {}
                                // Not here: the others would wait for this client for ever.
                                Err(error) => errors.lock().expect("nobody panics with it").push(error),
                            }
                        }
                    }
                });
            });
        }
    });
    let errors = errors.into_inner().expect("nobody panics with it");
    assert!(errors.is_empty(), "{} errors, such as {}", errors.len(), errors[0]);
    let admitted: Vec<usize> = admitted.into_iter().map(AtomicUsize::into_inner).collect();
    assert_eq!(admitted, [LIMIT; ROUNDS]);
}
