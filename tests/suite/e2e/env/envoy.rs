//! Envoy, with a file of `deploy/envoy` in which only ports and time-outs are others.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use crate::e2e::env::ports::Ports;
use crate::support::http;
use crate::support::process::Process;
use crate::support::tools::tool;

/// Of an answer and of a connection, in the files. over-limit.yaml has another one for answers.
const TIMEOUTS_THERE: [&str; 2] = [" timeout: 0.15s", "connect_timeout: 0.25s"];
/// A busy machine must not look like an outage: to be late is no part of any promise that is tested
/// here.
const TIMEOUT_HERE: &str = "timeout: 10s";

/// A running Envoy.
#[derive(Debug)]
pub(crate) struct Envoy {
    process: Process,
    admin: SocketAddr,
}

impl Envoy {
    /// Starts it on these ports, and waits until it serves.
    pub(crate) fn start(config: &str, ports: &Ports, home: &Path) -> Self {
        ports.release([ports.ingress(), ports.backend(), ports.envoy_admin()]);
        Self::start_with(config, ports.envoy_admin(), home)
    }

    /// Starts it with a file that has its admin page there, and waits until it serves.
    pub(crate) fn start_with(config: &str, admin: SocketAddr, home: &Path) -> Self {
        let file = home.join("envoy.yaml");
        fs::write(&file, config).expect("the directory exists");
        let mut command = Command::new(tool("envoy"));
        command.arg("-c").arg(&file).args(["--concurrency", "1", "-l", "warning"]);
        // Without it each Envoy leaves a file in /dev/shm for ever, and those of one base id are in
        // each other's way.
        command.arg("--disable-hot-restart");
        let mut process = Process::start("envoy", command, home.join("envoy.log"));
        process.wait_until_ready(|| {
            http::try_get(admin, "/ready").is_ok_and(|reply| reply.status == 200)
        });
        Self { process, admin }
    }

    /// Sends SIGTERM, and waits until it has written its access logs and ended.
    pub(crate) fn stop(&mut self) {
        self.process.signal("TERM");
        let status = self.process.wait_until_ended();
        assert!(status.success(), "envoy ended with {status}");
    }

    /// Its counters. One that never counted is not there.
    pub(crate) fn stats(&self) -> HashMap<String, u64> {
        let page = http::get(self.admin, "/stats");
        let lines = page.body.lines().filter_map(|line| line.split_once(": "));
        lines.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect()
    }
}

/// A file of `deploy/envoy`, to be served on these ports.
pub(crate) fn config(name: &str, ports: &Ports) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/envoy").join(name);
    let text = fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("read {}: {error}", path.display()));
    let text = [
        (9901, ports.envoy_admin()),
        (10_000, ports.ingress()),
        (10_001, ports.backend()),
        (8081, ports.grpc()),
    ]
    .iter()
    .fold(text, |text, (there, here)| {
        replaced(
            &text,
            &format!("port_value: {there}}}"),
            &format!("port_value: {}}}", here.port()),
        )
    });
    patient(&text)
}

/// The same with timeouts that a busy machine does not reach.
pub(crate) fn patient(config: &str) -> String {
    let [answer, connection] = TIMEOUTS_THERE;
    let config = config.replace(answer, &format!(" {TIMEOUT_HERE}"));
    replaced(&config, connection, &format!("connect_{TIMEOUT_HERE}"))
}

/// The configuration with another backend in place of the sample's.
pub(crate) fn with_backend(config: &str, sample: SocketAddr, other: SocketAddr) -> String {
    let endpoint = |port: u16| {
        format!(
            "endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}"
        )
    };
    replaced(config, &endpoint(sample.port()), &endpoint(other.port()))
}

/// A text with something else in place of `there`, which must be there.
pub(crate) fn replaced(text: &str, there: &str, here: &str) -> String {
    assert!(text.contains(there), "there is no `{there}` in\n{text}");
    text.replace(there, here)
}
