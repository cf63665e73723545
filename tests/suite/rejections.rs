//! A Redis that is reachable and rejects commands: its error and the cure are in the log, on
//! `/ready` and in the console, and it is never called unreachable.

use std::thread;

use crate::support::cluster::ClusterProcess;
use crate::support::redis::RedisProcess;
use crate::support::{Client, Code, TestServer, eventually, limit_of, look_until};

const REJECTS: &str = "Redis replies with errors";
const RECOVERED: &str = "Redis serves commands again";

/// A service with a Redis that rejects the commands of its limits.
struct Rejected {
    server: TestServer,
    client: Client,
}

impl Rejected {
    async fn start(settings: &[(&str, &str)]) -> Self {
        let server = TestServer::with_rules(&limit_of(2)).with_envs(settings).start();
        let client = server.client().await;
        Self { server, client }
    }

    /// Each of them with other values than the last.
    async fn ask(&mut self, values: &[&str]) -> Vec<Code> {
        let mut codes = Vec::new();
        for value in values {
            codes.push(self.client.ask("d", &[("k", value)]).await);
        }
        codes
    }

    /// The error and the cure are where operators look for them.
    async fn assert_reported(&mut self, error: &str, cure: &str) {
        eventually(&format!("{error} is logged"), async || {
            // In several slots.
            self.ask(&["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]).await;
            self.server.log().contains(REJECTS)
        })
        .await;
        let line = self.server.log_with(REJECTS);
        assert!(line.contains(error) && line.contains(cure), "{line}");
        for name in ["/ready", "/console/store"] {
            look_until(&format!("{error} is on {name}"), || {
                let page = match name {
                    "/ready" => self.server.get(name).body,
                    _ => self.server.admin(name),
                };
                page.contains(error) && page.contains(cure)
            });
        }
        look_until("the problem of the store is reported", || {
            let ready = self.server.get("/ready").body;
            ready.contains("answered by on_store_error")
        });
        let ready = self.server.get("/ready").body;
        assert!(!ready.contains("in /ready"), "{ready}");
        assert!(!ready.contains("unreachable"), "{ready}");
        assert!(!self.server.log().contains("unreachable"), "{error}");
        self.server.assert_logged_once(REJECTS);
        self.server.assert_not_logged(RECOVERED);
    }
}

#[tokio::test]
async fn read_only_redis_is_reported_until_it_serves_a_command() {
    let master = RedisProcess::start();
    let replica = RedisProcess::start();
    let port = master.port().to_string();
    replica.command::<()>(&["REPLICAOF", "127.0.0.1", &port]);
    look_until("it is a replica", || replica.follows_its_master());
    let mut rejected = Rejected::start(&[("REDIS_URL", &replica.address())]).await;
    let cure = "the address leads to a Redis replica, set that of the master";
    rejected.assert_reported("READONLY", cure).await;
    replica.command::<()>(&["REPLICAOF", "NO", "ONE"]);
    eventually("it serves again", async || {
        rejected.ask(&["g"]).await;
        rejected.server.log().contains(RECOVERED)
    })
    .await;
    look_until("the error is gone", || !rejected.server.get("/ready").body.contains("READONLY"));
}

#[tokio::test]
async fn redis_without_memory_is_reported() {
    let full = ["--maxmemory", "1", "--maxmemory-policy", "noeviction"];
    let redis = RedisProcess::builder().with_arguments(&full).start();
    let mut rejected = Rejected::start(&[("REDIS_URL", &redis.address())]).await;
    rejected.assert_reported("OOM", "raise its maxmemory").await;
}

/// Some keys are in the slots of the node, and are counted.
#[tokio::test]
async fn a_cluster_node_as_a_single_redis_is_reported_with_the_type_to_set() {
    let cluster = ClusterProcess::start();
    let mut rejected = Rejected::start(&[("REDIS_URL", &cluster.place(0))]).await;
    rejected.assert_reported("MOVED", "set REDIS_TYPE=cluster").await;
}

#[tokio::test]
async fn missing_and_wrong_passwords_are_reported() {
    let redis = RedisProcess::builder().with_password("s3cret").start();
    let address = redis.address();
    let url = ("REDIS_URL", &*address);
    let mut rejected = Rejected::start(&[url]).await;
    rejected.assert_reported("NOAUTH", "set REDIS_AUTH").await;
    let mut rejected = Rejected::start(&[url, ("REDIS_AUTH", "wrong")]).await;
    rejected.assert_reported("WRONGPASS", "check REDIS_AUTH").await;
}

#[tokio::test]
async fn missing_permissions_are_reported() {
    let redis = RedisProcess::builder().with_user("user rls on >secret ~other:* &* +@all").start();
    let settings = [("REDIS_URL", &*redis.address()), ("REDIS_AUTH", "rls:secret")];
    let mut rejected = Rejected::start(&settings).await;
    let cure = "allow its user the command, see ACL LOG";
    rejected.assert_reported("NOPERM", cure).await;
}

#[tokio::test]
async fn redis_that_a_script_blocks_is_reported() {
    let redis = RedisProcess::builder().with_arguments(&["--lua-time-limit", "50"]).start();
    let mut rejected = Rejected::start(&[("REDIS_URL", &redis.address())]).await;
    eventually("Redis counts", async || {
        rejected.ask(&["first"]).await;
        !redis.command::<Vec<String>>(&["KEYS", "*"]).is_empty()
    })
    .await;
    let mut connection = redis.connection();
    let script = thread::spawn(move || {
        let mut eval = redis::cmd("EVAL");
        eval.arg("while true do end").arg(0);
        // It is killed.
        let _ = eval.query::<()>(&mut connection);
    });
    rejected.assert_reported("BUSY", "SCRIPT KILL").await;
    redis.command::<()>(&["SCRIPT", "KILL"]);
    script.join().expect("it ends");
}
