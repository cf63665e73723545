//! Unused hits return to the counter they were taken from, once, and to no other window.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tollgate::base::time::{MICROS_PER_SECOND, Time};

use super::GIVEN_BACK_AFTER;
use super::fleet::{Called, Fleet};

const LIMIT: u64 = 500;
const WINDOWS: u64 = 20;
/// How exactly a process knows the clock of Redis, and how late a give-back may be.
const MARGIN_MICROS: u64 = 50_000;

/// Every service calls for 200 ms, then does not for 200 ms, twice as long as a lease lives.
fn in_bursts(call: u64) -> Duration {
    const CALLS: u64 = 50;
    Duration::from_millis(call / CALLS * 400 + call % CALLS * 4)
}

#[tokio::test]
async fn hits_of_a_second_return_to_that_second() {
    let limit = format!("rate_limit: {{unit: second, requests_per_unit: {LIMIT}}}");
    let fleet = Fleet::of(2, &limit, "").await;
    let mut windows = BTreeMap::new();
    // For 20 windows, a burst takes 400 ms.
    let calls = fleet.at_times("v", WINDOWS * 1_000 / 400 * 50, in_bursts);
    let mut calls = std::pin::pin!(calls);
    let called = loop {
        // Keys of windows expire.
        read_windows(&fleet, &mut windows);
        if let Ok(called) = timeout(Duration::from_millis(100), &mut calls).await {
            break called;
        }
    };
    sleep(Duration::from_millis(1_200)).await;
    read_windows(&fleet, &mut windows);
    fleet.give_back(GIVEN_BACK_AFTER).await;
    assert!(fleet.hits("given_back") > 0, "nothing was given back");

    let stranded = fleet.hits("stranded");
    let mut compared = 0;
    for (start, charged) in windows {
        // It was seen when nothing could change it any more.
        let Some(charged) = charged else { continue };
        compared += 1;
        let admitted = |from: u64, to: u64| {
            let is_in = |called: &&Called| {
                let [sent, answered] = [called.sent, called.answered].map(Time::as_micros);
                called.is_admitted && sent < to && answered >= from
            };
            called.iter().filter(is_in).count() as u64
        };
        let from = start * MICROS_PER_SECOND;
        let to = (start + 1) * MICROS_PER_SECOND;
        let before = admitted(0, from + MARGIN_MICROS);
        let after = admitted(to - MARGIN_MICROS, u64::MAX);
        let at_least = (called.iter().filter(|called| called.is_admitted).count() as u64)
            .saturating_sub(before + after);
        let at_most = admitted(from - MARGIN_MICROS, to + MARGIN_MICROS) + stranded;
        assert!(
            (at_least..=at_most.min(LIMIT)).contains(&charged),
            "{start}: {charged}, not {at_least} to {at_most}"
        );
    }
    assert!(compared >= WINDOWS / 2, "only {compared} windows were seen");
}

/// Sets what each window has that is over, and notes the others.
fn read_windows(fleet: &Fleet, windows: &mut BTreeMap<u64, Option<u64>>) {
    let (seconds, micros): (u64, u64) = fleet.redis.command(&["TIME"]);
    let keys: Vec<String> = fleet.redis.command(&["KEYS", "d_key_v_*"]);
    for key in keys {
        let start = key.rsplit('_').next().and_then(|start| start.parse().ok());
        let start: u64 = start.expect("a key ends with its window");
        let value: Option<u64> = fleet.redis.command(&["GET", &key]);
        let is_over = seconds > start + 1 || (seconds == start + 1 && micros > MARGIN_MICROS);
        let known = windows.entry(start).or_insert(None);
        *known = known.or(value.filter(|_| is_over));
    }
}
