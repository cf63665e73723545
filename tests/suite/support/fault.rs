//! A service, its Redis servers, and clients of four rules, each with another `on_store_error`,
//! that keep calling while a fault happens.
//!
//! ```text
//!   clients call   ---------------------------------------------->
//!   fault                   | begins ... seen ... ends |
//!   health is 200           |--------------------------|
//!   Redis counts   ---------|                            |--------
//! ```
//!
//! Each scenario runs once. Nothing in it depends on how fast the machine is: a fault lasts until
//! the test has seen its effect in answers, metrics or the log, and what is asserted holds however
//! long anything takes (`fault/report.rs`). Answers in time, recovery in time and "logged once" are
//! asserted in process, under a paused clock.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use super::process::StoreOnDrop;
use super::proxy::Proxy;
use super::redis::RedisProcess;
use super::traffic::{Calls, Traffic};
use super::{TestServer, http, look_until, resident_peak_kib};

mod report;
mod servers;

pub(crate) use report::{History, LIMIT, POLICIES, Report, VALUES};
pub(crate) use servers::{Servers, Single, WORKERS};

/// For faults that no client notices: a busy machine must not look like a slow Redis.
pub(crate) const PATIENT: (&str, &str) = ("STORE_TIMEOUT", "10s");
/// Answers that each client gets before the fault: the first half of the values is used up by then,
/// the second half is not.
const LEAD_ANSWERS: usize = 2 * VALUES;
/// Answers that each client gets afterwards: enough to use up every value, and to see that no more
/// is granted.
const TRAIL_ANSWERS: usize = 6 * VALUES;
/// Time between two looks at health and readiness.
const HEALTH_INTERVAL: Duration = Duration::from_millis(50);
/// Counters that the test asks for itself on a cluster: enough that every node has one.
const PROBES: usize = 32;
/// Rounds of [`FaultScenario::leaves_nothing_behind`] that are compared.
const ROUNDS: usize = 3;
/// Memory that an allocator may keep of them.
const GROWTH_MAX_KIB: u64 = 4 * 1024;

/// A service and its servers.
pub(crate) struct FaultScenario<S> {
    pub(crate) server: TestServer,
    pub(crate) servers: S,
    /// A request under policy `error`, so that a verdict shows that Redis gave it.
    probe: String,
    granted_max: u64,
    deadline: Option<Duration>,
}

/// The resources of a process.
struct Resources {
    descriptors: usize,
    threads: usize,
}

impl FaultScenario<Single> {
    /// On one server.
    pub(crate) fn direct() -> Self {
        Self::new(Single::direct(RedisProcess::builder().in_own_group().start()), &[])
    }

    /// On one server behind a proxy.
    pub(crate) fn proxied(settings: &[(&str, &str)]) -> Self {
        Self::new(Single::proxied(RedisProcess::builder().in_own_group().start()), settings)
    }

    pub(crate) fn proxy(&self) -> &Proxy {
        self.servers.proxy()
    }

    pub(crate) fn redis(&mut self) -> &mut RedisProcess {
        &mut self.servers.redis
    }
}

