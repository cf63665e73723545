//! What is charged, by every store alike: any history of hits, refunds, settlements and peeks, on limits
//! that enforce, are soft, count or drop, alone, beside each other and in chains, with outages.
//!
//! A plain model knows what is used of each counter. Time stands still but for outages, and all periods
//! are long, so the algorithms differ only in what they do with hits over the limit.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use smallvec::SmallVec;
use tokio::runtime;
use tollgate::limiter::Limiter;
use tollgate::limits::Unit;
use tollgate::limits::check::Hits;
use tollgate::rules::KeyFormat;
use tollgate::rules::query::{Descriptor, Entry, Override, Query};
use tollgate::store::Backend;
use tollgate::store::memory::Counters;
use tollgate::telemetry::metric::Metrics;

use crate::support::in_process::{Rules, Service, limiter, network, real_redis, redis, single};
use crate::support::redis::RedisProcess;
use crate::support::scripted_redis::Fault;

const RULES: &str = "
domain: d
descriptors:
  - {key: plain, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: drop, rate_limit: {unit: year, requests_per_unit: 10}, metadata: {tollgate: {over_limit_hits: drop}}}
  - {key: count, rate_limit: {unit: year, requests_per_unit: 10}, metadata: {tollgate: {calendar: UTC, over_limit_hits: count}}}
  - {key: log, rate_limit: {unit: year, requests_per_unit: 10}, metadata: {tollgate: {algorithm: sliding_log, over_limit_hits: count}}}
  - {key: bucket, rate_limit: {unit: year, requests_per_unit: 10}, metadata: {tollgate: {algorithm: token_bucket, over_limit_hits: count}}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 10}, metadata: {tollgate: {calendar: UTC}}}
  - {key: percent, rate_limit: {unit: year, requests_per_unit: 10}, metadata: {tollgate: {enforce_percent: 0, algorithm: sliding_window}}}
  - {key: degrade, rate_limit: {unit: year, requests_per_unit: 10}, metadata: {tollgate: {algorithm: token_bucket, on_limit: degrade, request_headers: {x-cheap: '1'}}}}
  - {key: two, rate_limit: {unit: year, requests_per_unit: 12}, metadata: {tollgate: {limits: [{requests: 9, unit: month}]}}}
  - {key: leased, rate_limit: {unit: year, requests_per_unit: 1000}, metadata: {tollgate: {consistency: leased, over_limit_hits: drop}}}
  - key: org
    rate_limit: {unit: year, requests_per_unit: 20}
    descriptors:
      - key: team
        rate_limit: {unit: year, requests_per_unit: 10}
        metadata: {tollgate: {parents: true}}
        descriptors:
          - {key: settle, rate_limit: {unlimited: true}, metadata: {tollgate: {parents: true, over_limit_hits: count}}}
  - key: pool
    rate_limit: {unit: year, requests_per_unit: 20}
    metadata: {tollgate: {algorithm: token_bucket}}
    descriptors:
      - {key: settle, rate_limit: {unlimited: true}, metadata: {tollgate: {parents: true, over_limit_hits: count}}}
      - key: user
        rate_limit: {unit: year, requests_per_unit: 10}
        metadata: {tollgate: {parents: true, algorithm: sliding_window}}
  - key: soft
    shadow_mode: true
    rate_limit: {unit: year, requests_per_unit: 12}
    descriptors:
      - key: user
        rate_limit: {unit: year, requests_per_unit: 10}
        metadata: {tollgate: {parents: true}}
";

/// A limit of a descriptor.
#[derive(Clone, Copy)]
struct Level {
    /// Which counter.
    counter: usize,
    limit: u64,
    is_soft: bool,
}

/// What becomes of hits over the limit.
#[derive(Clone, Copy, PartialEq)]
enum OverLimit {
    Count,
    Drop,
    /// They are usage, whatever is left.
    Settle,
}

/// A descriptor, and what it counts.
struct Path {
    entries: &'static [&'static str],
    over_limit: OverLimit,
    levels: &'static [Level],
    /// A limit in the request, in requests per month.
    stated: Option<u32>,
}

