//! Any bytes as a request: it is answered with a status for each descriptor or rejected, and no counter admits more than its limit.

#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use prost::Message as _;
use tollgate::api::convert;
use tollgate::api::decode::{self, QueryError};
use tollgate::api::request_size::DESCRIPTORS_MAX;
use tollgate::base::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollgate::base::time::{ManualClock, Span};
use tollgate::limiter::Limiter;
use tollgate::telemetry::metric::Metrics;

#[path = "../service.rs"]
mod service;

struct Service {
    limiter: Limiter,
    clock: ManualClock,
    runtime: tokio::runtime::Runtime,
}

thread_local! {
    static SERVICES: RefCell<Vec<Service>> = RefCell::new((0..2).map(|number| service(number == 1)).collect());
}

fn service(all_or_nothing: bool) -> Service {
    let metrics = Metrics::new();
    let (limiter, clock) = service::limiter(all_or_nothing, &metrics);
    let runtime = service::runtime();
    let limiter = runtime.block_on(async { limiter.open() });
    Service { limiter, clock, runtime }
}

fuzz_target!(|bytes: &[u8]| {
    let decoded = decode::query(bytes);
    let by_prost = RateLimitRequest::decode(bytes);
    let query = match (&decoded, &by_prost) {
        (Ok((query, _)), Ok(request)) => {
            assert_eq!(query.domain, request.domain);
            assert_eq!(query.descriptors.len(), request.descriptors.len());
            query
        }
        (Err(QueryError::TooLarge(_)), _) | (Err(QueryError::Invalid(_)), Err(_)) => return,
        _ => panic!("{decoded:?}, and {by_prost:?} by prost"),
    };
    assert!(query.descriptors.len() <= DESCRIPTORS_MAX);
    SERVICES.with_borrow(|services| {
        for service in services {
            service.clock.advance(Span::from_micros(bytes.len() as u64 * 1_000));
            let answer = service.runtime.block_on(service.limiter.decide(query, None));
            match answer {
                Ok(answer) => {
                    assert_eq!(answer.statuses.len(), query.descriptors.len());
                    let response = convert::response(answer);
                    assert!(response.statuses.iter().all(|status| status.code != 0));
                    let _ = response.encode_to_vec();
                }
                Err(refusal) => assert!(!convert::status(&refusal).message().is_empty()),
            }
        }
    });
});
