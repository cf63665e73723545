//! A trial behind a real Envoy: in front of the service in use, and beside it as a second filter.
//!
//! The service in use is a second Tollgate, or the binary of envoyproxy/ratelimit that the environment
//! variable REFERENCE names.

use std::fs;
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;
use tempfile::TempDir;

use crate::e2e::env::ports::Ports;
use crate::e2e::env::{Counts, Env, Outcome, limit_of_a_day, look_until};
use crate::support::process::Process;
use crate::support::redis::RedisProcess;
use crate::support::reference;

/// The rate limit service in use. It ends with this.
struct InUse {
    grpc: SocketAddr,
    _process: Process,
    _redis: RedisProcess,
    _ports: Ports,
    _home: TempDir,
}

impl InUse {
    fn start(requests: u64) -> Self {
        let home = TempDir::new().expect("a temporary directory can be made");
        let directory = home.path().join(reference::RULES);
        fs::create_dir_all(&directory).expect("it is empty");
        fs::write(directory.join("web.yaml"), limit_of_a_day(requests))
            .expect("the directory exists");
        let ports = Ports::take();
        let redis = RedisProcess::start();
        let grpc = ports.grpc();
        ports.release([grpc, ports.http(), ports.admin()]);
        let addresses = [grpc, ports.http(), ports.admin()];
        let command = reference::command(home.path(), &redis.url(), addresses);
        let mut process =
            Process::start("the service in use", command, home.path().join("in-use.log"));
        process.wait_until_ready(|| TcpStream::connect(grpc).is_ok());
        Self { grpc, _process: process, _redis: redis, _ports: ports, _home: home }
    }
}

fn page(env: &Env) -> Value {
    env.tollgate.server().admin_json("/trial")
}

#[test]
fn clients_see_the_service_in_use_until_a_share_is_switched() {
    let in_use = InUse::start(2);
    let home = TempDir::new().expect("a temporary directory can be made");
    let share = home.path().join("percent");
    fs::write(&share, "0").expect("the directory exists");
    let env = Env::with("envoy.yaml")
        .with_rules("web.yaml", &limit_of_a_day(5))
        .with_env("TRIAL_UPSTREAM", &in_use.grpc.to_string())
        .with_env("TRIAL_ENFORCE_PERCENT_FILE", &share.display().to_string())
        .start();
    for remaining in [1, 0] {
        env.get("/a").passed_with(remaining);
    }
    for _ in 0..2 {
        env.get("/a").was_over_limit();
    }
    look_until("requests are compared", || page(&env)["requests"] == 4);
    let rule = &page(&env)["rules"][0];
    assert_eq!(rule["rule"], "web.path.remote_address");
    assert_eq!((&rule["agreed"], &rule["over_there"]), (&2.into(), &2.into()));
    assert_eq!(rule["classes"]["limit_differs"], 2, "{rule}");

    fs::write(&share, "100").expect("the directory exists");
    look_until("the share is reloaded", || page(&env)["enforce_percent"] == 100);
    // The fifth here.
    env.get("/a").passed_with(0);
    env.get("/a").was_over_limit();
    env.assert_verdicts(3, 3);
}

#[test]
fn a_second_filter_counts_and_enforces_nothing() {
    let in_use = InUse::start(3);
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
