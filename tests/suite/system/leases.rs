//! Leases on a real Redis with several processes: what they admit, and what they save.

mod answers;
mod deployments;
mod faults;
pub(crate) mod fleet;
mod give_back;
mod interactions;
mod load;
mod operators;
mod outages;
mod over_limit;
mod races;
mod regions;
mod rule_changes;
mod surfaces;

use std::time::Duration;

use fleet::{Fleet, per_year};

/// Less than a moment after the lifetime of every lease.
const GIVEN_BACK_AFTER: Duration = Duration::from_millis(2_500);

#[tokio::test]
async fn all_of_the_limit_is_admitted_in_turn() {
    let fleet = Fleet::of(3, &per_year(1_000), "").await;
    let mut admitted = 0;
    for call in 0..1_000 {
        admitted += fleet.ask(call % 3, "turn").await;
    }
    assert!(admitted >= 980, "{admitted} of 1000");
    fleet.give_back(GIVEN_BACK_AFTER).await;
    while admitted < 1_000 {
        admitted += fleet.ask(0, "turn").await;
    }
    for service in 0..3 {
        assert_eq!(fleet.ask(service, "turn").await, 0, "{service}");
    }
}
