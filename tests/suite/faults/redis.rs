//! Faults of one Redis server: every call is answered by the policy of its rule, no more is granted
//! than that policy says, and Redis counts again afterwards.

use std::time::Duration;

use tempfile::TempDir;

use crate::support::cluster::ClusterProcess;
use crate::support::fault::{FaultScenario, PATIENT, Servers, Single};
use crate::support::fault_log::{ERROR_REPLIES, FOREIGN, SLOW, UNREACHABLE};
use crate::support::proxy::{Fault, Proxy};
use crate::support::redis::RedisProcess;
use crate::support::sentinel::SentinelProcess;
use crate::support::traffic::{CLIENTS, Traffic};
use crate::support::versions::VALKEY_9_1;
use crate::support::{TestServer, eventually, look_until, write};

/// Of connections that break again and again.
const REPEATS: u32 = 5;

#[test]
fn redis_killed_and_restarted() {
    FaultScenario::direct().that_loses_data().run(|scenario| {
        scenario.servers.redis.kill();
        scenario.wait_until_policies_answer_to(UNREACHABLE);
        scenario.servers.redis.restart();
    });
}

#[test]
fn redis_stopped() {
    FaultScenario::direct().run(|scenario| {
        scenario.servers.redis.stop();
        scenario.wait_until_policies_answer_to(UNREACHABLE);
        scenario.servers.redis.cont();
    });
}

#[test]
fn redis_restarted_empty() {
    FaultScenario::direct().that_loses_data().run(|scenario| scenario.servers.redis.restart());
}

/// Replies come after the callers' deadline, and within STORE_TIMEOUT: Redis is slow, and is not
/// given up.
#[test]
fn replies_later_than_callers_wait() {
    const DEADLINE: Duration = Duration::from_millis(200);
    let report = FaultScenario::proxied(&[PATIENT]).with_deadline(DEADLINE).run(|scenario| {
        scenario.proxy().set(Fault::Delay(DEADLINE * 3 / 2));
        scenario.wait_until_policies_answer_to(SLOW);
        scenario.proxy().set(Fault::None);
    });
    assert_eq!(report.history.outages, 0, "{report:#?}");
}

#[test]
fn connections_reset_in_mid_reply() {
    FaultScenario::proxied(&[]).run(|scenario| {
        let opened = scenario.proxy().opened();
        let mut half = 0;
        look_until("connections are reset and opened again", || {
            // Each half in turn: a connection that was reset may come back in the other half.
            half = 1 - half;
            scenario.proxy().set(Fault::ResetHalf(half));
            scenario.proxy().opened() >= opened + REPEATS as usize
        });
        scenario.proxy().set(Fault::None);
    });
}

#[test]
fn replies_cut_in_half() {
    FaultScenario::proxied(&[]).run(|scenario| {
        for _ in 0..REPEATS {
            scenario.proxy().cut_next(1);
            look_until("a reply is cut", || scenario.proxy().cuts_left() == 0);
        }
    });
}

#[test]
fn half_of_the_packets_lost() {
    FaultScenario::proxied(&[]).run(|scenario| {
        lose_packets(scenario.proxy());
        scenario.wait_until_policies_answer();
        scenario.proxy().set(Fault::None);
    });
}

/// With a round trip that is longer than STORE_TIMEOUT.
pub(crate) fn lose_packets(proxy: &Proxy) {
    proxy.set(Fault::Lossy(Duration::from_millis(200)));
}

#[test]
fn scripts_flushed() {
    let report =
        FaultScenario::new(Single::direct(RedisProcess::start()), &[PATIENT]).run(|scenario| {
            for _ in 0..REPEATS {
                scenario.redis().command::<()>(&["SCRIPT", "FLUSH"]);
                scenario.wait_until_redis_counts();
            }
        });
    report.is_unnoticed();
}

#[test]
fn redis_out_of_memory() {
    FaultScenario::direct().run(|scenario| {
        scenario.redis().command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
        scenario.wait_until_policies_answer_to(ERROR_REPLIES);
        scenario.redis().command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    });
}

