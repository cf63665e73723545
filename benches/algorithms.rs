//! What a decision costs by each algorithm, in memory and on a Redis server, and how many bytes a
//! counter takes on either.
//!
//! Every counter is asked as fast as its limit allows, by a clock of its own, so that logs and sets
//! are as long as they get. Algorithms take turns within each round, and what is compared are
//! medians over rounds of one run: absolute times of two runs differ by half.
//!
//! Two tables come of it: what algorithms cost beside each other (docs/algorithms.md), and what a
//! Redis has to have for them (docs/redis.md).

use std::fs;
use std::hint::black_box;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Connection, FromRedisValue, Value};
use tempfile::TempDir;
use tollgate::base::time::{Span, Time};
use tollgate::limits::algorithm::Counter;
use tollgate::limits::check::{Check, CheckRequest, Hits, Key};
use tollgate::limits::{Algorithm, Limit, OverLimitHits, Terms, Unit};
use tollgate::rules::key::{KeyFormat, KeyHead, KeyTail, counter_key};
use tollgate::rules::query::Entry;
use tollgate::store::memory::Counters;
use tollgate::store::redis::client::decode::ScriptReply;
use tollgate::store::redis::client::encode::{EncodedCheck, Mode};
use tollgate::store::redis::client::script::{Form, Script};
use tollgate::telemetry::metric::Metrics;

/// Hits a minute, and holders at once: a log of a hundred entries, a set of fifty names.
const REQUESTS: u64 = 100;
/// Counters of each algorithm, where time is measured.
const KEYS: u64 = 256;
/// The same where Redis' memory is: enough that buffers of a connection are nothing beside them,
/// and its tables neither full nor empty.
const KEYS_OF_MEMORY: u64 = 3_000;
/// How often each counter is asked before anything is measured: twice what its state remembers.
const FILL_PASSES: u64 = 220;
const ROUNDS: usize = 15;
const DECISIONS_PER_ROUND: u64 = 64 * 128;
/// Calls of one check each in a round.
const LONE_CALLS_PER_ROUND: u64 = 2_048;
/// `batch_size_max`
const BATCH: u64 = 64;
/// Of a service with less to do.
const SMALL_BATCH: u64 = 16;
/// What docs/redis.md reckons with.
const CLIENTS: f64 = 1e6;
const DECISIONS_PER_SECOND: f64 = 20_000.0;
/// What an entry takes in memory at most, with its place in the table: ENTRY_BYTES of the memory
/// store.
const ENTRY_BYTES: usize = 72;
/// 2023-11-14, on an edge of no unit.
const START: Time = Time::from_micros(1_700_000_000_123_456);

/// An algorithm under load.
struct Case {
    label: &'static str,
    terms: Terms,
    limit: Limit,
    keys: Vec<Key>,
    way: Way,
    counters: Counters,
    /// How many decisions were asked for, in memory and on Redis.
    asked_memory: u64,
    asked_redis: u64,
    /// µs of a decision in each round.
    memory_us: Vec<f64>,
    /// The same on Redis, by [`CALLS`].
    redis_us: [Vec<f64>; 4],
}

/// Whether the key of a window is new.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// Its lifetime is set.
    New,
    Later,
}

/// The calls of one pipeline, by their checks, and how often it is sent in a round. The last is as
/// a cluster is asked, where hardly two checks share a slot.
const CALLS: [(&[u64], u64); 4] = [
    (&[BATCH], DECISIONS_PER_ROUND / BATCH),
    (&[SMALL_BATCH], DECISIONS_PER_ROUND / SMALL_BATCH),
    (&[1], LONE_CALLS_PER_ROUND),
    (&[1; 64], DECISIONS_PER_ROUND / 64),
];
/// Which of [`CALLS`].
const BATCHED: usize = 0;
const ALONE: usize = 2;
const IN_CLUSTER: usize = 3;

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
        redis.fill(case, FILL_PASSES);
    }
    for _ in 0..ROUNDS {
        for case in &mut cases {
            let begun = now();
            for _ in 0..DECISIONS_PER_ROUND {
                case.decide();
            }
            let micros = begun.elapsed().as_secs_f64() * 1e6;
            case.memory_us.push(micros / figure(DECISIONS_PER_ROUND));
        }
        for case in &mut cases {
            redis.time(case);
        }
    }
    report(&mut redis, &cases);
    report_needs(&mut redis, &cases);
}

