//! Clients that send long values while Redis is unavailable.

use crate::support::redis::RedisProcess;
use crate::support::{Code, TestServer, limit_of, look_until, resident_peak_kib};
use crate::system::hostile::RESIDENT_MAX_KIB;

/// Envoy accepts request headers of 60 KiB in all.
const VALUE_BYTES: usize = 60_000;
const VALUES: usize = 4_000;

#[tokio::test]
async fn pending_write_backs_of_long_values_are_bounded_in_bytes() {
    let mut redis = RedisProcess::start();
    let server = TestServer::with_rules(&limit_of(1)).with_env("REDIS_URL", &redis.url()).start();
    let mut client = server.client().await;
    assert_eq!(client.ask("d", &[("k", "known")]).await, Code::Ok);
    redis.kill();
    look_until("Redis is given up", || {
        server.json(r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"probe"}]}]}"#);
        server.metric("tollgate_store_breaker_open") == Some(1.0)
    });
    for number in 0..VALUES {
        let value = format!("{number} {}", "x".repeat(VALUE_BYTES));
        assert_eq!(client.ask("d", &[("k", &value)]).await, Code::Ok, "{number}");
    }
    let peak = resident_peak_kib(server.pid());
    assert!(peak < RESIDENT_MAX_KIB, "{peak} KiB after {VALUES} values of {VALUE_BYTES} bytes");
    assert!(server.metric("tollgate_write_back_full_total").expect("it is exposed") > 0.0);
    assert_eq!(
        client.ask("d", &[("k", "known")]).await,
        Code::OverLimit,
        "others are not affected"
    );
    redis.restart();
    look_until("Redis counts again", || server.metric("tollgate_store_breaker_open") == Some(0.0));
}
