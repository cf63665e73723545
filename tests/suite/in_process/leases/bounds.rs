//! More hot counters than the table of leases has room for, and counters with longer keys: they are
//! exact, and nothing is lost.

use tollgate::base::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollgate::limits::check::KEY_BYTES_MAX;

use super::{LIFETIME, SWEEP_INTERVAL, assert_nothing_is_held, service};
use crate::support::descriptor;
use crate::support::in_process::{Called, Service, decide, pass, settle};

/// `leases_max`.
const LEASES_MAX: u32 = 65_536;
/// Counters beyond it.
const FURTHER: u32 = 100;
const COUNTERS_PER_REQUEST: usize = 256;
/// By these a counter is hot at once.
const HITS: u32 = 4;
/// Of each counter that is called again: the first of them takes, and the others may use it.
const CALLS: u32 = 3;

#[tokio::test(start_paused = true)]
async fn counters_beyond_leases_max_are_exact() {
    let service = service("unit: hour, requests_per_unit: 100000", "").await;
    let values: Vec<u32> = (0..LEASES_MAX + FURTHER).collect();
    for some in values.chunks(COUNTERS_PER_REQUEST) {
        admits(&service, some).await;
    }
    let full = || service.metric("tollgate_leases_full_total");
    assert_eq!(full(), u64::from(FURTHER));

    let leased = &values[..FURTHER as usize];
    let further = &values[LEASES_MAX as usize..];
    for _ in 0..CALLS {
        admits(&service, leased).await;
        admits(&service, further).await;
        settle().await;
    }
    assert_eq!(full(), u64::from(FURTHER * (1 + CALLS)));
    assert_eq!(service.metric("tollgate_leases"), u64::from(FURTHER));
    let charged = |value| service.server.hits(&format!("d_key_{value}_"));
    let admitted = i64::from((1 + CALLS) * HITS);
    for value in leased {
        assert!(charged(value) > admitted, "{value} holds none");
    }
    for value in further {
        assert_eq!(charged(value), admitted, "{value}");
    }

    pass(LIFETIME + SWEEP_INTERVAL).await;
    assert_nothing_is_held(&service, "after their lifetime");
    for value in leased {
        assert_eq!(charged(value), admitted, "{value}");
    }
    // There is room again.
    admits(&service, further).await;
    assert_eq!(full(), u64::from(FURTHER * (1 + CALLS)));
}

/// In the key format of envoyproxy/ratelimit a key has what a client sends.
#[tokio::test(start_paused = true)]
async fn counters_with_longer_keys_are_exact() {
    let service = service("unit: hour, requests_per_unit: 100000", "").await;
    let value = |key_bytes: usize| "x".repeat(key_bytes - "d_key__".len());
    for (key_bytes, is_leased) in
        [(KEY_BYTES_MAX, true), (KEY_BYTES_MAX + 1, false), (60_000, false)]
    {
        let value = value(key_bytes);
        for _ in 0..=CALLS {
            admits(&service, &[&value]).await;
            settle().await;
        }
        let charged = service.server.hits(&format!("d_key_{value}_"));
        let admitted = i64::from((1 + CALLS) * HITS);
        assert_eq!(charged > admitted, is_leased, "{key_bytes}: {charged}");
        assert_eq!(service.metric("tollgate_leases"), 1, "{key_bytes}");
    }
    let full = service.metric("tollgate_leases_full_total");
    assert_eq!(full, u64::from(2 * (1 + CALLS)));
}

/// Calls with hits of each of these.
async fn admits(service: &Service, values: &[impl ToString]) {
    let calls = values.iter().map(|value| {
        let mut call = descriptor(&[("key", &value.to_string())]);
        call.hits_addend = Some(HITS.into());
        call
    });
    let request =
        RateLimitRequest { domain: "d".into(), descriptors: calls.collect(), hits_addend: 0 };
    assert_eq!(decide(&service.limiter, &request, None).await, Called::OK);
}
