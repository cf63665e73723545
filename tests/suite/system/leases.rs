//! Leases on a real Redis with several processes: what they admit, and what they save.

mod deployments;
mod faults;
pub(crate) mod fleet;
mod interactions;
mod load;
mod operators;
mod outages;
mod races;
mod rule_changes;
mod surfaces;

use std::time::Duration;

use fleet::{Fleet, per_year};

/// Less than a moment after the lifetime of every lease.
const GIVEN_BACK_AFTER: Duration = Duration::from_millis(2_500);

#[tokio::test]
async fn flood_is_admitted_exactly_the_limit() {
    const LIMIT: u64 = 1_000;
    let fleet = Fleet::of(2, &per_year(LIMIT), "").await;
    let admitted = fleet.paced("v", 10 * LIMIT, 1_000_000).await;
    assert_eq!(admitted, LIMIT);
    assert!(fleet.sum("tollgate_lease_held_answers_total") > 0);
    fleet.give_back(GIVEN_BACK_AFTER).await;
    assert_eq!(fleet.used("v"), LIMIT);
}
