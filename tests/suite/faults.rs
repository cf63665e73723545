//! Redis breaks in every way it is known to, under load: every call gets an answer before its deadline, from the policy of its rule, no
//! more is let through than that policy says, and a moment after Redis is well again it counts.
//!
//! What is done to Redis is done to a real one, or to the bytes on their way to it, while clients of four rules keep calling, each rule
//! with another policy. A sleep here is how long something is broken, and never the passing of a window: those are a year long.

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use tollgate::time::{Clock, Time};

use crate::support::http;
use crate::support::proxy::{Fault, Proxy};
use crate::support::redis::RedisProcess;
use crate::support::traffic::{Seen, Traffic};
use crate::support::{TestServer, alone, look_until};

/// Threads of the service.
const WORKERS: usize = 2;
/// Connections of the service to its Redis: one for each thread, and one for heartbeats.
const CONNECTIONS: usize = WORKERS + 1;
/// What answers where Redis does not, and the key of the rule that says so.
const POLICIES: [&str; 4] = ["local", "allow", "deny", "error"];
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
const AWAY: Duration = Duration::from_secs(1);
/// How long clients call after Redis is well again, at least.
const TRAIL: Duration = Duration::from_millis(1_500);
/// From when Redis answers until it is asked again.
const RECOVERY_MAX: Duration = Duration::from_secs(1);
/// How often it is played before a busy machine is taken for what it is.
const PLAYS: u32 = 4;
/// How often to ask for health.
const HEALTH_INTERVAL: Duration = Duration::from_millis(50);
/// What the log says of a Redis that connects and answers, and where callers do not wait for it.
const SLOW: &str = "Redis answers later than callers wait";
/// What it says where no reply comes, or none that is one.
const UNREACHABLE: &str = "Redis cannot be reached";
/// What is asked by nobody but the test: under policy `error`, so that a verdict shows that Redis gave it.
const PROBE: &str = r#"{"domain":"d","descriptors":[{"entries":[{"key":"probe"}]}]}"#;

/// A service and its Redis, with or without a proxy between them.
struct Scene {
    server: TestServer,
    redis: RedisProcess,
    proxy: Option<Proxy>,
    clock: Clock,
    /// How much of each value Redis lets pass.
    granted: u64,
    /// How often this was played.
    play: u32,
}

/// What came of it.
#[derive(Debug)]
struct Report {
    /// How much of each value Redis lets pass.
    granted: u64,
    /// How long it took from when Redis was well until it was asked again.
    recovery: Duration,
    /// What the clients of each policy's rule saw.
    local: Seen,
    allow: Seen,
    deny: Seen,
    error: Seen,
    said: History,
}

/// What the service says of itself.
#[derive(Debug)]
struct History {
    /// How many verdicts each policy gave, because Redis was late, and because of anything else.
    late: [u64; 4],
    other: [u64; 4],
    /// How often Redis was given up.
    outages: u64,
    /// What is logged about Redis.
    log: Vec<String>,
}

/// Sets a flag, whatever happens.
struct StoreOnDrop<'f>(&'f AtomicBool);

/// What a process holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    threads: usize,
    redis_connections: usize,
}

#[test]
fn killed() {
    Scene::direct().that_forgets().under_load(
        AWAY,
        |scene| {
            scene.redis.kill();
            thread::sleep(AWAY);
            scene.redis.restart();
        },
        |report| {
            report.was_answered_by_policy();
            report.is_told(UNREACHABLE);
        },
    );
}

#[test]
fn stopped_for_a_second() {
    stopped_for(AWAY);
}

#[test]
fn stopped_for_half_a_minute() {
    stopped_for(Duration::from_secs(30));
}

fn stopped_for(away: Duration) {
    Scene::direct().under_load(
        away,
        |scene| {
            scene.redis.stop();
            thread::sleep(away);
            scene.redis.cont();
        },
        |report| {
            report.was_answered_by_policy();
            report.is_told(UNREACHABLE);
        },
    );
}

/// Longer than a caller waits, and not as long as STORE_TIMEOUT: nobody's verdict comes in time, and Redis is not away.
#[test]
fn every_reply_25_ms_late() {
    let long = AWAY * 3;
    Scene::proxied().under_load(
        long,
        |scene| {
            scene.proxy().set(Fault::Delay(Duration::from_millis(25)));
            thread::sleep(long);
            scene.proxy().set(Fault::None);
        },
        |report| {
            report.was_answered_by_policy();
            assert!(report.said.log.iter().any(|line| line.contains(SLOW)), "{:?}", report.said);
            report.may_be_told(SLOW);
        },
    );
}

