//! Processes far from Redis: nearly all calls are answered from leases, also while the link is cut.
//!
//! `REGIONS_SECONDS=180` makes the load as long as documented: the link is cut for a ninth of it.

use std::env;
use std::time::Duration;

use tokio::time::sleep;
use tollgate::base::time::Clock;

use super::GIVEN_BACK_AFTER;
use super::fleet::Fleet;
use crate::support::TestServer;
use crate::support::proxy::{Fault, Proxy};
use crate::support::redis::RedisProcess;

const REGIONS: u64 = 3;
/// Calls per second of all of them.
const RATE: u64 = 900;
const SECONDS: u64 = 18;
const SECONDS_VARIABLE: &str = "REGIONS_SECONDS";
/// Until the takes are as large as the demand, which they double towards once a round trip.
const WARM_UP_SECONDS: u64 = 2;
const ONE_WAY: Duration = Duration::from_millis(50);
/// Of 1,000 calls.
const LEASED_MIN: u64 = 995;
/// Of the value `small`, per minute.
const SMALL_LIMIT: u64 = 2_000;
const RULES: &str = "
domain: d
descriptors:
  - key: key
    rate_limit: {unit: minute, requests_per_unit: 100000}
    metadata: {tollgate: {consistency: leased}}
  - key: key
    value: small
    rate_limit: {unit: minute, requests_per_unit: 2000}
    metadata: {tollgate: {consistency: leased}}
";

#[tokio::test]
async fn calls_far_from_redis_are_leased_and_never_over_the_limit() {
    let seconds = env::var(SECONDS_VARIABLE)
        .map_or(SECONDS, |seconds| seconds.parse().expect("it is a number of seconds"));
    let redis = RedisProcess::start();
    let links: Vec<Proxy> = (0..REGIONS).map(|_| Proxy::before(redis.port())).collect();
    let start = |link: &Proxy| {
        link.set(Fault::Distance(ONE_WAY));
        let service = TestServer::with_rules(RULES)
            .with_env("REDIS_URL", &format!("redis://{}", link.addr()))
            .with_env("STORE_TIMEOUT", "500ms");
        service.start()
    };
    let services = links.iter().map(start).collect();
    let fleet = Fleet::on(redis, services).await;
    let load = async |seconds: u64| {
        let calls = seconds * RATE / REGIONS;
        assert_eq!(fleet.paced("v", calls, RATE).await, calls * REGIONS);
        calls * REGIONS
    };

    load(WARM_UP_SECONDS).await;
    let before = fleet.hits("used");
    let calls = load(seconds).await;
    let leased = fleet.hits("used") - before;
    assert!(leased * 1_000 >= calls * LEASED_MIN, "{leased} of {calls} calls");
    assert_eq!(fleet.fallbacks(), 0);

    let window = || Clock::system().now().as_micros() / 60_000_000;
    let first = window();
    let admitted = fleet.paced("small", SMALL_LIMIT, RATE).await;
    let windows = window() - first + 1;
    assert!(admitted <= windows * SMALL_LIMIT, "{admitted} in {windows} windows");

    let cut = async {
        let set = |fault| links.iter().for_each(|link| link.set(fault));
        set(Fault::Stall);
        sleep(Duration::from_secs(seconds) / 9).await;
        set(Fault::Distance(ONE_WAY));
    };
    tokio::join!(load(seconds / 3), cut);
    assert!(fleet.fallbacks() > 0, "the link was not cut");
    fleet.give_back(GIVEN_BACK_AFTER).await;
}
