//! Processes that share a leased rule, and what their metrics and Redis say about it.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, sleep_until};

use crate::support::binary::sum_on;
use crate::support::redis::RedisProcess;
use crate::support::{Builder, Client, Code, TestServer, eventually};

/// Calls that one client keeps in flight.
const IN_FLIGHT: u64 = 8;

/// Services with one leased rule `key` in the domain `d`, by default on one Redis.
pub(crate) struct Fleet<R = RedisProcess> {
    pub(crate) redis: R,
    pub(crate) services: Vec<TestServer>,
    clients: Vec<Mutex<Client>>,
}

/// Metric of the hits that a process holds.
pub(crate) const HELD: &str = "tollgate_leased_hits";

/// Rules with one rule `key` in the domain `d`, and the block `tollgate` of that.
pub(crate) fn rules(limit: &str, tollgate: &str) -> String {
    format!(
        "domain: d\ndescriptors:\n  - key: key\n    {limit}\n    metadata: {{tollgate: {{{tollgate}}}}}\n"
    )
}

/// The same, leased.
pub(crate) fn leased(limit: &str, options: &str) -> String {
    rules(limit, &format!("consistency: leased{options}"))
}

/// A limit whose window does not end while a test runs.
pub(crate) fn per_year(requests: u64) -> String {
    format!("rate_limit: {{unit: year, requests_per_unit: {requests}}}")
}

/// A service whose every verdict is Redis' own, or of a lease.
pub(crate) fn replica(service: Builder, url: &str) -> Builder {
    service.with_envs(&[("REDIS_URL", url), ("ON_STORE_ERROR", "error")])
}

impl Fleet {
    /// Starts services and waits until each of them knows the others. `limit` is the descriptor's,
    /// `options` more of its `tollgate` block.
    pub(crate) async fn of(services: usize, limit: &str, options: &str) -> Self {
        Self::with_rules(services, &leased(limit, options), &[]).await
    }

    /// The same with any rules, and variables.
    pub(crate) async fn with_rules(services: usize, rules: &str, set: &[(&str, &str)]) -> Self {
        Self::with_files(services, &[("rules.yaml", rules.to_owned())], set).await
    }

    /// The same with rules of several files.
    pub(crate) async fn with_files(
        services: usize,
        files: &[(&str, String)],
        set: &[(&str, &str)],
    ) -> Self {
        let redis = RedisProcess::start();
        let url = redis.url();
        let service = || {
            let files = files.iter().map(|(name, text)| (*name, text.as_str()));
            replica(TestServer::with_files(files), &url).with_envs(set)
        };
        let services = (0..services).map(|_| service().start()).collect();
        Self::on(redis, services).await
    }

    /// Commands that decide, charge or give back, as Redis counts them.
    pub(crate) fn commands(&self) -> u64 {
        commands_of(&self.redis)
    }

    /// The value of the only counter of a fixed window.
    pub(crate) fn used(&self, value: &str) -> u64 {
        let keys: Vec<String> = self.redis.command(&["KEYS", &format!("d_key_{value}_*")]);
        assert_eq!(keys.len(), 1, "{keys:?}");
        self.redis.command(&["GET", &keys[0]])
    }
}

impl<R> Fleet<R> {
    /// Services that share this Redis, when each of them knows the others.
    pub(crate) async fn on(redis: R, services: Vec<TestServer>) -> Self {
        let mut fleet = Self { redis, services: Vec::new(), clients: Vec::new() };
        for service in services {
            fleet.join(service).await;
        }
        fleet.know_each_other().await;
        fleet
    }

    /// Adds a service.
    pub(crate) async fn join(&mut self, service: TestServer) {
        self.clients.push(Mutex::new(service.client().await));
        self.services.push(service);
    }

    /// Waits until the services know how many they are.
    pub(crate) async fn know_each_other(&self) {
        let count = u32::try_from(self.services.len()).expect("a few");
        for service in &self.services {
            let replicas = "tollgate_replicas";
            service.metric_becomes(replicas, count.into()).await;
        }
    }

