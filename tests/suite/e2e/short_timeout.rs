//! Envoy waits for less time than Redis needs.

use std::thread::sleep;
use std::time::Duration;

use crate::e2e::env::{Env, Store};

#[test]
fn ready_names_the_timeout_of_envoys_filter() {
    let env = Env::with("envoy.yaml")
        .on(Store::Redis)
        .with_env("STORE_TIMEOUT", "")
        .with_instead("timeout: 10s\n", "timeout: 0.001s\n")
        .start();
    env.under_traffic(4, "/search", || {
        let ready = || env.tollgate.server().admin("/ready");
        let is_said = (0..100).any(|_| {
            sleep(Duration::from_millis(100));
            ready().contains("set the timeout of Envoy's filter to 0.15s")
        });
        assert!(is_said, "{}", ready());
    });
    let metrics = env.tollgate.server().admin("/metrics");
    let of_cause = |line: &&str| line.contains("fallbacks") && line.contains("short_deadline");
    let counted = metrics.lines().filter(of_cause);
    assert!(counted.into_iter().any(|line| !line.ends_with(" 0")), "{metrics}");
}