#[test]
fn half_of_the_connections_reset_in_mid_reply() {
    Scene::proxied().under_load(
        AWAY,
        |scene| {
            let opened = scene.proxy().opened();
            // Whoever is reset ends up in the other half.
            for half in 0..10 {
                scene.proxy().set(Fault::ResetHalf(half % 2));
                thread::sleep(AWAY / 10);
            }
            assert!(scene.proxy().opened() >= opened + 5, "they were opened again {} times", scene.proxy().opened() - opened);
            scene.proxy().set(Fault::None);
        },
        |report| {
            report.may_be_told(UNREACHABLE);
        },
    );
}

#[test]
fn a_reply_cut_in_half() {
    Scene::proxied().under_load(
        AWAY,
        |scene| {
            for _ in 0..5 {
                scene.proxy().cut_next(1);
                look_until("a reply is cut", || scene.proxy().cuts_left() == 0);
                thread::sleep(AWAY / 10);
            }
        },
        |report| {
            report.may_be_told(UNREACHABLE);
        },
    );
}

#[test]
fn restarted_empty() {
    Scene::direct().that_forgets().under_load(
        AWAY,
        |scene| scene.redis.restart(),
        |report| {
            report.may_be_told(UNREACHABLE);
        },
    );
}

/// No client notices.
#[test]
fn its_scripts_flushed() {
    Scene::direct().under_load(
        AWAY,
        |scene| {
            for _ in 0..10 {
                scene.redis.command::<()>(&["SCRIPT", "FLUSH"]);
                thread::sleep(AWAY / 10);
            }
        },
        |report| {
            report.was_answered_by_redis(4);
            assert!(report.told().is_empty() || report.is_excused(), "{:?}", report.said);
        },
    );
}

#[test]
fn its_password_changed() {
    let redis = RedisProcess::builder().with_user("user app on >right ~* &* +@all").start();
    Scene::new(redis, None, &[("REDIS_AUTH", "app:right")]).under_load(
        AWAY,
        |scene| {
            scene.redis.command::<()>(&["ACL", "SETUSER", "app", "resetpass", ">other"]);
            // Who is in stays in.
            scene.redis.command::<usize>(&["CLIENT", "KILL", "USER", "app"]);
            thread::sleep(AWAY);
            scene.redis.command::<()>(&["ACL", "SETUSER", "app", "resetpass", ">right"]);
        },
        |report| {
            report.was_answered_by_policy();
            report.is_told(UNREACHABLE);
        },
    );
}

#[test]
fn out_of_memory() {
    Scene::direct().under_load(
        AWAY,
        |scene| {
            scene.redis.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
            thread::sleep(AWAY);
            scene.redis.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
        },
        |report| {
            report.was_answered_by_policy();
            report.is_told("Redis refuses to count");
        },
    );
}

#[test]
fn a_replica_of_a_master_that_is_gone() {
    Scene::direct().under_load(
        AWAY,
        |scene| {
            // Port 1 is nobody's.
            scene.redis.command::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
            thread::sleep(AWAY);
            scene.redis.command::<()>(&["REPLICAOF", "NO", "ONE"]);
        },
        |report| {
            report.was_answered_by_policy();
            report.is_told("Redis refuses to count");
        },
    );
}

/// The policy of one key answers, and nobody else's verdict changes.
#[test]
fn a_wrong_type_at_one_key() {
    Scene::direct().that_forgets().under_load(
        AWAY,
        |scene| {
            let keys: Vec<String> = scene.redis.command(&["KEYS", &format!("d_error_{}-*", scene.play)]);
            let key = keys.first().expect("somebody has asked").clone();
            // In one step: it is in use.
            let script = "redis.call('DEL', KEYS[1]) redis.call('LPUSH', KEYS[1], 'x')";
            scene.redis.command::<()>(&["EVAL", script, "1", &key]);
            thread::sleep(AWAY);
            scene.redis.command::<usize>(&["DEL", &key]);
        },
        |report| {
            report.was_answered_by_redis(3);
            assert!(report.said.other[3] > 0, "{:?}", report.said);
            report.is_told("something else than a counter stands at a key");
        },
    );
}

