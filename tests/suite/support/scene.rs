//! A service, the servers that it counts on, and clients of four rules, each with another policy, who keep calling while something breaks.
//!
//! What every fault promises is looked at here, whatever it is and whatever the servers are to each other: every call is answered, and
//! before its deadline; the service stays healthy; no more is let through than docs/operations.md says; once Redis is well it counts
//! within a second; each trouble is told once when it comes and once when it is over; and no connection is left behind.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use tollgate::time::{Clock, Time};

use super::cluster::ClusterProcess;
use super::proxy::Proxy;
use super::redis::RedisProcess;
use super::sentinel::SentinelProcess;
use super::traffic::{Seen, Traffic};
use super::{TestServer, alone, http, look_until};

/// Threads of the service.
pub(crate) const WORKERS: usize = 2;
/// What answers where Redis does not, and the key of the rule that says so.
pub(crate) const POLICIES: [&str; 4] = ["local", "allow", "deny", "error"];
/// Calls per second for each of them: the binary under test is not optimised, and shares two cores with the clients.
const RATE: u64 = 100;
/// So many values of each key, each with a limit of its own, of which some are used up before Redis breaks and others after it.
const VALUES: u64 = 20;
const LIMIT: u64 = 6;
/// Envoy's default.
const DEADLINE: &str = "--deadline=20ms";
/// How long clients call before Redis breaks.
const LEAD: Duration = Duration::from_millis(500);
/// How long Redis is away where it does not matter.
pub(crate) const AWAY: Duration = Duration::from_secs(1);
/// How long clients call after Redis is well again, at least.
const TRAIL: Duration = Duration::from_millis(1_500);
/// From when Redis answers until it is asked again.
const RECOVERY_MAX: Duration = Duration::from_secs(1);
/// How often it is played before a busy machine is taken for what it is.
const PLAYS: u32 = 4;
/// How often to ask for health.
const HEALTH_INTERVAL: Duration = Duration::from_millis(50);
/// What the log says of a Redis that connects and answers, and where callers do not wait for it.
pub(crate) const SLOW: &str = "Redis answers later than callers wait";
/// What it says where no reply comes, or none that is one.
pub(crate) const UNREACHABLE: &str = "Redis cannot be reached";
/// What it says where Redis answers with an error.
pub(crate) const REFUSING: &str = "Redis refuses to count";
/// What it says of a key that somebody else uses.
pub(crate) const FOREIGN: &str = "something else than a counter stands at a key";
/// So many counters that each node of a cluster has some of them, whichever those are.
const PROBES: usize = 32;

/// How often something happens once more that leaves nothing behind.
const ROUNDS: usize = 3;
/// What an allocator may keep of it.
const GROWTH_MAX_KIB: u64 = 4 * 1024;

/// What the service counts on.
pub(crate) trait Servers {
    /// What the service is told of them.
    fn settings(&self) -> Vec<(&'static str, String)>;
    /// All of them.
    fn all(&self) -> Vec<&RedisProcess>;
    /// Where the service believes them to be, as its log says.
    fn places(&self) -> Vec<String>;
    /// How many connections each of them may have to the service.
    fn connections_max(&self) -> usize {
        // Heartbeats have one to be sent on, and whoever asks where the nodes are has one of its own.
        WORKERS + 2
    }
    /// Brings them back to where they were before something broke, as far as that matters for its breaking again.
    fn heal(&mut self) {}
}

/// One server, with or without a proxy before it.
pub(crate) struct Single {
    pub(crate) redis: RedisProcess,
    proxy: Option<Proxy>,
}

/// A service and its servers.
pub(crate) struct Scene<S> {
    pub(crate) server: TestServer,
    pub(crate) servers: S,
    /// What is asked by nobody but the test: under policy `error`, so that a verdict shows that Redis gave it.
    probe: String,
    clock: Clock,
    /// How much of each value Redis lets pass.
    granted: u64,
    /// How often this was played.
    pub(crate) play: u32,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Report {
    /// How much of each value Redis lets pass.
    granted: u64,
    /// How long it took from when Redis was well until it was asked again.
    recovery: Duration,
    /// What the clients of each policy's rule saw.
    local: Seen,
    allow: Seen,
    deny: Seen,
    pub(crate) error: Seen,
    pub(crate) said: History,
}

/// What the service says of itself.
#[derive(Debug)]
pub(crate) struct History {
    /// How many verdicts each policy gave, because Redis was late, and because of anything else.
    late: [u64; 4],
    pub(crate) other: [u64; 4],
    /// How often Redis was given up.
    outages: u64,
    /// What is logged about troubles with Redis.
    pub(crate) log: Vec<String>,
    /// What `/ready` said of the store while something was broken.
    pub(crate) ready: BTreeSet<String>,
}

/// Sets a flag, whatever happens.
struct StoreOnDrop<'f>(&'f AtomicBool);

/// What a process holds.
struct Held {
    descriptors: usize,
    threads: usize,
    redis_connections: usize,
}

impl Single {
    pub(crate) fn direct(redis: RedisProcess) -> Self {
        Self { redis, proxy: None }
    }
}

impl Servers for Single {
    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("REDIS_URL", self.proxy.as_ref().map_or(self.redis.url(), |proxy| format!("redis://{}", proxy.addr())))]
    }

    fn all(&self) -> Vec<&RedisProcess> {
        vec![&self.redis]
    }

    fn places(&self) -> Vec<String> {
        vec![self.proxy.as_ref().map_or(self.redis.address(), |proxy| proxy.addr().to_string())]
    }

    fn connections_max(&self) -> usize {
        WORKERS + 1
    }
}