fn cases() -> Vec<Case> {
    let terms = |algorithm| Terms::new(REQUESTS, Unit::Minute, algorithm);
    let window = terms(Algorithm::FixedWindow);
    let drop = Terms { over_limit_hits: Some(OverLimitHits::Drop), ..window };
    let sliding = |buckets| Terms { buckets, ..terms(Algorithm::SlidingWindow) };
    let concurrency = Terms { lease: Some(Span::from_secs(600)), ..terms(Algorithm::Concurrency) };
    let cases = [
        ("fixed_window", window, Way::New),
        ("fixed_window, seen before", window, Way::Later),
        ("fixed_window, drop", drop, Way::New),
        ("sliding_window", sliding(None), Way::New),
        ("sliding_window, 10 buckets", sliding(Some(10)), Way::New),
        ("sliding_window, 60 buckets", sliding(Some(60)), Way::New),
        ("sliding_log, 100 calls", terms(Algorithm::SlidingLog), Way::New),
        ("token_bucket, leaky_bucket", terms(Algorithm::TokenBucket), Way::New),
        ("concurrency, 50 holders", concurrency, Way::New),
    ];
    let cases = cases.into_iter().enumerate();
    cases.map(|(number, (label, terms, way))| Case::new(number, label, terms, way, KEYS)).collect()
}

impl Case {
    fn new(number: usize, label: &'static str, terms: Terms, way: Way, keys: u64) -> Self {
        let limit = Limit::new(&terms).expect("the bench's limits are right");
        // Two cases of one algorithm have counters of their own.
        let head = KeyHead::new(KeyFormat::Safe, "", &format!("shop{number}"));
        let tail = KeyTail::new(KeyFormat::Safe, &limit, 1);
        let key = |user: u64| {
            counter_key(&head, [Entry::new("user", &format!("u{user:04}"))].into_iter(), 0, &tail)
        };
        Self {
            label,
            terms,
            limit,
            keys: (0..keys).map(key).collect(),
            way,
            counters: Counters::new(1 << 28, "bench", &Metrics::new()),
            asked_memory: 0,
            asked_redis: 0,
            memory_us: Vec::new(),
            redis_us: Default::default(),
        }
    }

    /// The check that is asked for then, and when that is.
    fn check(&self, asked: u64) -> (Check, Time) {
        let keys = self.keys.len() as u64;
        let (key, pass) = (
            &self.keys[usize::try_from(asked % keys).expect("it is below their number")],
            asked / keys,
        );
        let apart = self.limit.period.as_micros().min(60_000_000) / REQUESTS / keys;
        let now = START.plus(Span::from_micros(asked * apart));
        // A bucket stays half spent; untouched it would be forgotten between two rounds.
        let hits = if pass == 0 && self.limit.algorithm.is_bucket() { REQUESTS / 2 } else { 1 };
        let mut check = Check::new(key.clone(), self.limit, Hits::Add(hits));
        if self.limit.algorithm == Algorithm::Concurrency {
            // One comes, and then the one goes that came a hundred passes ago.
            let (hits, holder) = if pass % 2 == 0 {
                (Hits::Add(1), pass)
            } else {
                (Hits::Refund(1), pass.saturating_sub(101))
            };
            check =
                Check { hits, holder: Some(format!("{holder:032x}").into_bytes().into()), ..check };
        }
        (check, now)
    }

    fn decide(&mut self) {
        let (check, now) = self.check(self.asked_memory);
        self.asked_memory += 1;
        let request =
            CheckRequest { checks: [check].into_iter().collect(), ..CheckRequest::default() };
        black_box(self.counters.decide(&request, now));
    }

