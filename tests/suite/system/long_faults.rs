//! Faults that last much longer than any timeout of the service, and failovers that Sentinel allows
//! only every ten seconds.

use std::thread;
use std::time::Duration;

use crate::support::fault::FaultScenario;
use crate::support::fault_log::UNREACHABLE;
use crate::support::sentinel::SentinelProcess;
use crate::support::traffic::Traffic;

/// Longer than any interval at which the service repeats something on its own.
const LONG: Duration = Duration::from_secs(30);

#[test]
fn redis_stopped_for_half_a_minute() {
    FaultScenario::direct().run(|scenario| {
        scenario.servers.redis.stop();
        scenario.wait_until_policies_answer_to(UNREACHABLE);
        thread::sleep(LONG);
        scenario.wait_until_policies_answer();
        scenario.servers.redis.cont();
    });
}

#[test]
fn repeated_failovers_leave_nothing_behind() {
    let scenario = FaultScenario::new(SentinelProcess::start(), &[]);
    scenario.wait_until_redis_counts();
    scenario.leaves_nothing_behind(1, |scenario| {
        let traffic = Traffic::start(&scenario.server, [scenario.calls("local")]);
        scenario.servers.fail_over();
        scenario.wait_until_redis_counts();
        traffic.wait_for_answers(1);
        let [answers] = traffic.finish();
        assert!(answers.errors.is_empty(), "{answers:?}");
    });
}