impl Servers for SentinelProcess {
    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("REDIS_TYPE", "sentinel".to_owned()), ("REDIS_URL", self.url())]
    }

    fn all(&self) -> Vec<&RedisProcess> {
        self.servers.iter().collect()
    }

    fn places(&self) -> Vec<String> {
        self.servers.iter().map(RedisProcess::address).collect()
    }

    fn heal(&mut self) {
        self.bring_back();
    }
}

impl Servers for ClusterProcess {
    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("REDIS_TYPE", "cluster".to_owned()), ("REDIS_URL", self.url())]
    }

    fn all(&self) -> Vec<&RedisProcess> {
        (0..self.len()).map(|number| self.server(number)).collect()
    }

    fn places(&self) -> Vec<String> {
        (0..self.len()).map(|number| self.place(number)).collect()
    }

    fn heal(&mut self) {
        self.bring_back();
    }
}

impl Scene<Single> {
    pub(crate) fn direct() -> Self {
        Self::of(RedisProcess::start(), &[])
    }

    pub(crate) fn proxied() -> Self {
        let redis = RedisProcess::start();
        let proxy = Proxy::before(redis.port());
        Self::new(Single { redis, proxy: Some(proxy) }, &[])
    }

    pub(crate) fn of(redis: RedisProcess, settings: &[(&str, &str)]) -> Self {
        Self::new(Single::direct(redis), settings)
    }

    pub(crate) fn proxy(&self) -> &Proxy {
        self.servers.proxy.as_ref().expect("this scene has one")
    }
}