#[test]
fn outage_after_outage_leaves_nothing_behind() {
    const OUTAGES: usize = 3;
    let mut scene = Scene::proxied();
    // Whatever is opened once and kept, such as a pool's connections, is there after the first ones.
    scene.break_in_every_way();
    scene.break_in_every_way();
    let (held, resident) = (scene.held(), scene.resident_kib());
    for _ in 0..OUTAGES {
        scene.break_in_every_way();
    }
    look_until("it holds no more than before", || {
        let now = scene.held();
        now.descriptors <= held.descriptors && now.threads <= held.threads && now.redis_connections <= CONNECTIONS
    });
    let grown = scene.resident_kib().saturating_sub(resident);
    assert!(grown < 4 * 1024, "{grown} KiB more than the {resident} KiB before {OUTAGES} rounds of outages");
}

impl Scene {
    fn direct() -> Self {
        Self::new(RedisProcess::start(), None, &[])
    }

    fn proxied() -> Self {
        let redis = RedisProcess::start();
        let proxy = Proxy::before(redis.port());
        Self::new(redis, Some(proxy), &[])
    }

    fn new(redis: RedisProcess, proxy: Option<Proxy>, settings: &[(&str, &str)]) -> Self {
        let url = proxy.as_ref().map_or(redis.url(), |proxy| format!("redis://{}", proxy.addr()));
        let mut builder = TestServer::with_rules(&rules()).with_env("REDIS_URL", &url).with_env("WORKERS", &WORKERS.to_string());
        for (name, value) in settings {
            builder = builder.with_env(name, value);
        }
        Self { server: builder.start(), redis, proxy, clock: Clock::system(), granted: LIMIT, play: 1 }
    }

    /// Its Redis is going to be empty: whatever was used up can be used again.
    fn that_forgets(self) -> Self {
        Self { granted: 2 * LIMIT, ..self }
    }

    fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().expect("this scene has one")
    }

    /// How the generator calls the rule of a policy.
    fn options(&self, policy: &str, length: Duration) -> Vec<String> {
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
    fn under_load(mut self, lasts: Duration, fault: impl Fn(&mut Self), this_one: impl Fn(&Report)) {
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
        let before = self.history();
        let length = LEAD + lasts + RECOVERY_MAX + TRAIL;
        let traffic = Traffic::to(&self.server, &POLICIES.map(|policy| self.options(policy, length)));
        thread::sleep(LEAD);
        let mended = self.while_healthy(fault);
        let recovery = self.wait_until_redis_counts().since(mended).into();
        let [local, allow, deny, error] = traffic.finish();
        look_until("every trouble that was told is told to be over", || {
            let log = self.history().since(&before).log;
            log.iter().filter(|line| line.contains("over: ")).count() * 2 == log.len()
        });
        look_until("every thread has its one connection, and heartbeats have one, and there is no other", || {
            self.redis.clients() <= CONNECTIONS
        });
        let said = self.history().since(&before);
        let report = Report { granted: self.granted, recovery, local, allow, deny, error, said };
        println!("play {}: {report:#?}", self.play);
        report
    }

    /// Asks for health all the while. Gives when the fault ended.
    fn while_healthy(&mut self, fault: impl Fn(&mut Self)) -> Time {
        let (http, over) = (self.server.http, AtomicBool::new(false));
        thread::scope(|scope| {
            let asking = scope.spawn(|| {
                while !over.load(Relaxed) {
                    let reply = http::get(http, "/healthcheck");
                    assert_eq!((reply.status, &*reply.body), (200, "OK"));
                    thread::sleep(HEALTH_INTERVAL);
                }
            });
            let mended = {
                // Also when the fault fails: nobody else would end the asking.
                let _stop = StoreOnDrop(&over);
                fault(self);
                self.clock.now()
            };
            asking.join().expect("it is healthy whatever happens to Redis");
            mended
        })
    }

    /// Waits for a verdict that nothing but Redis can have given. Gives when it was asked for.
    fn wait_until_redis_counts(&self) -> Time {
        let mut asked = self.clock.now();
        look_until("Redis counts", || {
            asked = self.clock.now();
            match self.server.json(PROBE).status {
                200 => true,
                503 => false,
                status => panic!("status {status}"),
            }
        });
        asked
    }

    /// One outage of each kind, each as long as it takes to be noticed.
    fn break_in_every_way(&mut self) {
        type Step = fn(&mut Scene);
        let faults: [(Step, Step); 4] = [
            (|scene| scene.redis.kill(), |scene| scene.redis.restart()),
            (|scene| scene.redis.stop(), |scene| scene.redis.cont()),
            (|scene| scene.proxy().set(Fault::Refuse), |scene| scene.proxy().set(Fault::None)),
            (|scene| scene.proxy().set(Fault::Stall), |scene| scene.proxy().set(Fault::None)),
        ];
        for (break_it, mend_it) in faults {
            let traffic = Traffic::to(&self.server, &[self.options("local", AWAY / 2)]);
            break_it(self);
            look_until("Redis does not count", || self.server.json(PROBE).status == 503);
            mend_it(self);
            self.wait_until_redis_counts();
            let [seen] = traffic.finish();
            seen.has_no_error_but(&[]);
        }
    }

    /// What the service says of itself so far.
    fn history(&self) -> History {
        let page = self.server.admin("/metrics");
        let sum = |name: &str, has: &dyn Fn(&str) -> bool| {
            let lines = page.lines().filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '));
            lines.filter(|(labels, _)| has(labels)).map(|(_, count)| count.parse::<u64>().expect("a counter is a number")).sum()
        };
        let verdicts = |policy: &str, late: bool| {
            let policy = format!("policy=\"{policy}\"");
            sum("tollgate_store_fallbacks_total", &|labels| labels.contains(&policy) && labels.contains("cause=\"late\"") == late)
        };
        let port = self.proxy.as_ref().map_or(self.redis.port(), |proxy| proxy.addr().port()).to_string();
        History {
            late: POLICIES.map(|policy| verdicts(policy, true)),
            other: POLICIES.map(|policy| verdicts(policy, false)),
            outages: sum("tollgate_store_breaker_opened_total", &|_| true),
            log: self.server.log().lines().filter(|line| line.contains(&port)).map(str::to_owned).collect(),
        }
    }

    fn held(&mut self) -> Held {
        let count = |what: &str| fs::read_dir(format!("/proc/{}/{what}", self.server.pid())).expect("it runs").count();
        Held { descriptors: count("fd"), threads: count("task"), redis_connections: self.redis.clients() }
    }

    fn resident_kib(&self) -> u64 {
        crate::load::process::Memory::of(&self.server.pid().to_string()).expect("it runs").resident_kib
    }
}

impl History {
    fn since(mut self, before: &Self) -> Self {
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
    fn is_excused(&self) -> bool {
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
    fn was_answered_by_policy(&self) {
        assert!(self.said.verdicts().iter().all(|verdicts| *verdicts > 0), "{:?}", self.said);
        assert!(!self.error.errors.is_empty(), "{:?}", self.error);
    }

    /// Nothing but the limit decided what the clients of these policies were told, except for the few verdicts that are late.
    fn was_answered_by_redis(&self, policies: usize) {
        assert_eq!(self.said.other[..policies], [0; 4][..policies], "verdicts of policies: {:?}", self.said);
        for (seen, late) in self.all().into_iter().zip(self.said.late).take(policies) {
            assert!(late <= seen.sent / 20 || self.is_excused(), "{late} verdicts were late: {seen:?}");
            assert!(seen.ok.abs_diff(VALUES * LIMIT) <= late, "exactly {LIMIT} of each value, but for {late}: {seen:?}");
        }
    }

    /// One line says that it is wrong, one that it is over, and there is no other.
    fn is_told(&self, trouble: &str) {
        let lines = self.told();
        assert!(lines.len() == 2 && lines.iter().all(|line| line.contains(trouble)) || self.is_excused(), "{:?}", self.said);
    }

    /// Some calls failed, and Redis was not away, or for a moment: that is told once, or not at all.
    fn may_be_told(&self, trouble: &str) {
        if !self.told().is_empty() {
            self.is_told(trouble);
        }
    }

    /// What the log says. Where the machine did not run threads in time, nobody is to be blamed for calling Redis slow.
    fn told(&self) -> Vec<&String> {
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
