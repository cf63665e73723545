//! Tollgate: the binary that cargo built, and what it says of itself.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use parking_lot::{Mutex, MutexGuard};

use crate::env::http::{self, Reply};
use crate::env::ports::Ports;
use crate::suite::binary::{command, value_on};
use crate::suite::process::Process;

/// A Tollgate, which can be stopped and started again.
#[derive(Debug)]
pub(crate) struct Service {
    process: Mutex<Option<Process>>,
    variables: Vec<(&'static str, String)>,
    rules: PathBuf,
    home: PathBuf,
    http: SocketAddr,
    admin: SocketAddr,
}

impl Service {
    /// Starts it, and waits until it serves.
    pub(crate) fn start(
        mut variables: Vec<(&'static str, String)>,
        rules: &Path,
        ports: &Ports,
        home: &Path,
    ) -> Self {
        for (host, port, addr) in [
            ("HOST", "PORT", ports.http()),
            ("GRPC_HOST", "GRPC_PORT", ports.grpc()),
            ("DEBUG_HOST", "DEBUG_PORT", ports.admin()),
        ] {
            let ip = addr.ip().to_string();
            let number = addr.port().to_string();
            variables.extend([(host, ip), (port, number)]);
        }
        let service = Self {
            process: Mutex::new(None),
            variables,
            rules: rules.to_owned(),
            home: home.to_owned(),
            http: ports.http(),
            admin: ports.admin(),
        };
        ports.release([ports.grpc(), ports.http(), ports.admin()]);
        service.start_again();
        service
    }

    /// Starts it where it was, and waits until it serves.
    pub(crate) fn start_again(&self) {
        let mut command = command(&[]);
        command.envs(self.variables.iter().map(|(name, value)| (name, value))).arg(&self.rules);
        let mut slot = self.slot();
        let process =
            slot.insert(Process::start("tollgate", command, self.home.join("tollgate.log")));
        let http = self.http;
        process.wait_until_ready(|| {
            http::try_get(http, "/ready").is_ok_and(|reply| reply.status == 200)
        });
    }

    /// Sends SIGTERM, and waits until it has drained and ended.
    pub(crate) fn stop(&self) {
        let mut process = self.slot().take().expect("it was started");
        process.signal("TERM");
        let status = process.wait_until_ended();
        assert!(status.success(), "tollgate ended with {status}");
    }

    /// Its admin page.
    pub(crate) fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// One of its counters, by its statsd name. One that never counted is not there.
    pub(crate) fn stat(&self, name: &str) -> u64 {
        let page = http::get(self.admin, "/stats").body;
        whole(value_on(&page, &format!("{name}:")).unwrap_or("0"))
    }

    /// One of its metrics without labels, by its Prometheus name.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let page = http::get(self.admin, "/metrics").body;
        whole(value_on(&page, name).unwrap_or_else(|| panic!("there is no {name}")))
    }

    /// Verdicts that this `on_store_error` gave so far.
    pub(crate) fn fallbacks(&self, policy: &str) -> u64 {
        let page = http::get(self.admin, "/metrics").body;
        let policy = format!("policy=\"{policy}\"");
        let lines = page.lines().filter_map(|line| line.rsplit_once(' '));
        let of_policy = lines.filter(|(series, _)| {
            series.starts_with("tollgate_store_fallbacks_total{") && series.contains(&policy)
        });
        of_policy.map(|(_, value)| whole(value)).sum()
    }

    /// Asks it without Envoy.
    pub(crate) fn json(&self, body: &str) -> Reply {
        http::post(self.http, "/json", body)
    }

    fn slot(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock()
    }
}

fn whole(value: &str) -> u64 {
    value.parse().expect("a whole number")
}