impl<S: Servers> Scene<S> {
    pub(crate) fn new(servers: S, settings: &[(&str, &str)]) -> Self {
        let mut builder = TestServer::with_rules(&rules()).with_env("WORKERS", &WORKERS.to_string()).with_the_default_store_timeout();
        for (name, value) in servers.settings() {
            builder = builder.with_env(name, &value);
        }
        for (name, value) in settings {
            builder = builder.with_env(name, value);
        }
        let probes = if servers.all().len() == 1 { 1 } else { PROBES };
        let probe = |number| format!(r#"{{"entries":[{{"key":"probe","value":"{number}"}}]}}"#);
        let probes = (0..probes).map(probe).collect::<Vec<String>>().join(",");
        let probe = format!(r#"{{"domain":"d","descriptors":[{probes}]}}"#);
        Self { server: builder.start(), servers, probe, clock: Clock::system(), granted: LIMIT, play: 1 }
    }

    /// Its Redis is going to be empty: whatever was used up can be used again.
    pub(crate) fn that_forgets(self) -> Self {
        Self { granted: 2 * LIMIT, ..self }
    }

    /// How the generator calls the rule of a policy.
    pub(crate) fn options(&self, policy: &str, length: Duration) -> Vec<String> {
        // docs/operations.md: once by Redis, once more by the replica, while it counts by itself; and again by a Redis that came back empty.
        let limit = if policy == "local" { self.granted + LIMIT } else { self.granted };
        let options = [
            "--domain=d".to_owned(),
            format!("--key={policy}"),
            format!("--value-prefix={}-", self.play),
            format!("--keys={VALUES}"),
            format!("--check-limit={limit}"),
            format!("--rate={RATE}"),
            format!("--duration={length:?}"),
            DEADLINE.to_owned(),
            "--connections=2".to_owned(),
            // Late is late, and not lost.
            "--timeout=60s".to_owned(),
        ];
        options.to_vec()
    }

    /// Breaks something while clients of every policy call, mends it, and holds what they saw against what every fault promises, and
    /// what this one does. What a busy machine may have spoilt is played again, with other values; in the end times are not looked at.
    pub(crate) fn under_load(mut self, lasts: Duration, fault: impl Fn(&mut Self), this_one: impl Fn(&Report)) {
        let _alone = alone();
        let judge = |report: &Report| {
            report.holds_what_is_promised();
            this_one(report);
        };
        loop {
            let mut report = self.play(lasts, &fault);
            if !report.is_doubtful() {
                return judge(&report);
            }
            if panic::catch_unwind(AssertUnwindSafe(|| judge(&report))).is_ok() {
                return;
            }
            if self.play < PLAYS {
                self.play += 1;
                self.servers.heal();
                continue;
            }
            if report.local.was_held_up() {
                report.excuse();
            }
            return judge(&report);
        }
    }

    fn play(&mut self, lasts: Duration, fault: impl Fn(&mut Self)) -> Report {
        self.wait_until_redis_counts();
        self.wait_until_nothing_is_wrong();
        let before = self.history();
        let length = LEAD + lasts + RECOVERY_MAX + TRAIL;
        let traffic = Traffic::to(&self.server, &POLICIES.map(|policy| self.options(policy, length)));
        thread::sleep(LEAD);
        let (mended, ready) = self.while_healthy(fault);
        let recovery = self.wait_until_redis_counts().since(mended).into();
        let [local, allow, deny, error] = traffic.finish();
        self.wait_until_nothing_is_wrong();
        look_until("every thread has its one connection, and there is no other", || self.has_few_connections());
        let said = History { ready, ..self.history().since(&before) };
        let report = Report { granted: self.granted, recovery, local, allow, deny, error, said };
        println!("play {}: {report:#?}", self.play);
        report
    }

    /// Asks for health all the while. Gives when the fault ended, and what was said of the store until then.
    fn while_healthy(&mut self, fault: impl Fn(&mut Self)) -> (Time, BTreeSet<String>) {
        let (http, over) = (self.server.http, AtomicBool::new(false));
        thread::scope(|scope| {
            let asking = scope.spawn(|| {
                let mut ready = BTreeSet::new();
                while !over.load(Relaxed) {
                    let reply = http::get(http, "/healthcheck");
                    assert_eq!((reply.status, &*reply.body), (200, "OK"));
                    let page = http::get(http, "/ready").body;
                    ready.extend(page.lines().filter(|line| line.starts_with("store: ")).map(str::to_owned));
                    thread::sleep(HEALTH_INTERVAL);
                }
                ready
            });
            let mended = {
                // Also when the fault fails: nobody else would end the asking.
                let _stop = StoreOnDrop(&over);
                fault(self);
                self.clock.now()
            };
            (mended, asking.join().expect("it is healthy whatever happens to Redis"))
        })
    }

    /// Waits for a verdict that nothing but Redis can have given. Gives when it was asked for.
    pub(crate) fn wait_until_redis_counts(&self) -> Time {
        let mut asked = self.clock.now();
        look_until("Redis counts", || {
            asked = self.clock.now();
            match self.server.json(&self.probe).status {
                200 => true,
                503 => false,
                status => panic!("status {status}"),
            }
        });
        asked
    }

    /// Waits until something that is asked gets no verdict.
    pub(crate) fn wait_until_redis_does_not_count(&self) {
        look_until("Redis does not count", || self.server.json(&self.probe).status == 503);
    }

    /// Waits until every trouble that was told is told to be over.
    fn wait_until_nothing_is_wrong(&self) {
        look_until("every trouble that was told is told to be over", || {
            let log = self.history().log;
            log.iter().filter(|line| line.contains("over: ")).count() * 2 == log.len()
        });
    }

    /// No server that runs has more than it may.
    fn has_few_connections(&self) -> bool {
        let max = self.servers.connections_max();
        self.servers.all().into_iter().filter(|redis| redis.runs()).all(|redis| redis.clients() <= max)
    }

    /// What the service says of itself so far.
    pub(crate) fn history(&self) -> History {
        let page = self.server.admin("/metrics");
        let sum = |name: &str, has: &dyn Fn(&str) -> bool| {
            let lines = page.lines().filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '));
            lines.filter(|(labels, _)| has(labels)).map(|(_, count)| count.parse::<u64>().expect("a counter is a number")).sum()
        };
        let verdicts = |policy: &str, late: bool| {
            let policy = format!("policy=\"{policy}\"");
            sum("tollgate_store_fallbacks_total", &|labels| labels.contains(&policy) && labels.contains("cause=\"late\"") == late)
        };
        let places = self.servers.places();
        let is_of_redis = |line: &&str| places.iter().any(|place| line.contains(place));
        let is_trouble = |line: &&str| [UNREACHABLE, SLOW, REFUSING, FOREIGN].iter().any(|trouble| line.contains(trouble));
        History {
            late: POLICIES.map(|policy| verdicts(policy, true)),
            other: POLICIES.map(|policy| verdicts(policy, false)),
            outages: sum("tollgate_store_breaker_opened_total", &|_| true),
            log: self.server.log().lines().filter(is_of_redis).filter(is_trouble).map(str::to_owned).collect(),
            ready: BTreeSet::new(),
        }
    }

    /// Has the same happen again and again. What is opened once and kept, such as connections, is there after the first few times; from
    /// then on nothing grows.
    pub(crate) fn leaves_nothing_behind(mut self, first: usize, mut round: impl FnMut(&mut Self)) {
        (0..first).for_each(|_| round(&mut self));
        let (held, resident) = (self.held(), self.resident_kib());
        (0..ROUNDS).for_each(|_| round(&mut self));
        // Connections that are made when they are needed may not have been there yet.
        let descriptors_max = held.descriptors + self.servers.connections_max().saturating_sub(held.redis_connections);
        look_until("it holds no more than before", || {
            let now = self.held();
            now.descriptors <= descriptors_max && now.threads <= held.threads && self.has_few_connections()
        });
        let grown = self.resident_kib().saturating_sub(resident);
        assert!(grown < GROWTH_MAX_KIB, "{grown} KiB more than the {resident} KiB before {ROUNDS} rounds");
    }

    fn held(&self) -> Held {
        let count = |what: &str| fs::read_dir(format!("/proc/{}/{what}", self.server.pid())).expect("it runs").count();
        Held {
            descriptors: count("fd"),
            threads: count("task"),
            redis_connections: self.servers.all().into_iter().map(RedisProcess::clients).sum(),
        }
    }

    fn resident_kib(&self) -> u64 {
        crate::load::process::Memory::of(&self.server.pid().to_string()).expect("it runs").resident_kib
    }
}

impl History {
    pub(crate) fn since(mut self, before: &Self) -> Self {
        for (count, before) in self.late.iter_mut().chain(&mut self.other).zip(before.late.iter().chain(&before.other)) {
            *count -= before;
        }
        Self { outages: self.outages - before.outages, log: self.log.split_off(before.log.len()), ..self }
    }

    /// How many verdicts each policy gave.
    fn verdicts(&self) -> [u64; 4] {
        std::array::from_fn(|policy| self.late[policy] + self.other[policy])
    }
}

impl Report {
    fn all(&self) -> [&Seen; 4] {
        [&self.local, &self.allow, &self.deny, &self.error]
    }

    /// Whether the machine, and not the service, may be what was seen: it was busy, or somebody was not run in time.
    fn is_doubtful(&self) -> bool {
        self.local.was_held_up() || self.all().iter().any(|seen| seen.is_overdue() || seen.starved > 0)
    }

    /// Whether times are not to be looked at, because of what else the machine had to do.
    pub(crate) fn is_excused(&self) -> bool {
        self.local.is_excused
    }

    fn excuse(&mut self) {
        for seen in [&mut self.local, &mut self.allow, &mut self.deny, &mut self.error] {
            seen.is_excused = true;
        }
    }

    /// What holds for every fault, however it shows.
    fn holds_what_is_promised(&self) {
        assert!(self.recovery <= RECOVERY_MAX || self.is_excused(), "{:?}", self.recovery);
        for seen in self.all() {
            seen.is_complete();
        }
        for seen in [&self.local, &self.allow, &self.deny] {
            seen.has_no_error_but(&[]);
        }
        self.error.has_no_error_but(&["UNAVAILABLE"]);

        let [_, allowed, _, failed] = self.said.verdicts();
        assert!(self.error.errors.get("UNAVAILABLE").copied().unwrap_or(0) <= failed, "{:?}", self.error);
        // What was let through: of each value no more than options() says, or of all values by what happened meanwhile.
        for seen in [&self.deny, &self.error] {
            assert_eq!(seen.over_granted, 0, "{seen:?}");
        }
        assert!(self.allow.ok <= VALUES * self.granted + allowed, "{:?}", self.allow);
        // On a busy machine Redis may have seemed away more than once.
        let outages = self.said.outages.max(1);
        assert!(self.local.over_granted == 0 || outages > 1, "{:?}", self.local);
        assert!(self.local.ok <= VALUES * (self.granted + outages * LIMIT), "{outages} {:?}", self.local);
    }

    /// Redis gave some verdicts too late or not at all.
    pub(crate) fn was_answered_by_policy(&self) {
        assert!(self.said.verdicts().iter().all(|verdicts| *verdicts > 0), "{:?}", self.said);
        assert!(!self.error.errors.is_empty(), "{:?}", self.error);
    }

    /// Nothing but the limit decided what the clients of these policies were told, except for the few verdicts that are late.
    pub(crate) fn was_answered_by_redis(&self, policies: usize) {
        // On a busy machine Redis may have seemed away.
        assert!(self.said.other[..policies].iter().all(|verdicts| *verdicts == 0) || self.is_excused(), "{:?}", self.said);
        let by_policy = self.said.verdicts();
        for ((seen, late), by_policy) in self.all().into_iter().zip(self.said.late).zip(by_policy).take(policies) {
            assert!(late <= seen.sent / 20 || self.is_excused(), "{late} verdicts were late: {seen:?}");
            assert!(seen.ok.abs_diff(VALUES * LIMIT) <= by_policy, "exactly {LIMIT} of each value, but for {by_policy}: {seen:?}");
        }
    }

    /// One line says that it is wrong, one that it is over, and there is no other.
    pub(crate) fn is_told(&self, trouble: &str) {
        let lines = self.told();
        assert!(lines.len() == 2 && lines.iter().all(|line| line.contains(trouble)) || self.is_excused(), "{:?}", self.said);
    }

    /// Of each server, each trouble is told of once at most, and once when it is over.
    pub(crate) fn each_is_told_at_most_once(&self) {
        let mut told: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for line in self.told() {
            let trouble = [UNREACHABLE, REFUSING, SLOW, FOREIGN].into_iter().find(|trouble| line.contains(trouble)).expect("it is one");
            let address = line.split("address=").nth(1).and_then(|rest| rest.split(' ').next()).expect("it is said whose");
            *told.entry((address, trouble)).or_default() += 1;
        }
        assert!(told.values().all(|lines| *lines == 2) || self.is_excused(), "{:?}", self.said);
    }

    /// One server was told to be away, and to be back or replaced, and nothing was told twice.
    pub(crate) fn one_is_told_to_be_away(&self) {
        let lines = self.said.log.iter().filter(|line| line.contains(UNREACHABLE)).count();
        assert!(lines == 2 || self.is_excused(), "{:?}", self.said);
        self.each_is_told_at_most_once();
    }

    /// Some calls failed, and Redis was not away, or for a moment: that is told once, or not at all.
    pub(crate) fn may_be_told(&self, trouble: &str) {
        if !self.told().is_empty() {
            self.is_told(trouble);
        }
    }

    /// What the log says. Where the machine did not run threads in time, nobody is to be blamed for calling Redis slow.
    pub(crate) fn told(&self) -> Vec<&String> {
        let is_starved = self.all().iter().any(|seen| seen.starved > 0);
        self.said.log.iter().filter(|line| !(is_starved && line.contains(SLOW))).collect()
    }
}

impl Drop for StoreOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
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
