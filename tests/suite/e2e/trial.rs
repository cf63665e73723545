//! A trial behind a real Envoy: beside the service in use, as a second filter.

use crate::e2e::env::{Counts, Env, Outcome, limit_of_a_day};
use crate::support::TestServer;

#[test]
fn a_second_filter_counts_and_enforces_nothing() {
    let in_use = TestServer::with_rules(&limit_of_a_day(3)).start();
    let env = Env::with("second-filter.yaml")
        .with_instead("port_value: 8091}", &format!("port_value: {}}}", in_use.grpc.port()))
        .with_rules("web.yaml", &limit_of_a_day(1))
        .start();
    for path in ["/a", "/a", "/a", "/a", "/b"] {
        let _ = env.get(path);
    }
    assert_eq!((env.seen(Outcome::Passed), env.seen(Outcome::OverLimit)), (4, 1));
    env.assert_counts(Counts { ok: 4, over_limit: 1, ..Counts::default() });
    let stats = env.envoy.stats();
    let of_tollgate = |name: &str| stats[&format!("cluster.backend.ratelimit.tollgate.{name}")];
    assert_eq!((of_tollgate("ok"), of_tollgate("over_limit")), (2, 3));
}
