//! A password of Redis that is rotated, or changed on one side first.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tollgate::base::parse::Secret;
use tollgate::store::redis::connect::credentials::Reloadable;
use tollgate::store::redis::topology::deployment::Deployment;

use crate::support::fault_log::ERROR_REPLIES;
use crate::support::in_process::{
    ADDRESS, Log, RECOVERY_MAX, Service, address, millis, network, pass, settle,
};
use crate::support::scripted_redis::{Fault, ScriptedRedis};

/// A service, and the password that it uses for new connections.
async fn start() -> (Service, Reloadable<Secret>) {
    let password = Arc::new(ArcSwap::from_pointee(Secret::new("first")));
    let mut address = address(ADDRESS);
    address.auth = Some(password.clone());
    let mut service = Service::new(&network(), Deployment::Single(address));
    service.server.set_passwords(&["first"]);
    service.start().await;
    (service, password)
}

/// Closes all connections.
async fn disconnect(server: &ScriptedRedis) {
    server.fail(Fault::RefuseConnections);
    settle().await;
    server.recover();
}

#[tokio::test(start_paused = true)]
async fn rotating_a_password_that_both_sides_know_meanwhile_is_no_fault() {
    let log = Log::capture();
    let (service, password) = start().await;
    let traffic = service.traffic();
    pass(millis(500)).await;
    service.server.set_passwords(&["first", "second"]);
    password.store(Arc::new(Secret::new("second")));
    pass(millis(500)).await;
    service.server.set_passwords(&["second"]);
    service.server.fail_next(1, Fault::CloseBeforeRunning);
    pass(millis(2_000)).await;
    traffic.finish().await;
    assert_eq!(log.faults(), [""; 0]);
    // Five callers call at the same time, so the connection that was closed carried five calls at
    // most.
    let by_policy: u64 = service.fallbacks().values().sum();
    assert!((1..=5).contains(&by_policy), "{by_policy}");
}

#[tokio::test(start_paused = true)]
async fn a_password_that_only_redis_knows_is_one_outage_until_the_service_knows_it() {
    let log = Log::capture();
    let (service, password) = start().await;
    let traffic = service.traffic();
    pass(millis(500)).await;
    service.server.set_passwords(&["second"]);
    disconnect(&service.server).await;
    pass(millis(5_000)).await;
    log.assert_logged_once(ERROR_REPLIES, false);
    assert!(log.faults()[0].contains("WRONGPASS"), "{:?}", log.faults());
    password.store(Arc::new(Secret::new("second")));
    let recovery = service.recovery().await;
    assert!(recovery <= RECOVERY_MAX, "{recovery:?}");
    pass(millis(3_000)).await;
    traffic.finish().await;
    log.assert_logged_once(ERROR_REPLIES, true);
    assert!(!log.faults().concat().contains("second"), "credentials are not logged");
}

#[tokio::test(start_paused = true)]
async fn a_password_that_redis_takes_back_is_one_outage_until_it_is_valid_again() {
    let log = Log::capture();
    let (service, _password) = start().await;
    let traffic = service.traffic();
    service.server.set_passwords(&["other"]);
    disconnect(&service.server).await;
    pass(millis(5_000)).await;
    service.server.set_passwords(&["first"]);
    let recovery = service.recovery().await;
    assert!(recovery <= RECOVERY_MAX, "{recovery:?}");
    pass(millis(3_000)).await;
    traffic.finish().await;
    log.assert_logged_once(ERROR_REPLIES, true);
}
