//! Requests whose candidate checks are undecided when their response is sent are bounded, by number
//! and by bytes.

use tollgate::telemetry::metric::Metrics;

use crate::support::in_process::{Called, Rules, Service, millis, network, pass, single};
use crate::support::scripted_redis::Fault;

const UNLIMITED: &str = "
domain: d
descriptors:
  - {key: key, rate_limit: {unlimited: true}}
";
const LIMITED: &str = "
domain: d
descriptors:
  - {key: key, rate_limit: {unit: day, requests_per_unit: 5}}
";

#[tokio::test(start_paused = true)]
async fn undecided_requests_are_bounded_in_number_and_bytes() {
    // A request of 128 KiB counts as 9.
    for (value_bytes, undecided_max) in [(10, 1_024), (128 << 10, 113)] {
        let (network, metrics) = (network(), Metrics::new());
        let rules = Rules::load_with_candidate(UNLIMITED, LIMITED, &metrics);
        let clock = network.clock.clone();
        let mut service = Service::with_loaded(&network, single(), clock, &rules, metrics);
        service.start().await;
        service.ask("key", "first").await;
        pass(millis(20)).await;
        service.server.fail(Fault::Delay(millis(50)));
        let value = "x".repeat(value_bytes);
        for number in 0..undecided_max + 7 {
            let called = service.ask("key", &format!("{value}{number}")).await;
            assert_eq!(called, Called::OK, "{number}");
        }
        let undecided = "tollgate_candidate_undecided_total{reason=\"pending_max\"}";
        assert_eq!(service.metric(undecided), 7, "{value_bytes}");
        pass(millis(1_000)).await;
        service.ask("key", &value).await;
        assert_eq!(service.metric(undecided), 7, "they are decided");
    }
}
