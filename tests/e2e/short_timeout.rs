//! Envoy waits for less time than Tollgate needs.

use crate::env::{Env, Store, http};

#[test]
fn scratch() {
    for (timeout, pause) in [("0.003s", 0), ("0.005s", 0), ("0.005s", 20), ("0.02s", 60)] {
        let env = Env::with("envoy.yaml")
            .on(Store::Redis)
            .with_default_store_timeout()
            .with_instead("timeout: 10s\n", &format!("timeout: {timeout}\n"))
            .start();
        env.under_traffic(4, "/search", |_| {
            for _ in 0..30 {
                if pause > 0 {
                    env.redis()
                        .command::<()>(&["CLIENT", "PAUSE", &pause.to_string()]);
                }
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
        });
        println!("{timeout} {pause} asked {}", env.asked());
        println!(
            "{}",
            http::get(env.tollgate.admin(), "/metrics")
                .body
                .lines()
                .filter(|l| (l.contains("fallbacks") || l.contains("verdicts"))
                    && !l.starts_with("#")
                    && !l.ends_with(" 0"))
                .collect::<Vec<_>>()
                .join("\n")
        );
        println!(
            "stats {:?}",
            env.envoy
                .stats()
                .into_iter()
                .filter(|(k, v)| *v > 0 && (k.contains("ratelimit")))
                .collect::<Vec<_>>()
        );
    }
}