    /// Calls one service. Returns 1 if it admits the call.
    pub(crate) async fn ask(&self, service: usize, value: &str) -> u64 {
        let mut client = self.clients[service].lock().await;
        u64::from(client.ask("d", &[("key", value)]).await == Code::Ok)
    }

    /// Asks the services in turn until none of them admits any more. Returns how many calls were
    /// admitted.
    pub(crate) async fn use_up(&self, value: &str) -> u64 {
        let mut admitted = 0;
        loop {
            let round = self.in_turn(value, 1).await;
            admitted += round;
            if round == 0 {
                return admitted;
            }
        }
    }

    /// Asks the services in turn, each `calls` times.
    pub(crate) async fn in_turn(&self, value: &str, calls: u64) -> u64 {
        let mut admitted = 0;
        for _ in 0..calls {
            for service in 0..self.services.len() {
                admitted += self.ask(service, value).await;
            }
        }
        admitted
    }

    /// Calls every service `calls` times, at this rate per second of all of them together. Returns
    /// how many were admitted.
    pub(crate) async fn paced(&self, value: &str, calls: u64, rate: u64) -> u64 {
        let of_one = rate / self.services.len() as u64;
        let began = Instant::now();
        let each = self
            .services
            .iter()
            .flat_map(|service| (0..IN_FLIGHT).map(move |part| (service, part)));
        let admitted = each.map(async |(service, part)| {
            let mut client = service.client().await;
            let mut admitted = 0;
            for call in (part..calls).step_by(usize::try_from(IN_FLIGHT).expect("a few")) {
                sleep_until(began + Duration::from_micros(call * 1_000_000 / of_one)).await;
                admitted += u64::from(client.ask("d", &[("key", value)]).await == Code::Ok);
            }
            admitted
        });
        join_all(admitted).await.into_iter().sum()
    }

    /// Waits until no hits are held. Each lease was used, and nothing was lost.
    pub(crate) async fn give_back(&self, after: Duration) {
        sleep(after).await;
        let held = || self.sum(HELD);
        eventually("leases are given back", async || held() == 0).await;
        let [taken, used, given_back, stranded] =
            ["taken", "used", "given_back", "stranded"].map(|event| self.hits(event));
        assert!(taken > 0, "no hits were taken ahead");
        assert_eq!(taken, used + given_back + stranded, "{used} {given_back} {stranded}");
    }

    /// Hits of all rules and services with this event.
    pub(crate) fn hits(&self, event: &str) -> u64 {
        self.sum_of("tollgate_rule_lease_hits_total", &format!("event=\"{event}\""))
    }

    /// Calls of all services that were answered by `on_store_error`.
    pub(crate) fn fallbacks(&self) -> u64 {
        self.sum_of("tollgate_store_fallbacks_total", "")
    }

    fn sum_of(&self, name: &str, label: &str) -> u64 {
        let pages = self.services.iter().map(|service| service.admin("/metrics"));
        pages.map(|page| sum_on(&page, name, label)).sum()
    }

    /// A metric of all services.
    pub(crate) fn sum(&self, series: &str) -> u64 {
        let values = self.services.iter().map(|service| service.metric(series));
        let values = values.map(|value| value.unwrap_or(0.0));
        // Counts are whole and small.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts")]
        values.map(|value| value as u64).sum()
    }
}

/// The same of one server.
pub(crate) fn commands_of(redis: &RedisProcess) -> u64 {
    let stats = redis.text(&["INFO", "commandstats"]);
    let of = |name: &str| {
        let prefix = format!("cmdstat_{name}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&prefix));
        let calls = line.and_then(|line| line.split(',').next());
        calls.map_or(0, |calls| calls.parse::<u64>().expect("a number"))
    };
    ["incr", "incrby", "evalsha"].into_iter().map(of).sum()
}
