//! Envoy waits for less time than Tollgate needs.

use crate::env::{Env, Store, http};

#[test]
fn scratch() {
    let env = Env::with("envoy.yaml")
        .on(Store::Redis)
        .with_default_store_timeout()
        .with_instead("timeout: 10s\n", "timeout: 0.001s\n")
        .start();
    env.under_traffic(2, "/search", |_| {
        std::thread::sleep(std::time::Duration::from_secs(3));
    });
    println!("stats {:?}", env.envoy.stats().into_iter().filter(|(k, v)| *v > 0 && (k.contains("ratelimit") || k.contains("tollgate"))).collect::<Vec<_>>());
    println!("asked {}", env.asked());
    println!("{}", http::get(env.tollgate.admin(), "/metrics").body.lines().filter(|l| (l.contains("fallbacks") || l.contains("verdicts") || l.contains("deadline")) && !l.ends_with(" 0")).collect::<Vec<_>>().join("\n"));
}
