//! What a decision costs by each algorithm, in memory and on a Redis server, and how many bytes a counter takes on either.
//!
//! Every counter is asked as fast as its limit allows, by a clock of its own, so that logs and sets are as long as they get. Algorithms take
//! turns within each round, and what is compared are medians over rounds of one run: absolute times of two runs differ by half.

use std::fs;
use std::hint::black_box;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use redis::Connection;
use tempfile::TempDir;
use tollgate::algorithm::Counter;
use tollgate::check::{Ask, Check, Hits, Key};
use tollgate::limit::{Algorithm, Limit, RefusedHits, Terms, Unit};
use tollgate::rules::key::{KeyFormat, KeyHead, KeyTail, counter_key};
use tollgate::rules::query::Entry;
use tollgate::store::memory::Counters;
use tollgate::store::redis::script::{self, Form, Line, Manner, Script};
use tollgate::telemetry::metric::Metrics;
use tollgate::time::{Span, Time};

/// Hits a minute, and holders at once: a log of a hundred entries, a set of fifty names.
const REQUESTS: u32 = 100;
/// Counters of each algorithm.
const KEYS: u64 = 256;
/// How often each counter is asked before anything is measured: twice what its state remembers.
const FILL_PASSES: u64 = 220;
const ROUNDS: usize = 15;
const DECISIONS_PER_ROUND: u64 = 64 * 128;
/// Calls of one check each in a round.
const LONE_CALLS_PER_ROUND: u64 = 2_048;
/// `batch_size_max`
const BATCH: u64 = 64;
/// What an entry takes in memory at most, with its place in the table: ENTRY_BYTES of the memory store.
const ENTRY_BYTES: usize = 72;
/// 2023-11-14, on an edge of no unit.
const START: Time = Time::from_micros(1_700_000_000_123_456);

/// An algorithm under load.
struct Case {
    label: &'static str,
    limit: Limit,
    keys: Vec<Key>,
    way: Way,
    counters: Counters,
    /// How many decisions were asked for, in memory and on Redis.
    asked: [u64; 2],
    costs: [Vec<f64>; 3],
}

/// How Redis is asked.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Script,
    /// As it is asked about windows that were seen.
    Command,
}

/// Which of [`Case::costs`] and [`Case::asked`].
const MEMORY: usize = 0;
const REDIS: usize = 1;
const REDIS_ALONE: usize = 2;

/// A server without persistence, gone with the bench.
struct Redis {
    child: Child,
    _directory: TempDir,
    connection: Connection,
}

fn main() {
    let mut redis = Redis::start();
    let mut cases = cases();
    for case in &mut cases {
        for _ in 0..KEYS * FILL_PASSES {
            case.decide();
        }
        for _ in 0..KEYS * FILL_PASSES / BATCH {
            redis.decide(case, BATCH);
        }
    }
    for _ in 0..ROUNDS {
        for case in &mut cases {
            let begun = now();
            for _ in 0..DECISIONS_PER_ROUND {
                case.decide();
            }
            case.costs[MEMORY].push(micros(begun.elapsed()) / figure(DECISIONS_PER_ROUND));
        }
        for case in &mut cases {
            let before = redis.cpu_micros();
            for _ in 0..DECISIONS_PER_ROUND / BATCH {
                redis.decide(case, BATCH);
            }
            case.costs[REDIS].push((redis.cpu_micros() - before) / figure(DECISIONS_PER_ROUND));
            let before = redis.cpu_micros();
            for _ in 0..LONE_CALLS_PER_ROUND {
                redis.decide(case, 1);
            }
            case.costs[REDIS_ALONE].push((redis.cpu_micros() - before) / figure(LONE_CALLS_PER_ROUND));
        }
    }
    report(&mut redis, &mut cases);
}

