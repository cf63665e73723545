//! How many commands calls of leased rules cost Redis, at exact times.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::service;
use crate::support::in_process::{Service, Verdict, ask};

/// Commands that decide, charge or give back.
const COMMANDS: [&str; 3] = ["INCR", "INCRBY", "EVALSHA"];

fn commands(service: &Service) -> usize {
    COMMANDS.map(|name| service.server.received(name)).into_iter().sum()
}

#[tokio::test(start_paused = true)]
async fn calls_need_few_commands() {
    // Limit, calls, calls per second, how many are admitted, and commands for 1,000 calls.
    for (limit, calls, rate, admitted, per_thousand_max) in [
        ("unit: year, requests_per_unit: 1000000", 10_000, 1_000, 10_000, 30),
        // A take covers 50 ms.
        ("unit: second, requests_per_unit: 1000", 2_500, 500, 2_500, 100),
        ("unit: second, requests_per_unit: 1000", 5_000, 3_000, 2_000, 100),
        // A flood of a limit that is used up.
        ("unit: year, requests_per_unit: 1000", 20_000, 20_000, 1_000, 50),
    ] {
        let service = service(limit, "").await;
        // A second begins.
        let before = commands(&service);
        let began = Instant::now();
        let mut answers = JoinSet::new();
        for call in 0..calls {
            sleep_until(began + Duration::from_micros(call * 1_000_000 / rate)).await;
            let limiter = service.limiter.clone();
            answers.spawn(async move { ask(&limiter, "key", "v", None).await.verdict });
        }
        let answers = answers.join_all().await;
        let ok = answers.iter().filter(|&verdict| *verdict == Verdict::Ok);
        let needed = commands(&service) - before;
        let what = format!("{limit}, {rate} per second: {needed} commands");
        assert_eq!(ok.count(), admitted, "{what}");
        let calls = usize::try_from(calls).expect("few");
        assert!(needed <= calls * per_thousand_max / 1_000, "{what}");
    }
}
