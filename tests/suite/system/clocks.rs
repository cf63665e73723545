//! Clocks of Redis servers that jump or differ. libfaketime sets them.
//!
//! The servers are Valkey: libfaketime does not work with jemalloc, which asks for the time before
//! it can allocate.

use crate::cluster::{counters, on, values};
use crate::support::cluster::{ClusterProcess, Options};
use crate::support::counting::{ALGORITHMS, Counting, answered_by_redis, rules};
use crate::support::fault::{FaultScenario, PATIENT, Single};
use crate::support::redis::RedisProcess;
use crate::support::versions::VALKEY_9_1;
use crate::support::{TestServer, request};

const LIMIT: u32 = 4;
const HOUR_SECONDS: i64 = 3_600;

/// An hour ahead, an hour back, and right again. The windows are a year long, so no client notices.
#[test]
fn clock_of_redis_jumps() {
    let redis = RedisProcess::builder().of(VALKEY_9_1).with_own_clock().start();
    let report = FaultScenario::new(Single::direct(redis), &[PATIENT]).run(|scenario| {
        for offset in [HOUR_SECONDS, -HOUR_SECONDS, 0] {
            scenario.servers.redis.clock().set(offset);
            scenario.wait_until_redis_counts();
        }
    });
    report.is_unnoticed();
}

#[tokio::test]
async fn a_clock_an_hour_off_gives_nothing_away_and_locks_nobody_out() {
    const LIMIT: u32 = 8;
    let redis = RedisProcess::builder().of(VALKEY_9_1).with_own_clock().start();
    let minutes = "  - {key: minute, rate_limit: {unit: minute, requests_per_unit: 1000}}\n";
    let server = answered_by_redis(
        TestServer::with_rules(&(rules(LIMIT, "") + minutes)),
        &[("REDIS_URL", redis.address())],
    )
    .start();
    let mut counting = Counting::at(&server).await;
    counting.wait_for_verdicts(&[("token", "anything")]).await;
    for offset in [0, HOUR_SECONDS, -HOUR_SECONDS, 0] {
        redis.clock().set(offset);
        for (key, algorithm) in ALGORITHMS {
            assert_eq!(
                counting.admitted(key, "v", 2).await,
                2,
                "{algorithm}: there is room, whatever time it is"
            );
        }
        // Its window is chosen by the clock of Redis.
        let answer =
            counting.client.call(request("d", &[&[("minute", "v")]])).await.expect("a verdict");
        let reset = answer.statuses[0].duration_until_reset.as_ref().expect("it is told").seconds;
        assert!((1..=60).contains(&reset), "{reset} s, with the clock {offset} s off");
    }
    for offset in [0, HOUR_SECONDS, -HOUR_SECONDS] {
        redis.clock().set(offset);
        for (key, _) in ALGORITHMS {
            counting.is_over_but_not_for_ever((key, "v")).await;
        }
    }
}

/// An hour ahead, an hour behind and right, side by side; and slots move from one to another.
#[tokio::test]
async fn clocks_that_differ_by_hours_give_nothing_away_and_lock_nobody_out() {
    let cluster = ClusterProcess::with(Options {
        node: RedisProcess::builder().of(VALKEY_9_1).with_own_clock(),
        ..Options::default()
    });
    for (number, offset_seconds) in [3_600, -3_600, 0].into_iter().enumerate() {
        cluster.server(number).clock().set(offset_seconds);
    }
    let move_everything = || {
        for key in cluster.keys("*") {
            let slot = cluster.slot_of(&key);
            cluster.migrate(slot);
        }
    };
    let (_server, mut counting) = on(&cluster, LIMIT).await;
    let values = &values()[..6];
    let all: Vec<_> = ALGORITHMS.into_iter().flat_map(|(key, _)| counters(key, values)).collect();
    for (asked, admitted) in [(LIMIT / 2, LIMIT / 2), (LIMIT, LIMIT - LIMIT / 2), (1, 0), (1, 0)] {
        for (key, value) in &all {
            assert_eq!(counting.admitted(key, value, asked).await, admitted, "{key}: {value}");
        }
        move_everything();
    }
    for counter in all {
        counting.is_over_but_not_for_ever(counter).await;
    }
}
