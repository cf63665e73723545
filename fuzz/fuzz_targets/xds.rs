//! Any bytes as the rules of a control plane: they load or are rejected with texts that can be sent. Memory is
//! bounded by `-rss_limit_mb`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message as _;
use prost_types::Any;
use tollgate::rules::config::CompileOptions;
use tollgate::rules::source::xds;
use tollgate::rules::stats::StatsTable;
use tollgate::telemetry::metric::Metrics;

const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

fuzz_target!(|bytes: &[u8]| {
    let options = CompileOptions::new(StatsTable::new(100, &Metrics::new()));
    // As a resource itself, and as what most resources hold.
    let resource = Any { type_url: TYPE_URL.to_owned(), value: bytes.to_vec() };
    for resource in [bytes, &resource.encode_to_vec()] {
        if let Err(problems) = xds::load(resource, &options) {
            assert!((1..=100).contains(&problems.len()));
        }
    }
});