impl<S: Servers> FaultScenario<S> {
    /// Starts a service with these settings, and STORE_TIMEOUT as in production unless they say
    /// otherwise.
    pub(crate) fn new(servers: S, settings: &[(&str, &str)]) -> Self {
        let builder = TestServer::with_rules(&rules())
            .with_env("WORKERS", &WORKERS.to_string())
            .with_the_default_store_timeout()
            .with_envs(&servers.settings())
            .with_envs(settings);
        let probes = if servers.all().len() == 1 { 1 } else { PROBES };
        let probe = |number| format!(r#"{{"entries":[{{"key":"probe","value":"{number}"}}]}}"#);
        let probes = (0..probes).map(probe).collect::<Vec<String>>().join(",");
        let probe = format!(r#"{{"domain":"d","descriptors":[{probes}]}}"#);
        Self { server: builder.start(), servers, probe, granted_max: LIMIT, deadline: None }
    }

    /// Redis loses its data in this fault: what was used up can be used again.
    pub(crate) fn that_loses_data(self) -> Self {
        Self { granted_max: 2 * LIMIT, ..self }
    }

    /// Clients send this grpc-timeout.
    pub(crate) fn with_deadline(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// The calls for a rule.
    pub(crate) fn calls(&self, policy: &'static str) -> Calls {
        Calls { key: policy, values: VALUES, deadline: self.deadline }
    }

    /// Lets a fault begin and end while clients of every policy call, and checks what must hold for
    /// every fault.
    pub(crate) fn run(mut self, fault: impl FnOnce(&mut Self)) -> Report {
        self.wait_until_redis_counts();
        self.wait_until_faults_are_over();
        let before = self.history();
        let traffic = Traffic::start(&self.server, POLICIES.map(|policy| self.calls(policy)));
        traffic.wait_for_answers(LEAD_ANSWERS);
        self.while_healthy(fault);
        self.wait_until_redis_counts();
        traffic.wait_for_answers(TRAIL_ANSWERS);
        let answers = traffic.finish();
        self.wait_until_faults_are_over();
        look_until("no connection is left behind", || self.has_few_connections());
        let history = self.history().since(&before);
        let report = Report {
            granted_max: self.granted_max,
            answers,
            history,
            has_deadline: self.deadline.is_some(),
        };
        report.check();
        report
    }

    /// Runs the fault, and asks for health all the while.
    fn while_healthy(&mut self, fault: impl FnOnce(&mut Self)) {
        let http = self.server.http;
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    let reply = http::get(http, "/healthcheck");
                    assert_eq!((reply.status, &*reply.body), (200, "OK"));
                    thread::sleep(HEALTH_INTERVAL);
                }
            });
            // Also when the fault panics: the other thread would go on forever.
            let _stop = StoreOnDrop(&over);
            fault(self);
        });
    }

    /// Waits until every policy has answered for a Redis that is away.
    pub(crate) fn wait_until_policies_answer(&self) {
        let before = self.history();
        look_until("every policy answers", || {
            let now = self.history();
            now.fallbacks
                .iter()
                .zip(before.fallbacks)
                .all(|(now, before)| *now >= before + VALUES as u64)
        });
    }

    /// The same, until this fault is in the log as well.
    pub(crate) fn wait_until_policies_answer_to(&self, fault: &str) {
        self.wait_until_policies_answer();
        self.wait_until_logged(fault);
    }

    /// Waits until this fault is in the log, and not over.
    pub(crate) fn wait_until_logged(&self, fault: &str) {
        look_until(&format!("the log says: {fault}"), || self.history().has_open(fault));
    }

    /// Waits until `/ready` says this.
    pub(crate) fn wait_until_ready_says(&self, words: &str) {
        look_until(&format!("/ready says: {words}"), || {
            self.server.get("/ready").body.contains(words)
        });
    }

    /// Waits for a verdict that only Redis can have given.
    pub(crate) fn wait_until_redis_counts(&self) {
        look_until("Redis counts", || match self.server.json(&self.probe).status {
            200 => true,
            503 => false,
            status => panic!("status {status}"),
        });
    }

    /// Waits until a request gets no verdict from Redis.
    pub(crate) fn wait_until_redis_does_not_count(&self) {
        look_until("Redis does not count", || self.server.json(&self.probe).status == 503);
    }

    fn wait_until_faults_are_over(&self) {
        look_until("every fault that was logged is logged as over", || self.history().is_over());
    }

    fn has_few_connections(&self) -> bool {
        let max = self.servers.connections_max();
        self.servers
            .all()
            .into_iter()
            .filter(|redis| redis.runs())
            .all(|redis| redis.clients() <= max)
    }

    /// What the service says of itself so far.
    pub(crate) fn history(&self) -> History {
        History::read(&self.server.admin("/metrics"), &self.server.log(), &self.servers.addresses())
    }

    /// Repeats a fault. What is made once and kept, such as connections, is there after the first
    /// rounds; from then on nothing grows.
    pub(crate) fn leaves_nothing_behind(mut self, first: usize, mut round: impl FnMut(&mut Self)) {
        (0..first).for_each(|_| round(&mut self));
        let before = self.resources();
        let resident = resident_peak_kib(self.server.pid());
        (0..ROUNDS).for_each(|_| round(&mut self));
        // Connections that were being made again may not have been counted. What every round leaks
        // adds up to more than those.
        let descriptors_max = before.descriptors + self.servers.connections_max();
        look_until("the process has no more descriptors, threads and connections", || {
            let now = self.resources();
            now.descriptors <= descriptors_max
                && now.threads <= before.threads
                && self.has_few_connections()
        });
        let grown = resident_peak_kib(self.server.pid()).saturating_sub(resident);
        assert!(
            grown < GROWTH_MAX_KIB,
            "{grown} KiB more than the {resident} KiB before {ROUNDS} rounds"
        );
    }

    fn resources(&self) -> Resources {
        let count = |what: &str| {
            fs::read_dir(format!("/proc/{}/{what}", self.server.pid()))
                .expect("the process runs")
                .count()
        };
        Resources { descriptors: count("fd"), threads: count("task") }
    }
}

/// A rule for every policy, and one for the test itself.
fn rules() -> String {
    let rule = |key: &str, limit: u64, policy: &str| {
        format!(
            "  - key: {key}\n    rate_limit: {{unit: year, requests_per_unit: {limit}}}\n    metadata: {{tollgate: {{on_store_error: {policy}}}}}\n"
        )
    };
    let rules: String = POLICIES.iter().map(|policy| rule(policy, LIMIT, policy)).collect();
    format!("domain: d\ndescriptors:\n{rules}{}", rule("probe", 1_000_000, "error"))
}
