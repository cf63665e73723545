//! A real Redis that is reachable and rejects commands: its error and the cure are in the log, on
//! `/ready` and in the console, and it is never called unreachable. All errors that have a cure are
//! in `in_process/store_watch.rs`.

use crate::support::cluster::ClusterProcess;
use crate::support::redis::RedisProcess;
use crate::support::{TestServer, eventually, limit_of, look_until};

const REJECTS: &str = "Redis replies with errors";
const RECOVERED: &str = "Redis serves commands again";

fn start(settings: &[(&str, &str)]) -> TestServer {
    TestServer::with_rules(&limit_of(2)).with_envs(settings).start()
}

async fn ask_until_logged(server: &TestServer, text: &str) {
    let mut client = server.client().await;
    eventually(text, async || {
        // In several slots.
        for value in ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"] {
            client.ask("d", &[("k", value)]).await;
        }
        server.log().contains(text)
    })
    .await;
}

/// The error and the cure are where operators look for them.
async fn assert_reported(server: &TestServer, error: &str, cure: &str) {
    let is_named = |text: &str| text.contains(error) && text.contains(cure);
    ask_until_logged(server, REJECTS).await;
    let line = server.log_with(REJECTS);
    assert!(is_named(&line), "{error}: {line}");
    look_until("it is in the console", || is_named(&server.admin("/console/store")));
    look_until("it is on /ready", || {
        let ready = server.get("/ready").body;
        is_named(&ready) && ready.contains("answered by on_store_error")
    });
    let ready = server.get("/ready").body;
    assert!(!ready.contains("in /ready") && !ready.contains("unreachable"), "{ready}");
    server.assert_not_logged("unreachable");
    server.assert_logged_once(REJECTS);
    server.assert_not_logged(RECOVERED);
}

#[tokio::test]
async fn read_only_redis_is_reported_until_it_serves_a_command() {
    let master = RedisProcess::start();
    let replica = RedisProcess::start();
    replica.command::<()>(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    look_until("it is a replica", || replica.follows_its_master());
    let server = start(&[("REDIS_URL", &replica.address())]);
    let cure = "the address leads to a Redis replica, set that of the master";
    assert_reported(&server, "READONLY", cure).await;
    replica.command::<()>(&["REPLICAOF", "NO", "ONE"]);
    ask_until_logged(&server, RECOVERED).await;
    look_until("the error is gone", || !server.get("/ready").body.contains("READONLY"));
}

/// Some keys are in the slots of the node, and are counted.
#[tokio::test]
async fn a_cluster_node_as_a_single_redis_is_reported_with_the_type_to_set() {
    let cluster = ClusterProcess::start();
    let server = start(&[("REDIS_URL", &cluster.place(0))]);
    assert_reported(&server, "MOVED", "set REDIS_TYPE=cluster").await;
}

#[tokio::test]
async fn missing_and_wrong_passwords_and_missing_permissions_are_reported() {
    let redis = RedisProcess::builder().with_password("s3cret").start();
    let user = ["rls", "on", ">secret", "~other:*", "&*", "+@all"];
    redis.command::<()>(&[&["ACL", "SETUSER"], &user[..]].concat());
    for (auth, error, cure) in [
        ("", "NOAUTH", "set REDIS_AUTH"),
        ("wrong", "WRONGPASS", "check REDIS_AUTH"),
        ("rls:secret", "NOPERM", "allow its user the command, see ACL LOG"),
    ] {
        let server = start(&[("REDIS_URL", &redis.address()), ("REDIS_AUTH", auth)]);
        assert_reported(&server, error, cure).await;
    }
}
