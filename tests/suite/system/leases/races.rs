//! Three services with eight clients each share one leased counter: a window never admits more than
//! its limit, and admits all of it once unused hits are back.

use tokio::time::Instant;

use super::GIVEN_BACK_AFTER;
use super::fleet::Fleet;
use crate::races::{CLIENTS, SERVICES, race};
use crate::support::request;

/// Rounds of [`OFFERED`] calls, each on a counter of its own; RACE_ROUNDS sets more, as `make leases`
/// does.
const ROUNDS: usize = 2;
const LIMIT: usize = 2_000;
/// Calls of a round, by all clients together.
const OFFERED: usize = 6_000;

/// The bucket refills by less than one hit.
#[tokio::test]
async fn no_window_and_no_bucket_is_ever_over() {
    let set = std::env::var("RACE_ROUNDS").ok();
    let rounds = set.map_or(ROUNDS, |rounds| rounds.parse().expect("a number of rounds"));
    let limit = format!("rate_limit: {{unit: year, requests_per_unit: {LIMIT}}}");
    for algorithm in
        ["fixed_window", "sliding_window", "sliding_window, buckets: 6", "token_bucket"]
    {
        let options = format!(", lease: 200ms, algorithm: {algorithm}");
        let fleet = Fleet::of(SERVICES, &limit, &options).await;
        let admitted = compete(&fleet, rounds);
        assert!(admitted.iter().all(|&admitted| admitted <= LIMIT), "{algorithm}: {admitted:?}");
        fleet.give_back(GIVEN_BACK_AFTER).await;
        for (round, admitted) in admitted.into_iter().enumerate() {
            let round = round.to_string();
            for call in admitted..LIMIT {
                assert_eq!(fleet.ask(0, &round).await, 1, "{algorithm}, {round}: {call}");
            }
            for service in 0..SERVICES {
                assert_eq!(fleet.ask(service, &round).await, 0, "{algorithm}, {round}: {service}");
            }
        }
    }
}

/// What replicas hold when a time begins is at most a tenth of the burst.
#[tokio::test]
async fn refilling_bucket_admits_at_most_a_tenth_more() {
    const BURST: usize = 500;
    let limit = format!("rate_limit: {{unit: second, requests_per_unit: {BURST}}}");
    let fleet = Fleet::of(SERVICES, &limit, ", algorithm: token_bucket").await;
    let began = Instant::now();
    let admitted: usize = compete(&fleet, 1).into_iter().sum();
    let refilled = began.elapsed().as_micros() * BURST as u128 / 1_000_000;
    let refilled = usize::try_from(refilled).expect("a few seconds");
    assert!(admitted <= BURST * 11 / 10 + refilled, "{admitted} of {BURST} and {refilled}");
    fleet.give_back(GIVEN_BACK_AFTER).await;
}

/// How many calls of each round are admitted.
fn compete(fleet: &Fleet, rounds: usize) -> Vec<usize> {
    let calls = OFFERED / (SERVICES * CLIENTS);
    race(&fleet.services, rounds, calls, |call| {
        request("d", &[&[("key", &call.round.to_string())]])
    })
}