    /// What a counter takes in memory after as many calls as there were.
    fn bytes(&self) -> usize {
        let mut counter = Counter::new(&self.limit);
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
            .args(["--port", "0", "--unixsocket", path])
            .args(["--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        let client = redis::Client::open(format!("redis+unix://{path}")).expect("it is an address");
        let connection = (0..200).find_map(|_| {
            thread::sleep(Duration::from_millis(50));
            client.get_connection().ok()
        });
        let connection = connection.expect("redis-server listens within ten seconds");
        let mut redis = Self { child, _directory: directory, connection };
        redis.run::<()>(&["SCRIPT", "LOAD", Script::serving().text()]);
        redis
    }

    fn run<T: FromRedisValue>(&mut self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query(&mut self.connection).expect("Redis answers")
    }

    /// Sends calls with so many checks each, in one pipeline.
    fn decide(&mut self, case: &mut Case, calls: &[u64]) {
        let mut commands = redis::pipe();
        let mut scripts = 0;
        for &checks in calls {
            let (_, now) = case.check(case.asked_redis);
            let mut lines = Vec::new();
            for asked in case.asked_redis..case.asked_redis + checks {
                let check = case.check(asked).0;
                let charge = Counter::charge(&check.limit, check.call());
                let line = EncodedCheck::new(&check, charge, 0, now, Mode::Independent, Span::ZERO);
                lines.push(line);
            }
            case.asked_redis += checks;
            if lines.iter().all(EncodedCheck::is_direct) {
                for line in &lines {
                    line.increment(1, &mut commands);
                    if case.way == Way::New {
                        line.expire(&mut commands);
                    }
                }
            } else {
                commands.add_command(Script::serving().command(
                    [(Mode::Independent, &lines[..])].into_iter(),
                    Some(now),
                    Form::Hash,
                ));
                scripts += 1;
            }
        }
        let answers: Vec<Value> = commands.query(&mut self.connection).expect("Redis decides");
        for (answer, &checks) in answers.into_iter().zip(calls).take(scripts) {
            let replies = ScriptReply::read(answer, usize::try_from(checks).expect("it is small"))
                .expect("a reply");
            assert!(
                replies.replies.iter().all(Result::is_ok),
                "{}: {:?}",
                case.label,
                replies.replies
            );
        }
    }

    /// Asks each counter so often.
    fn fill(&mut self, case: &mut Case, passes: u64) {
        for _ in 0..(case.keys.len() as u64 * passes).div_ceil(BATCH) {
            self.decide(case, &[BATCH]);
        }
    }

    /// CPU of Redis per decision, in one round.
    fn time(&mut self, case: &mut Case) {
        for (index, (calls, trips)) in CALLS.into_iter().enumerate() {
            let before = self.cpu_micros();
            for _ in 0..trips {
                self.decide(case, calls);
            }
            let decisions = figure(trips * calls.iter().sum::<u64>());
            case.redis_us[index].push((self.cpu_micros() - before) / decisions);
        }
    }

    /// What the server's main thread has used.
    fn cpu_micros(&mut self) -> f64 {
        let user = self.number("CPU", "used_cpu_user:");
        (user + self.number("CPU", "used_cpu_sys:")) * 1e6
    }

    fn info(&mut self, section: &str, name: &str) -> String {
        let info: String = self.run(&["INFO", section]);
        let value = info.lines().find_map(|line| line.strip_prefix(name));
        value.expect("a field").trim().to_owned()
    }

    fn number(&mut self, section: &str, name: &str) -> f64 {
        self.info(section, name).parse().expect("a number")
    }

    /// What a counter of this kind takes of `used_memory`, with its key and its places in Redis'
    /// tables.
    fn bytes_of_memory(&mut self, case: &Case) -> f64 {
        let mut case = Case::new(0, case.label, case.terms, Way::New, KEYS_OF_MEMORY);
        self.run::<()>(&["FLUSHALL", "SYNC"]);
        let before = self.number("MEMORY", "used_memory:");
        // A window is whole with its first hit, and the next one would be another key.
        let passes = if case.limit.algorithm == Algorithm::FixedWindow { 1 } else { FILL_PASSES };
        self.fill(&mut case, passes);
        let keys: u64 = self.run(&["DBSIZE"]);
        assert!(keys >= KEYS_OF_MEMORY, "{}: {keys} keys", case.label);
        (self.number("MEMORY", "used_memory:") - before) / figure(keys)
    }

    /// What a counter takes with its key: the median of all that there are.
    fn bytes(&mut self, case: &Case) -> f64 {
        let key = case.keys[0].to_string();
        let prefix = key.split(":user").next().unwrap_or_default();
        let keys: Vec<String> = self.run(&["KEYS", &format!("{prefix}*")]);
        let sizes: Vec<f64> = keys
            .iter()
            .map(|key| figure(self.run(&["MEMORY", "USAGE", key, "SAMPLES", "0"])))
            .collect();
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

fn report(redis: &mut Redis, cases: &[Case]) {
    let version = redis.info("SERVER", "redis_version:");
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("?", |name| name.trim_start_matches([' ', '\t', ':']));
    println!(
        "{REQUESTS} a minute, asked as fast as that; {ROUNDS} rounds; Redis {version}; {cpu}\n"
    );
    println!(
        "| | bytes in memory | bytes in Redis | µs in memory | | Redis µs at {BATCH} checks a call | | Redis µs at 1 | |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let costs = |case: &Case| {
        let [batched, alone] = [BATCHED, ALONE].map(|calls| median(&case.redis_us[calls]));
        [median(&case.memory_us), batched, alone]
    };
    let base = costs(&cases[0]);
    for case in cases {
        let costs = costs(case).into_iter().zip(base);
        let costs: Vec<String> =
            costs.map(|(cost, base)| format!("{cost:.2} | {:.1}×", cost / base)).collect();
        println!(
            "| {} | {} | {:.0} | {} |",
            case.label,
            case.bytes(),
            redis.bytes(case),
            costs.join(" | ")
        );
    }
}

/// What a Redis has to have, and for how long it lasts.
fn report_needs(redis: &mut Redis, cases: &[Case]) {
    println!(
        "\n| | bytes a counter | µs at {BATCH} a call | at {SMALL_BATCH} | at 1 | in a cluster | decisions per core-second | in a cluster | alone |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut example = String::new();
    for case in cases {
        let bytes = redis.bytes_of_memory(case);
        let cost = |calls: usize| median(&case.redis_us[calls]);
        let costs = [0, 1, 2, 3].map(|calls| format!("{:.1}", cost(calls))).join(" | ");
        // Two digits: a third would differ from run to run.
        let rates = [BATCHED, IN_CLUSTER, ALONE]
            .map(|calls| format!("{:.0},000", two_digits(1e3 / cost(calls))))
            .join(" | ");
        println!("| {} | {} | {costs} | {rates} |", case.label, two_digits(bytes));
        if case.limit.algorithm == Algorithm::TokenBucket {
            let [batched, small, alone, _] =
                [0, 1, 2, 3].map(|calls| 100.0 * DECISIONS_PER_SECOND * cost(calls) / 1e6);
            example = format!(
                "{CLIENTS:.0} clients with a {} each, asked {DECISIONS_PER_SECOND:.0} times a second in all: {:.0} MB, and {batched:.0} % of a core in calls of \
                 {BATCH}, {small:.0} % in calls of {SMALL_BATCH}, {alone:.0} % in calls of one.",
                case.label,
                CLIENTS * bytes / 1e6
            );
        }
    }
    println!("\n{example}");
}

fn two_digits(value: f64) -> f64 {
    let unit = 10_f64.powf(value.log10().floor() - 1.0);
    (value / unit).round() * unit
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[expect(clippy::cast_precision_loss, reason = "a figure to print")]
fn figure(number: u64) -> f64 {
    number as f64
}

#[expect(clippy::disallowed_methods, reason = "a benchmark times")]
fn now() -> Instant {
    Instant::now()
}
