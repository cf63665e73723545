//! Any bytes as a body of `/json`: the handler answers it with one of its statuses, and never panics.

#![no_main]

use axum::body::Body;
use axum::extract::State;
use http::HeaderMap;
use libfuzzer_sys::fuzz_target;
use tollgate::api::budget::Budget;
use tollgate::api::json::{self, JsonHandler};
use tollgate::telemetry::metric::Metrics;
use tollgate::telemetry::traces::Traces;

#[path = "../service.rs"]
mod service;

struct Handler {
    handler: JsonHandler,
    runtime: tokio::runtime::Runtime,
}

thread_local! {
    static HANDLER: Handler = handler();
}

fn handler() -> Handler {
    let metrics = Metrics::new();
    let runtime = service::runtime();
    let limiter = runtime.block_on(async { service::limiter(false, &metrics).0.open() });
    let counter = metrics.counter("oversized", "Oversized bodies.");
    Handler {
        handler: JsonHandler {
            limiter,
            budget: Budget::new(&metrics),
            oversized: counter,
            traces: Traces::default(),
        },
        runtime,
    }
}

fuzz_target!(|bytes: &[u8]| {
    HANDLER.with(|Handler { handler, runtime }| {
        let body = Body::from(bytes.to_vec());
        let response =
            runtime.block_on(json::answer(State(handler.clone()), HeaderMap::new(), body));
        assert!(matches!(response.status().as_u16(), 200 | 400 | 429), "{}", response.status());
    });
});