#[test]
fn redis_is_a_replica_of_a_lost_master() {
    FaultScenario::direct().run(|scenario| {
        // Nothing listens on port 1.
        scenario.redis().command::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
        scenario.wait_until_policies_answer_to(ERROR_REPLIES);
        scenario.redis().command::<()>(&["REPLICAOF", "NO", "ONE"]);
    });
}

/// For all algorithms, a foreign value is distinguished from a Redis that replies with errors to
/// count.
#[tokio::test]
async fn a_foreign_value_is_reported_as_such_for_every_algorithm() {
    let rules = "
domain: d
descriptors:
  - {key: fixed, rate_limit: {unit: year, requests_per_unit: 9}}
  - {key: bucket, rate_limit: {unit: year, requests_per_unit: 9}, metadata: {tollgate: {algorithm: token_bucket}}}
  - {key: sliding, rate_limit: {unit: year, requests_per_unit: 9}, metadata: {tollgate: {algorithm: sliding_window}}}
  - {key: parts, rate_limit: {unit: year, requests_per_unit: 9}, metadata: {tollgate: {algorithm: sliding_window, buckets: 5}}}
  - {key: log, rate_limit: {unit: year, requests_per_unit: 9}, metadata: {tollgate: {algorithm: sliding_log}}}
";
    // Values that are no counter, and values of another type.
    let strings = ["fixed", "bucket", "sliding", "parts"];
    let foreign = strings.map(|rule| (rule, "SET", "word")).into_iter();
    let foreign = foreign.chain(strings.map(|rule| (rule, "RPUSH", "x")));
    for (rule, command, value) in foreign.chain([("log", "RPUSH", "word"), ("log", "SET", "x")]) {
        let redis = RedisProcess::start();
        let server = TestServer::with_rules(rules).with_env("REDIS_URL", &redis.url()).start();
        let mut client = server.client().await;
        eventually("Redis counts", async || {
            client.ask("d", &[(rule, "v")]).await;
            redis.command::<Vec<String>>(&["KEYS", "*"]).len() == 1
        })
        .await;
        let key = redis.command::<Vec<String>>(&["KEYS", "*"]).remove(0);
        redis.command::<()>(&["DEL", &key]);
        redis.command::<()>(&[command, &key, value]);
        let faults = async || {
            client.ask("d", &[(rule, "v")]).await;
            let fault =
                |kind: &str| server.metric(&format!("tollgate_store_fault{{kind=\"{kind}\"}}"));
            (fault("foreign_value"), fault("refusing")) == (Some(1.0), Some(0.0))
        };
        eventually(&format!("{rule} {command} {value}"), faults).await;
    }
}

/// The policy of that key's rule answers for that key, and no other verdict changes.
#[test]
fn wrong_type_at_one_key() {
    let scenario =
        FaultScenario::new(Single::direct(RedisProcess::start()), &[PATIENT]).that_loses_data();
    let report = scenario.run(|scenario| {
        let keys: Vec<String> = scenario.servers.redis.command(&["KEYS", "d_error_*"]);
        let key = keys.first().expect("clients have called");
        // In one step: clients use the key.
        let script = "redis.call('DEL', KEYS[1]) redis.call('LPUSH', KEYS[1], 'x')";
        scenario.redis().command::<()>(&["EVAL", script, "1", key]);
        scenario.wait_until_logged(FOREIGN);
        scenario.servers.redis.command::<usize>(&["DEL", key]);
    });
    let [local, allow, deny, error] = report.history.fallbacks;
    assert!([local, allow, deny] == [0; 3] && error > 0, "{report:#?}");
}

/// Redis reads its file after a restart, a key each ms. Redis 6.2 would answer every 2 MB only.
#[test]
fn redis_loading() {
    let slowly = ["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"];
    let redis = RedisProcess::builder().of(VALKEY_9_1).with_arguments(&slowly).start();
    let fill =
        "for number = 1, 20000 do redis.call('SET', 'ballast ' .. number, string.rep('x', 50)) end";
    redis.command::<()>(&["EVAL", fill, "0"]);
    FaultScenario::new(Single::direct(redis), &[]).run(|scenario| {
        let redis = &mut scenario.servers.redis;
        redis.shut_down();
        redis.begin_restart();
        scenario.wait_until_policies_answer();
        scenario.wait_until_ready_says("loading");
        scenario.redis().command::<()>(&["CONFIG", "SET", "key-load-delay", "0"]);
    });
}

