//! Counting behind Sentinel: the master is found, and found again when it is another.

use crate::support::counting::{ALGORITHMS, Counting, service};
use crate::support::fault::Servers as _;
use crate::support::look_until;
use crate::support::redis::RedisProcess;
use crate::support::sentinel::{Options, SentinelProcess};

const LIMIT: u32 = 4;
/// Asked until Redis counts, and never of interest otherwise.
const ANYTHING: [(&str, &str); 1] = [("token", "anything")];

fn keys(redis: &RedisProcess) -> usize {
    redis.command(&["DBSIZE"])
}

#[tokio::test]
async fn the_master_is_found_and_replicas_of_the_service_share_what_they_count() {
    let deployment = SentinelProcess::with(Options { replicas: 2, ..Options::default() });
    let (one, other) =
        (service(LIMIT, &deployment.settings()), service(LIMIT, &deployment.settings()));
    one.assert_announced("mymaster");
    let mut one = Counting::at(&one).await;
    let mut other = Counting::at(&other).await;
    one.wait_for_verdicts(&ANYTHING).await;
    other.wait_for_verdicts(&ANYTHING).await;
    for (key, algorithm) in ALGORITHMS.into_iter().filter(|(key, _)| *key != "places") {
        assert_eq!(one.admitted(key, "shared", 3).await, 3, "{algorithm}");
        assert_eq!(other.admitted(key, "shared", 3).await, LIMIT - 3, "{algorithm}");
    }
}

#[tokio::test]
async fn after_a_failover_the_new_master_goes_on_counting_where_the_old_one_was() {
    let deployment = SentinelProcess::start();
    let server = service(LIMIT, &deployment.settings());
    let mut counting = Counting::at(&server).await;
    counting.wait_for_verdicts(&ANYTHING).await;
    for (key, _) in ALGORITHMS {
        assert_eq!(counting.admitted(key, "v", 2).await, 2);
    }
    let before = keys(deployment.master());
    look_until("the replica has everything", || keys(&deployment.servers[1]) == before);
    deployment.fail_over();
    counting.wait_for_verdicts(&ANYTHING).await;
    for (key, algorithm) in ALGORITHMS {
        assert_eq!(counting.admitted(key, "v", LIMIT).await, LIMIT - 2, "{algorithm}");
    }
    look_until("the change is counted", || {
        server.metric("tollgate_store_topology_changes_total") >= Some(1.0)
    });
    server.assert_metric("tollgate_store_nodes", 1.0);
    look_until("the log says so", || server.log().contains("Redis topology changed"));
}