const fn hard(counter: usize, limit: u64) -> Level {
    Level { counter, limit, is_soft: false }
}

const fn soft(counter: usize, limit: u64) -> Level {
    Level { counter, limit, is_soft: true }
}

const fn path(
    entries: &'static [&'static str],
    over_limit: OverLimit,
    levels: &'static [Level],
) -> Path {
    Path { entries, over_limit, levels, stated: None }
}

const fn stated(requests: u32, levels: &'static [Level]) -> Path {
    Path { stated: Some(requests), ..path(&["two"], OverLimit::Drop, levels) }
}

use OverLimit::{Count, Drop, Settle};

const PLAIN: usize = 0;
const LEASED: usize = 11;
const PATHS: [Path; 22] = [
    path(&["plain"], Count, &[hard(PLAIN, 10)]),
    path(&["drop"], Drop, &[hard(1, 10)]),
    path(&["count"], Count, &[hard(2, 10)]),
    path(&["log"], Count, &[hard(3, 10)]),
    path(&["bucket"], Count, &[hard(4, 10)]),
    path(&["shadow"], Count, &[soft(5, 10)]),
    path(&["percent"], Count, &[soft(6, 10)]),
    path(&["degrade"], Count, &[soft(7, 10)]),
    path(&["two"], Drop, &[hard(8, 12), hard(9, 9)]),
    stated(4, &[hard(9, 4)]),
    stated(15, &[hard(9, 9)]),
    path(&["leased"], Drop, &[hard(LEASED, 1000)]),
    path(&["org"], Drop, &[hard(12, 20)]),
    path(&["org", "team=a"], Drop, &[hard(12, 20), hard(13, 10)]),
    path(&["org", "team=b"], Drop, &[hard(12, 20), hard(14, 10)]),
    path(&["org", "team=a", "settle"], Settle, &[hard(12, 20), hard(13, 10)]),
    path(&["pool"], Drop, &[hard(15, 20)]),
    path(&["pool", "settle"], Settle, &[hard(15, 20)]),
    path(&["pool", "user"], Drop, &[hard(15, 20), hard(16, 10)]),
    path(&["soft"], Count, &[soft(17, 12)]),
    path(&["soft", "user=a"], Drop, &[soft(17, 12), hard(18, 10)]),
    path(&["soft", "user=b"], Drop, &[soft(17, 12), hard(19, 10)]),
];
const COUNTERS: usize = 20;
/// Those of buckets, which hold one burst of debt.
const BUCKETS: [usize; 3] = [4, 7, 15];
/// How many hits of the leased limit are one of the others.
const LEASED_HITS: u64 = 80;
/// How many histories are played, unless PROPTEST_CASES is set.
const CASES: u32 = 300;
const REAL_CASES: u32 = 30;
/// Longer than it takes to notice that Redis is there, and to write back.
const SETTLED_AFTER: Duration = Duration::from_millis(2_500);
const OVER_LIMIT_CACHE_BYTES: u64 = 1 << 20;

#[derive(Debug, Clone, Copy)]
enum Step {
    Call(usize, Hits),
    Outage,
    OutageEnds,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let hits = prop_oneof![
        8 => (1..=12_u64).prop_map(Hits::Add),
        3 => (1..=8_u64).prop_map(Hits::Refund),
        1 => Just(Hits::Peek),
    ];
    // Few paths, so that their limits are reached.
    prop::collection::vec(0..PATHS.len(), 1..=4).prop_flat_map(move |paths| {
        let call = (prop::sample::select(paths), hits.clone());
        let step = prop_oneof![
            20 => call.prop_map(|(path, hits)| Step::Call(path, hits)),
            1 => Just(Step::Outage),
            1 => Just(Step::OutageEnds),
        ];
        prop::collection::vec(step, 1..=30)
    })
}

/// What is used of each counter.
#[derive(Default)]
struct Model {
    used: [u64; COUNTERS],
}

