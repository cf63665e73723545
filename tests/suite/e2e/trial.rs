//! A trial behind a real Envoy: beside the service in use, as a second filter.
//!
//! The service in use is a second Tollgate, or the binary of envoyproxy/ratelimit that the environment
//! variable REFERENCE names.

use std::fs;
use std::net::{SocketAddr, TcpStream};

use tempfile::TempDir;

use crate::e2e::env::ports::Ports;
use crate::e2e::env::{Counts, Env, Outcome, limit_of_a_day};
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
