//! The store on further servers, with the checks of `redis_versions`.

use crate::redis_versions::holds;
use crate::support::versions::{ON_PATH, REDIS_7_0};

#[tokio::test]
async fn redis_of_the_distribution() {
    holds(ON_PATH).await;
}

#[tokio::test]
async fn redis_7_0_of_maven() {
    holds(REDIS_7_0).await;
}