impl Model {
    /// Whether the request is over limit.
    fn call(&mut self, path: &Path, hits: Hits) -> bool {
        let wanted = if let Hits::Add(hits) = hits { hits } else { 0 };
        let is_over = |level: &Level| self.used[level.counter] + wanted > level.limit;
        let is_rejected = path.levels.iter().any(|level| !level.is_soft && is_over(level));
        for level in path.levels {
            let used = self.used[level.counter];
            let after = match hits {
                Hits::Peek => used,
                Hits::Refund(hits) => used.saturating_sub(hits),
                Hits::Add(_) if is_rejected && path.over_limit == Drop => used,
                Hits::Add(hits) => used + hits,
            };
            let most = if BUCKETS.contains(&level.counter) { 2 * level.limit } else { u64::MAX };
            self.used[level.counter] = after.min(most);
        }
        is_rejected && !matches!(hits, Hits::Refund(_))
    }

    /// What is left of the limit of which least is: of those that enforce, if there are any.
    fn left(&self, path: &Path) -> u64 {
        let left = |level: &Level| level.limit.saturating_sub(self.used[level.counter]);
        let least = |is_soft| {
            let levels = path.levels.iter().filter(|level| level.is_soft == is_soft);
            levels.map(left).min()
        };
        least(false).or_else(|| least(true)).unwrap_or_default()
    }
}

/// With keys by which a limit in the request has the counter of one of the rule.
fn rules(metrics: &Metrics) -> Rules {
    Rules::load(KeyFormat::Safe, &[RULES.to_owned()], metrics)
}

/// A replica on a Redis of its own.
struct Replica {
    name: &'static str,
    service: Service,
}

impl Replica {
    /// On this database of a real server, or in memory.
    async fn start(
        name: &'static str,
        over_limit_cache_bytes: u64,
        database: Option<&str>,
    ) -> Self {
        let network = network();
        let metrics = Metrics::new();
        let rules = rules(&metrics);
        let redis = match database {
            Some(database) => real_redis(&network, database, &metrics, over_limit_cache_bytes),
            None => redis(&network, single(), &metrics, over_limit_cache_bytes),
        };
        let mut service = Service::with_redis(&network, redis, &rules, metrics);
        service.start().await;
        tokio::time::sleep(SETTLED_AFTER).await;
        Self { name, service }
    }
}