fn cases() -> Vec<Case> {
    let terms = |algorithm| Terms::new(REQUESTS, Unit::Minute, algorithm);
    let window = terms(Algorithm::FixedWindow);
    let sliding = terms(Algorithm::SlidingWindow);
    let cases = [
        ("fixed_window", window, Way::Script),
        ("fixed_window, seen before", window, Way::Command),
        ("fixed_window, drop", Terms { refused_hits: Some(RefusedHits::Drop), ..window }, Way::Script),
        ("sliding_window", sliding, Way::Script),
        ("sliding_window, 10 buckets", Terms { buckets: Some(10), ..sliding }, Way::Script),
        ("sliding_window, 60 buckets", Terms { buckets: Some(60), ..sliding }, Way::Script),
        ("sliding_log, 100 calls", terms(Algorithm::SlidingLog), Way::Script),
        ("token_bucket, leaky_bucket", terms(Algorithm::TokenBucket), Way::Script),
        ("concurrency, 50 holders", Terms { lease: Some(Span::from_secs(600)), ..terms(Algorithm::Concurrency) }, Way::Script),
    ];
    cases.into_iter().enumerate().map(|(number, (label, terms, way))| Case::new(number, label, &terms, way)).collect()
}

impl Case {
    fn new(number: usize, label: &'static str, terms: &Terms, way: Way) -> Self {
        let limit = Limit::new(terms).expect("the bench's limits are right");
        // Two cases of one algorithm have counters of their own.
        let head = KeyHead::new(KeyFormat::Safe, "", &format!("shop{number}"));
        let tail = KeyTail::new(KeyFormat::Safe, &limit, 1);
        let key = |user: u64| counter_key(&head, [Entry { key: "user", value: &format!("u{user:04}") }].into_iter(), &tail);
        Self {
            label,
            limit,
            keys: (0..KEYS).map(key).collect(),
            way,
            counters: Counters::new(1 << 28, "bench", &Metrics::new()),
            asked: [0; 2],
            costs: Default::default(),
        }
    }

    /// The check that is asked for then, and when that is.
    fn check(&self, asked: u64) -> (Check, Time) {
        let (key, pass) = (&self.keys[usize::try_from(asked % KEYS).expect("it is below KEYS")], asked / KEYS);
        let apart = self.limit.period().as_micros().min(60_000_000) / u64::from(REQUESTS) / KEYS;
        let now = START.plus(Span::from_micros(asked * apart));
        // A bucket stays half spent; untouched it would be forgotten between two rounds.
        let hits = if pass == 0 && self.limit.algorithm().is_bucket() { u64::from(REQUESTS) / 2 } else { 1 };
        let mut check = Check::new(key.clone(), self.limit, Hits::Add(hits));
        if self.limit.algorithm() == Algorithm::Concurrency {
            // One comes, and then the one goes that came a hundred passes ago.
            let (hits, holder) = if pass % 2 == 0 { (Hits::Add(1), pass) } else { (Hits::GiveBack(1), pass.saturating_sub(101)) };
            check = Check { hits, holder: Some(format!("{holder:032x}").into_bytes().into()), ..check };
        }
        (check, now)
    }

    fn decide(&mut self) {
        let (check, now) = self.check(self.asked[MEMORY]);
        self.asked[MEMORY] += 1;
        let ask = Ask { checks: [check].into_iter().collect(), ..Ask::default() };
        black_box(self.counters.decide(&ask, now));
    }

    /// What a counter takes in memory after as many calls as there were.
    fn bytes(&self) -> usize {
        let mut counter = Counter::untouched(&self.limit);
        for asked in (0..KEYS * FILL_PASSES).step_by(usize::try_from(KEYS).expect("it is small")) {
            let (check, now) = self.check(asked);
            counter = counter.decide(&self.limit, now, check.call()).0;
        }
        ENTRY_BYTES + counter.heap_bytes()
    }
}

