//! Faults that last much longer than any timeout of the service.

use std::thread;
use std::time::Duration;

use crate::support::fault::{FaultScenario, UNREACHABLE};

/// Longer than any interval at which the service repeats something on its own.
const LONG: Duration = Duration::from_secs(30);

#[test]
fn redis_stopped_for_half_a_minute() {
    FaultScenario::direct().run(|scenario| {
        scenario.servers.redis.stop();
        scenario.wait_until_policies_answer();
        scenario.wait_until_logged(UNREACHABLE);
        thread::sleep(LONG);
        scenario.wait_until_policies_answer();
        scenario.servers.redis.cont();
    });
}
