//! Failovers that Sentinel allows only every ten seconds.

use crate::support::fault::FaultScenario;
use crate::support::sentinel::SentinelProcess;
use crate::support::traffic::Traffic;

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