impl Redis {
    fn start() -> Self {
        let directory = TempDir::new().expect("a temporary directory can be made");
        let socket = directory.path().join("redis.sock");
        let path = socket.to_str().expect("temporary directories have plain names");
        let child = Command::new("redis-server")
            .args(["--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        let client = redis::Client::open(format!("redis+unix://{path}")).expect("it is an address");
        let connection = (0..200).find_map(|_| {
            thread::sleep(Duration::from_millis(50));
            client.get_connection().ok()
        });
        let mut connection = connection.expect("redis-server listens within ten seconds");
        let () = redis::cmd("SCRIPT").arg("LOAD").arg(Script::serving().text()).query(&mut connection).expect("the script loads");
        Self { child, _directory: directory, connection }
    }

    fn decide(&mut self, case: &mut Case, checks: u64) {
        let (_, now) = case.check(case.asked[REDIS]);
        let mut lines = Vec::new();
        for asked in case.asked[REDIS]..case.asked[REDIS] + checks {
            lines.push(Line::new(&case.check(asked).0, 0, now, Manner::Apart, Span::ZERO));
        }
        case.asked[REDIS] += checks;
        if case.way == Way::Command {
            let mut commands = redis::pipe();
            for line in &lines {
                line.increment(&mut commands);
            }
            let () = commands.query(&mut self.connection).expect("Redis counts");
            return;
        }
        let command = Script::serving().command([(Manner::Apart, &lines[..])].into_iter(), Some(now), Form::Hash);
        let replies = script::replies(command.query(&mut self.connection).expect("Redis decides"), lines.len()).expect("a reply");
        assert!(replies.told.iter().all(Result::is_ok), "{}: {:?}", case.label, replies.told);
    }

    /// What the server's main thread has used.
    fn cpu_micros(&mut self) -> f64 {
        let info: String = redis::cmd("INFO").arg("CPU").query(&mut self.connection).expect("Redis tells");
        let seconds = |name: &str| -> f64 {
            let line = info.lines().find_map(|line| line.strip_prefix(name)).expect("it is told");
            line.trim().parse().expect("it is a number")
        };
        (seconds("used_cpu_user:") + seconds("used_cpu_sys:")) * 1e6
    }

    /// What a counter takes with its key: the median of all that there are.
    fn bytes(&mut self, case: &Case) -> f64 {
        let pattern = format!("{}*", String::from_utf8_lossy(case.keys[0].as_bytes()).split(":user").next().unwrap_or_default());
        let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg(pattern).query(&mut self.connection).expect("Redis lists");
        let bytes = |key: &Vec<u8>| -> u64 {
            redis::cmd("MEMORY").arg("USAGE").arg(key).arg("SAMPLES").arg(0).query(&mut self.connection).expect("the key is there")
        };
        let sizes: Vec<f64> = keys.iter().map(bytes).map(figure).collect();
        median(&sizes)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // Either fails only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn report(redis: &mut Redis, cases: &mut [Case]) {
    let version: String = redis::cmd("INFO").arg("SERVER").query(&mut redis.connection).expect("Redis tells");
    let version = version.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap_or("?").to_owned();
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")).map_or("?", |name| name.trim_start_matches([' ', '\t', ':']));
    println!("{REQUESTS} a minute, asked as fast as that; {ROUNDS} rounds; Redis {version}; {cpu}\n");
    println!("| | bytes in memory | bytes in Redis | µs in memory | | Redis µs at {BATCH} checks a call | | Redis µs at 1 | |");
    println!("|---|---|---|---|---|---|---|---|---|");
    let base: Vec<f64> = cases[0].costs.iter().map(|costs| median(costs)).collect();
    for case in cases {
        let costs = case.costs.iter().zip(&base).map(|(costs, base)| {
            let cost = median(costs);
            format!("{cost:.2} | {:.1}×", cost / base)
        });
        let costs: Vec<String> = costs.collect();
        println!("| {} | {} | {:.0} | {} |", case.label, case.bytes(), redis.bytes(case), costs.join(" | "));
    }
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

#[expect(clippy::cast_precision_loss, reason = "a figure to print")]
fn figure(number: u64) -> f64 {
    number as f64
}

#[expect(clippy::disallowed_methods, reason = "a benchmark times")]
fn now() -> Instant {
    Instant::now()
}