#[test]
fn password_changed_in_redis_before_the_file() {
    with_password_file(Single::direct(RedisProcess::start()), &[], |scenario, file| {
        set_user(&scenario.servers, &["resetpass", ">second"]);
        close_connections(&scenario.servers);
        scenario.wait_until_policies_answer_to(ERROR_REPLIES);
        write_password(file, "second");
    });
}

#[test]
fn password_rotated() {
    password_is_rotated(Single::direct(RedisProcess::start()));
}

#[test]
fn password_of_servers_behind_sentinel_rotated() {
    password_is_rotated(SentinelProcess::start());
}

#[test]
fn password_of_cluster_nodes_rotated() {
    password_is_rotated(ClusterProcess::start());
}

/// First Redis knows both passwords, then the service learns the new one, and then the old one
/// ends, with all connections made by it.
fn password_is_rotated(servers: impl Servers) {
    const LOADS: &str = r#"tollgate_redis_secrets_loads_total{result="success"}"#;
    let in_flight_max = (CLIENTS * servers.all().len()) as u64;
    with_password_file(servers, &[PATIENT], |scenario, file| {
        set_user(&scenario.servers, &[">second"]);
        write_password(file, "second");
        look_until("the file is loaded", || scenario.server.metric(LOADS) > Some(0.0));
        set_user(&scenario.servers, &["resetpass", ">second"]);
        let before = scenario.history();
        close_connections(&scenario.servers);
        scenario.wait_until_redis_counts();
        // Calls in flight on a connection that is closed have no verdict, and no others.
        let closed = scenario.history().since(&before);
        // The last policy is that of the test's own requests, too.
        assert!(
            closed.fallbacks[..3].iter().all(|verdicts| *verdicts <= in_flight_max),
            "{closed:#?}"
        );
    });
}

/// A service that reads its password from a file, and a fault with both.
fn with_password_file<S: Servers>(
    servers: S,
    settings: &[(&str, &str)],
    fault: impl FnOnce(&mut FaultScenario<S>, &TempDir),
) {
    set_user(&servers, &["on", ">first", "~*", "&*", "+@all"]);
    let file = TempDir::new().expect("a temporary directory can be made");
    write_password(&file, "first");
    let path = file.path().join("auth").display().to_string();
    let settings = [&[("REDIS_AUTH_FILE", &*path)], settings].concat();
    FaultScenario::new(servers, &settings).run(|scenario| fault(scenario, &file));
}

/// Changes the user of the service.
fn set_user(servers: &impl Servers, rules: &[&str]) {
    for redis in servers.all() {
        redis.command::<()>(&[&["ACL", "SETUSER", "app"], rules].concat());
    }
}

/// Closes the connections of the service.
fn close_connections(servers: &impl Servers) {
    for redis in servers.all() {
        redis.command::<usize>(&["CLIENT", "KILL", "USER", "app"]);
    }
}

fn write_password(directory: &TempDir, password: &str) {
    write(&directory.path().join("auth"), &format!("app:{password}\n"));
}

#[test]
fn repeated_outages_leave_nothing_behind() {
    type Step = fn(&mut FaultScenario<Single>);
    let outages: [(Step, Step); 4] = [
        (|scenario| scenario.servers.redis.kill(), |scenario| scenario.servers.redis.restart()),
        (|scenario| scenario.servers.redis.stop(), |scenario| scenario.servers.redis.cont()),
        (
            |scenario| scenario.proxy().set(Fault::RefuseConnections),
            |scenario| scenario.proxy().set(Fault::None),
        ),
        (
            |scenario| scenario.proxy().set(Fault::Stall),
            |scenario| scenario.proxy().set(Fault::None),
        ),
    ];
    FaultScenario::proxied(&[]).leaves_nothing_behind(2, |scenario| {
        for (begin, end) in outages {
            let traffic = Traffic::start(&scenario.server, [scenario.calls("local")]);
            begin(scenario);
            scenario.wait_until_redis_does_not_count();
            end(scenario);
            scenario.wait_until_redis_counts();
            traffic.wait_for_answers(1);
            let [answers] = traffic.finish();
            assert!(answers.errors.is_empty(), "{answers:?}");
        }
    });
}