/// Whether it is over limit, and what is left.
async fn ask(limiter: &Limiter, value: &str, path: &Path, hits: Hits) -> (bool, u64) {
    let mut entries: SmallVec<[Entry<'_>; 4]> = SmallVec::new();
    for entry in path.entries {
        let (key, value) = entry.split_once('=').unwrap_or((entry, value));
        entries.push(Entry::new(key, value));
    }
    let limit = path.stated.map(|requests_per_unit| Override {
        requests_per_unit,
        wire_unit: 5,
        unit: Some(Unit::Month),
    });
    let descriptor = Descriptor { entries, limit, hits, hits_addend: None };
    let query =
        Query { domain: b"d", descriptors: SmallVec::from_iter([descriptor]), ..Query::default() };
    let answer = limiter.decide(&query, None).await.expect("an answer");
    (answer.over_limit, answer.statuses[0].remaining)
}

/// All stores.
struct World {
    memory: Limiter,
    replicas: [Replica; 2],
    /// A part of all values, which makes the counters of a history its own.
    histories: usize,
    /// Real servers have no outages here.
    is_real: bool,
}

impl World {
    async fn start(server: Option<&RedisProcess>) -> Self {
        let metrics = Metrics::new();
        let database =
            |number| server.map(|server| format!("redis://{}/{number}", server.address()));
        let [plain, with_cache] = [0, 1].map(database);
        let counters = Arc::new(Counters::new(64 << 20, "store", &metrics));
        let clock = network().clock;
        Self {
            memory: limiter(Backend::Memory(counters), &clock, &rules(&metrics), &metrics),
            replicas: [
                Replica::start("Redis", 0, plain.as_deref()).await,
                Replica::start(
                    "Redis with the over-limit cache",
                    OVER_LIMIT_CACHE_BYTES,
                    with_cache.as_deref(),
                )
                .await,
            ],
            histories: 0,
            is_real: server.is_some(),
        }
    }

    async fn play(&mut self, steps: &[Step]) -> Result<(), String> {
        self.histories += 1;
        let value = &self.histories.to_string();
        // Refunds in outages are what `outages.rs` is about: what a replica knows by itself stays
        // counted when Redis has given it back.
        let mut refunds = true;
        let mut model = Model::default();
        for (index, step) in steps.iter().enumerate() {
            match *step {
                Step::Call(path, hits) => {
                    let path = &PATHS[path];
                    let is_plain = path.levels[0].counter == PLAIN;
                    let is_leased = path.levels[0].counter == LEASED;
                    let many = if is_leased { LEASED_HITS } else { 1 };
                    let hits = match hits {
                        // What is leased and unused counts as used in an outage.
                        _ if is_leased && !refunds => Hits::Peek,
                        // The cache and the fallback do not write back over-limit hits of plain
                        // fixed windows.
                        Hits::Refund(_) if !refunds || is_plain => Hits::Peek,
                        Hits::Add(hits) if !refunds && is_plain && model.left(path) < hits => {
                            Hits::Peek
                        }
                        Hits::Add(hits) => Hits::Add(many * hits),
                        // What a lease holds is no usage that a refund could take.
                        Hits::Refund(hits) if is_leased => {
                            Hits::Refund((many * hits).min(model.used[LEASED]))
                        }
                        Hits::Refund(hits) => Hits::Refund(hits),
                        Hits::Peek => Hits::Peek,
                    };
                    let over = model.call(path, hits);
                    // What remains is compared unless the request is over limit, where it is that of
                    // the limit that rejects, or the counter is leased.
                    let is_told = !over && !is_leased;
                    let expected = (over, is_told.then(|| model.left(path)));
                    let stores = self
                        .replicas
                        .iter()
                        .map(|replica| (replica.name, &replica.service.limiter));
                    for (name, limiter) in stores.chain([("memory", &self.memory)]) {
                        let (over, left) = ask(limiter, value, path, hits).await;
                        let answer = (over, is_told.then_some(left));
                        if answer != expected {
                            return Err(format!(
                                "step {index}, {:?} {hits:?} on {name}: {answer:?}, not {expected:?}",
                                path.entries
                            ));
                        }
                    }
                }
                Step::Outage | Step::OutageEnds if self.is_real => {}
                Step::Outage => {
                    refunds = false;
                    for replica in &self.replicas {
                        replica.service.server.fail(Fault::RefuseConnections);
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Step::OutageEnds => self.recover().await,
            }
        }
        self.recover().await;
        Ok(())
    }

    async fn recover(&self) {
        if self.is_real {
            return;
        }
        for replica in &self.replicas {
            replica.service.server.recover();
        }
        tokio::time::sleep(SETTLED_AFTER).await;
    }
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
    static RUNTIME: RefCell<runtime::Runtime> = RefCell::new(
        runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime"),
    );
}

fn play(steps: &[Step]) -> Result<(), String> {
    RUNTIME.with_borrow(|runtime| {
        runtime.block_on(async {
            let mut world = match WORLD.take() {
                Some(world) => world,
                None => World::start(None).await,
            };
            if world.play(steps).await.is_err() {
                // Two of its counters may have one slot of `usage_cache_max`, so that an outage
                // knows one of them. They do not have one twice.
                world.recover().await;
                world.play(steps).await?;
            }
            WORLD.set(Some(world));
            Ok(())
        })
    })
}

proptest! {
    #![proptest_config(super::outages::config(CASES))]

    #[test]
    fn every_store_charges_what_the_model_does(steps in steps()) {
        play(&steps).map_err(TestCaseError::fail)?;
    }
}

#[test]
fn a_real_redis_charges_what_the_model_does() {
    let server = RedisProcess::start();
    let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let world = RefCell::new(runtime.block_on(World::start(Some(&server))));
    let config = super::outages::config(CASES);
    let cases = REAL_CASES.max(config.cases / 100);
    let played = TestRunner::new(ProptestConfig { cases, ..config }).run(&steps(), |steps| {
        let played = runtime.block_on(world.borrow_mut().play(&steps));
        played.map_err(TestCaseError::fail)
    });
    assert!(played.is_ok(), "{played:?}");
}
