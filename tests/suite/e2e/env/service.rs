//! Tollgate on the ports that Envoy's configuration names.

use std::path::{Path, PathBuf};

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};

use crate::e2e::env::ports::Ports;
use crate::support::binary::value_on;
use crate::support::{TestServer, look_until};

/// A Tollgate, which can be stopped and started again.
#[derive(Debug)]
pub(crate) struct Service {
    server: Mutex<Option<TestServer>>,
    variables: Vec<(&'static str, String)>,
    rules: PathBuf,
}

impl Service {
    /// Starts it, and waits until it serves.
    pub(crate) fn start(
        mut variables: Vec<(&'static str, String)>,
        rules: &Path,
        ports: &Ports,
    ) -> Self {
        for (name, addr) in
            [("PORT", ports.http()), ("GRPC_PORT", ports.grpc()), ("DEBUG_PORT", ports.admin())]
        {
            variables.push((name, addr.port().to_string()));
        }
        let service = Self { server: Mutex::new(None), variables, rules: rules.to_owned() };
        ports.release([ports.grpc(), ports.http(), ports.admin()]);
        service.start_again();
        service
    }

    /// Starts it where it was, and waits until it serves.
    pub(crate) fn start_again(&self) {
        let server = TestServer::with_directory(&self.rules).with_envs(&self.variables).start();
        look_until("tollgate is ready", || server.get("/ready").status == 200);
        *self.server.lock() = Some(server);
    }

    /// Sends SIGTERM, and waits until it has drained and ended.
    pub(crate) fn stop(&self) {
        let mut server = self.server.lock().take().expect("it was started");
        server.signal("TERM");
        let status = server.wait_until_ended();
        assert!(status.success(), "tollgate ended with {status}");
    }

    /// The process that runs now.
    pub(crate) fn server(&self) -> MappedMutexGuard<'_, TestServer> {
        MutexGuard::map(self.server.lock(), |server| server.as_mut().expect("it was started"))
    }

    /// One of its counters, by its statsd name. One that never counted is not there.
    pub(crate) fn stat(&self, name: &str) -> u64 {
        whole(value_on(&self.server().admin("/stats"), &format!("{name}:")).unwrap_or("0"))
    }

    /// One of its metrics without labels, by its Prometheus name.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let page = self.server().admin("/metrics");
        whole(value_on(&page, name).unwrap_or_else(|| panic!("there is no {name}")))
    }
}

fn whole(value: &str) -> u64 {
    value.parse().expect("a whole number")
}
