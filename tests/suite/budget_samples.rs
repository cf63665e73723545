//! The rules of `deploy/budgets`: they load in the service that they may come from, and replicas of
//! old and new rules count together.
//!
//! Their test cases are run by `rule_tests.rs`. REFERENCE names a binary of envoyproxy/ratelimit;
//! without it, this service is started as that one is deployed.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;

use tempfile::TempDir;

use crate::support::process::Process;
use crate::support::redis::RedisProcess;
use crate::support::reference;
use crate::support::{Client, Code, TestServer, copy, http, look_until, request};

/// What the rules are without their `tollgate` blocks.
const LOADED: [&str; 7] = [
    "llm.team: unit=UNKNOWN requests_per_unit=0",
    "llm.team.phase_settle: unit=UNKNOWN requests_per_unit=0",
    "api.api_key: unit=SECOND requests_per_unit=10",
    "saas.org: unit=MONTH requests_per_unit=1000000",
    "saas.org.team: unit=DAY requests_per_unit=50000",
    "saas.org.team.user: unit=MINUTE requests_per_unit=60",
    "plans.plan_free.user: unit=DAY requests_per_unit=50",
];

/// An address that was free a moment ago.
fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("it is bound")
}

#[test]
fn samples_load_in_the_reference() {
    let redis = RedisProcess::start();
    let home = TempDir::new().expect("a temporary directory can be made");
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/budgets");
    for sample in fs::read_dir(&samples).expect("it is a folder") {
        let sample = sample.expect("it can be listed");
        let name = Path::new(reference::RULES).join(sample.file_name());
        copy(&sample.path(), &home.path().join(name));
    }
    let [grpc, http, debug] = [(); 3].map(|()| free_address());
    let command = reference::command(home.path(), &redis.address(), [grpc, http, debug]);
    let log = home.path().join("reference.log");
    let mut process = Process::start("the reference", command, log);
    process.wait_until_ready(|| TcpStream::connect(debug).is_ok());
    look_until("it has loaded all rules", || {
        let page = http::get(debug, "/rlconfig").body;
        LOADED.iter().all(|line| page.contains(line))
    });
}

const OLD: &str = "
domain: d
descriptors:
  - key: org
    rate_limit: {unit: year, requests_per_unit: 100}
    descriptors:
      - {key: user, rate_limit: {unit: year, requests_per_unit: 50}}
";
/// With what a replica of an earlier version does not know in the place of `parents`.
const NEW: &str = "
domain: d
descriptors:
  - key: org
    rate_limit: {unit: year, requests_per_unit: 100}
    descriptors:
      - key: user
        rate_limit: {unit: year, requests_per_unit: 50}
        metadata: {tollgate: {parents: true, limits: [{requests: 40, unit: month, calendar: UTC}]}}
";

/// What is left of an organization and of its user, after one more hit of the user.
async fn left(client: &mut Client) -> (u32, u32) {
    let (org, user) = ([("org", "a")], [("org", "a"), ("user", "u")]);
    let response = client.answer(request("d", &[&user])).await;
    assert_eq!(response.statuses[0].code(), Code::Ok);
    let mut peek = request("d", &[&org, &user]);
    for descriptor in &mut peek.descriptors {
        descriptor.hits_addend = Some(0);
    }
    let response = client.answer(peek).await;
    let left = |index: usize| response.statuses[index].limit_remaining;
    (left(0), left(1))
}

/// The order of docs/redis.md: the image, then the rules.
#[tokio::test]
async fn replicas_of_old_and_new_rules_count_together() {
    let redis = RedisProcess::start();
    let start = || {
        let builder = TestServer::with_rules(OLD).with_env("REDIS_URL", &redis.url());
        builder.with_env("ON_STORE_ERROR", "error").start()
    };
    let old = start();
    let new = start();
    let mut of_old = old.client().await;
    let mut of_new = new.client().await;
    assert_eq!(left(&mut of_old).await, (100, 49));
    assert_eq!(left(&mut of_new).await, (100, 48));

    // The counter of the user goes on, and the new limits begin at zero.
    new.write("rules.yaml", NEW);
    new.metric_becomes("ratelimit_service_config_load_success", 2.0).await;
    assert_eq!(left(&mut of_new).await, (99, 39));
    // Without the key in it, the rules in force are those from before.
    old.write("rules.yaml", &NEW.replace("parents", "later"));
    old.metric_becomes("tollgate_rules_rejected", 1.0).await;
    assert_eq!(left(&mut of_old).await, (99, 46));
    assert_eq!(left(&mut of_new).await, (98, 38));

    // The way back.
    new.write("rules.yaml", OLD);
    new.metric_becomes("ratelimit_service_config_load_success", 3.0).await;
    assert_eq!(left(&mut of_new).await, (98, 44));
}
