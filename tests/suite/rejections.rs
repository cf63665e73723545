//! A Redis that is reachable and takes no writes: its error and the cure are in the log, on `/ready`
//! and in the console. Other errors are in `in_process/store_watch.rs`.

use crate::support::redis::RedisProcess;
use crate::support::{TestServer, eventually, limit_of, look_until};

const REJECTS: &str = "Redis replies with errors";
const RECOVERED: &str = "Redis serves commands again";
const CURE: &str = "the address leads to a Redis replica, set that of the master";

#[tokio::test]
async fn read_only_redis_is_reported_until_it_serves_a_command() {
    let master = RedisProcess::start();
    let replica = RedisProcess::start();
    replica.command::<()>(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    look_until("it is a replica", || replica.follows_its_master());
    let server =
        TestServer::with_rules(&limit_of(2)).with_env("REDIS_URL", &replica.address()).start();
    let mut client = server.client().await;
    let mut ask_until_logged = async |text: &str| {
        eventually(text, async || {
            client.ask("d", &[("k", "v")]).await;
            server.log().contains(text)
        })
        .await;
    };
    let is_named = |text: &str| text.contains("READONLY") && text.contains(CURE);
    ask_until_logged(REJECTS).await;
    let line = server.log_with(REJECTS);
    assert!(is_named(&line), "{line}");
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
    replica.command::<()>(&["REPLICAOF", "NO", "ONE"]);
    ask_until_logged(RECOVERED).await;
    look_until("the error is gone", || !server.get("/ready").body.contains("READONLY"));
}
