//! The keys with the most hits, and with the most hits over limit, of each rule in the last
//! minutes.
//!
//! ```text
//!  worker 1   sketches of each rule --\
//!  worker 2   sketches of each rule --- taken every 10 s, and by a reader --> windows of each rule
//! ```
//! A worker counts in sketches of its own, so a request waits for no other thread; they are taken
//! as a whole, in one assignment, and added up elsewhere. Hits count as of the time they were taken
//! before. A key is the counter of a rule: its entries, with the pattern of values that share a
//! counter and without the name of a holder. Limits that come with a request count for the rule
//! that they change.

use std::collections::BTreeMap;
use std::hash::BuildHasher as _;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::{DefaultHashBuilder, HashMap};
use parking_lot::{Mutex, MutexGuard};
use tokio::task::spawn_blocking;

use crate::base::text::Text;
use crate::base::time::{Clock, Span, Time};
use crate::limits::check::Key;
use crate::operator::observe::top_keys::entries::Entries;
use crate::operator::observe::top_keys::sketch::{Added, Capacity, Sketch};
use crate::operator::observe::top_keys::windows::{Counted, Window, Windows};
use crate::rules::lookup::{Hops, counted_by, lookup};
use crate::rules::stats::counts::HitCounts;
use crate::rules::{Descriptor, Link, Rule, RuleSet};
use crate::telemetry::metric::{Counter, Metrics};

pub(crate) mod entries;
mod sketch;
pub(crate) mod windows;

/// Bytes of the keys that one worker tracks until they are taken: some 20,000.
// bound pending_keys_bytes_max: left out; tollgate_top_keys_full_total
const PENDING_KEYS_BYTES_MAX: usize = 4 << 20;
/// Bytes of a tracked key, without its entries.
const PENDING_KEY_BYTES: usize = 160;
/// Bytes of the keys in the slots of all rules and windows: some 300,000.
// bound slot_keys_bytes_max: left out; tollgate_top_keys_full_total
const SLOT_KEYS_BYTES_MAX: usize = 40 << 20;
/// The time between two takings without a reader, which is the shortest slot.
const TAKE_INTERVAL: Span = Span::from_secs(10);
/// The time between two takings by readers: after each the workers begin to track keys again.
const READ_INTERVAL: Span = Span::from_micros(50_000);

/// The top keys of the process. Clones share them.
#[derive(Debug, Clone)]
pub struct TopKeys(Arc<Shared>);

/// What one worker counts. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Worker {
    pending: Arc<Mutex<Pending>>,
    hasher: DefaultHashBuilder,
    full: Counter,
}

/// What one worker counts, while it adds the hits of a request.
pub(crate) struct Recording<'w> {
    worker: &'w Worker,
    pending: MutexGuard<'w, Pending>,
}

#[derive(Debug)]
struct Shared {
    workers: Mutex<Vec<Worker>>,
    hasher: DefaultHashBuilder,
    totals: Mutex<Totals>,
    /// When counts were taken last.
    taken: tokio::sync::Mutex<Time>,
    clock: Clock,
    full: Counter,
}

/// Counts since the last taking.
#[derive(Debug, Default)]
struct Pending {
    /// By the address of a rule's path, which its sketches keep in use.
    rules: HashMap<usize, Sketches>,
    bytes: usize,
}

#[derive(Debug)]
struct Sketches {
    domain: Box<str>,
    rule: Arc<str>,
    by_hits: Sketch,
    by_over_limit: Sketch,
}

/// By domain and rule.
#[derive(Debug, Default)]
struct Totals(BTreeMap<Box<str>, BTreeMap<Arc<str>, Windows>>);

/// The keys of a rule, in no order.
#[derive(Debug)]
pub(crate) struct RuleKeys {
    pub(crate) domain: Box<str>,
    pub(crate) rule: Arc<str>,
    pub(crate) keys: Vec<Counted>,
}

/// Whose keys to read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selection {
    /// `None` for every domain.
    pub(crate) domain: Option<String>,
    /// The path of a rule; `None` for every rule.
    pub(crate) rule: Option<String>,
}

impl TopKeys {
    /// Registers the metric.
    pub fn new(clock: Clock, metrics: &Metrics) -> Self {
        Self(Arc::new(Shared {
            workers: Mutex::default(),
            hasher: DefaultHashBuilder::default(),
            totals: Mutex::default(),
            taken: tokio::sync::Mutex::new(clock.now()),
            clock,
            full: metrics.counter(
                "tollgate_top_keys_full_total",
                "Hits that top keys leave out because too many keys of all rules are tracked (pending_keys_bytes_max, slot_keys_bytes_max).",
            ),
        }))
    }

    /// For the worker that this is called on.
    pub(crate) fn open(&self) -> Worker {
        let worker = Worker {
            pending: Arc::default(),
            hasher: self.0.hasher.clone(),
            full: self.0.full.clone(),
        };
        self.0.workers.lock().push(worker.clone());
        worker
    }

    /// Takes counts at the end of each slot, for as long as the process lives.
    pub(crate) async fn run(self) {
        loop {
            let now = self.0.clock.now().as_micros();
            let interval = TAKE_INTERVAL.as_micros();
            tokio::time::sleep(Duration::from_micros(interval - now % interval)).await;
            self.take(Span::ZERO).await;
        }
    }

    /// The keys of a window, with every hit that was counted before.
    pub(crate) async fn read(&self, selection: Selection, window: Window) -> Vec<RuleKeys> {
        self.take(READ_INTERVAL).await;
        let shared = self.0.clone();
        let read = move || {
            let now = shared.clock.now();
            shared.totals.lock().read(&selection, window, now)
        };
        spawn_blocking(read).await.unwrap_or_default()
    }

    /// The hits of a key of a rule in each slot of the last hour, the current one last. `None` if
    /// it was not tracked.
    pub(crate) async fn history(
        &self,
        domain: &str,
        rule: &Arc<str>,
        key: &Key,
    ) -> Option<Vec<HitCounts>> {
        self.take(READ_INTERVAL).await;
        let shared = self.0.clone();
        let hash = shared.hasher.hash_one(key.as_bytes());
        let domain = domain.to_owned();
        let rule = rule.clone();
        let read = move || {
            let now = shared.clock.now();
            let totals = shared.totals.lock();
            let windows = totals.0.get(&*domain)?.get(&rule)?;
            windows.history(hash, now)
        };
        spawn_blocking(read).await.ok().flatten()
    }

    /// Takes the counts of all workers, unless that began after the call. `interval` after the last
    /// time at the earliest.
    async fn take(&self, interval: Span) {
        let called = self.0.clock.now();
        let mut taken = self.0.taken.lock().await;
        if *taken > called {
            return;
        }
        let pause = interval.less(self.0.clock.now().since(*taken));
        if pause > Span::ZERO {
            tokio::time::sleep(pause.into()).await;
        }
        let shared = self.0.clone();
        let since = *taken;
        let now = self.0.clock.now();
        // With its own thread: many keys take a while, and liveness probes are answered here.
        let _ = spawn_blocking(move || shared.take(since, now)).await;
        *taken = now;
    }
}

impl Worker {
    /// For the hits of one request.
    pub(crate) fn lock(&self) -> Recording<'_> {
        Recording { worker: self, pending: self.pending.lock() }
    }
}

impl Recording<'_> {
    /// Adds the hits of a limit that is counted by `key`.
    pub(crate) fn record(
        &mut self,
        rules: &RuleSet,
        domain: &[u8],
        descriptor: &Descriptor<'_>,
        link: &Link<'_>,
        key: &Key,
        counts: HitCounts,
    ) {
        let Some(rule) = link.rule.filter(|_| counts.hits > 0) else {
            return;
        };
        let hash = self.worker.hasher.hash_one(key.as_bytes());
        let Pending { rules: known, bytes } = &mut *self.pending;
        let address = Arc::as_ptr(&rule.path).addr();
        let sketches = known.entry(address).or_insert_with(|| Sketches::new(domain, rule));
        let mut add = |sketch: &mut Sketch, weight| {
            let capacity = match *bytes {
                PENDING_KEYS_BYTES_MAX.. => Capacity::Full,
                _ => Capacity::Free,
            };
            let set = |entries: &mut Entries| {
                *bytes -= entries.bytes();
                write(entries, rules, domain, descriptor, link);
                *bytes += entries.bytes();
            };
            let added = sketch.add(hash, weight, counts, capacity, set);
            if added == Added::New {
                *bytes += PENDING_KEY_BYTES;
            }
            added
        };
        if add(&mut sketches.by_hits, counts.hits) == Added::Left {
            self.worker.full.inc_by(counts.hits);
        }
        if counts.over_limit > 0 {
            add(&mut sketches.by_over_limit, counts.over_limit);
        }
    }
}

/// Writes the entries that a limit is counted by.
fn write(
    entries: &mut Entries,
    rules: &RuleSet,
    domain: &[u8],
    descriptor: &Descriptor<'_>,
    link: &Link<'_>,
) {
    let sent = &descriptor.entries[..link.entries];
    let own = rules.domain(domain).filter(|_| !link.is_override);
    let hops = own.map(|domain| lookup(domain, sent).0);
    let hops: Hops<'_> = hops.unwrap_or_default();
    entries.set(counted_by(sent, &hops, link.rule));
}

impl Sketches {
    fn new(domain: &[u8], rule: &Rule) -> Self {
        Self {
            domain: Text(domain).shown().into(),
            rule: rule.path.clone(),
            by_hits: Sketch::default(),
            by_over_limit: Sketch::default(),
        }
    }

    /// Each key once, by hash. A key that both sketches track has its counts of the one that
    /// tracked it longer.
    fn into_keys(self) -> HashMap<u64, Counted> {
        let mut keys: HashMap<u64, Counted> = HashMap::new();
        let sketches = [self.by_hits, self.by_over_limit];
        for tracked in sketches.into_iter().flat_map(Sketch::into_tracked) {
            let counts = &mut keys
                .entry(tracked.hash)
                .or_insert_with(|| Counted {
                    entries: tracked.entries.into(),
                    counts: HitCounts::default(),
                })
                .counts;
            counts.hits = counts.hits.max(tracked.counts.hits);
            counts.over_limit = counts.over_limit.max(tracked.counts.over_limit);
        }
        keys
    }
}

impl Shared {
    /// Adds what workers counted since the last time to the windows.
    fn take(&self, since: Time, now: Time) {
        // A lock for one assignment each: requests of these workers wait for it.
        let workers: Vec<_> = self.workers.lock().clone();
        let taken: Vec<Pending> =
            workers.iter().map(|worker| mem::take(&mut *worker.pending.lock())).collect();
        let mut totals = self.totals.lock();
        let mut free = SLOT_KEYS_BYTES_MAX.saturating_sub(totals.trim(since));
        for sketches in taken.into_iter().flat_map(|pending| pending.rules.into_values()) {
            let rules = totals.0.entry(sketches.domain.clone()).or_default();
            let windows = rules.entry(sketches.rule.clone()).or_default();
            for (hash, key) in sketches.into_keys() {
                if !windows.add(since, hash, &key, &mut free) {
                    self.full.inc_by(key.counts.hits);
                }
            }
        }
        totals.trim(now);
    }
}

impl Totals {
    /// Removes what no window has any more, and returns the bytes of the keys that are left.
    fn trim(&mut self, now: Time) -> usize {
        let mut bytes = 0;
        self.0.retain(|_, rules| {
            rules.retain(|_, windows| {
                let of_rule = windows.trim(now);
                bytes += of_rule;
                of_rule > 0
            });
            !rules.is_empty()
        });
        bytes
    }

    fn read(&self, selection: &Selection, window: Window, now: Time) -> Vec<RuleKeys> {
        let is_selected = |selected: &Option<String>, name: &str| {
            selected.as_ref().is_none_or(|selected| selected == name)
        };
        let domains = self.0.iter().filter(|(domain, _)| is_selected(&selection.domain, domain));
        let rules = domains.flat_map(|(domain, rules)| {
            rules.iter().map(move |(rule, windows)| (domain, rule, windows))
        });
        rules
            .filter(|(_, rule, _)| is_selected(&selection.rule, rule))
            .map(|(domain, rule, windows)| RuleKeys {
                domain: domain.clone(),
                rule: rule.clone(),
                keys: windows.sum(window, now),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::time::ManualClock;
    use crate::report::top::TOP_KEYS_MAX;
    use crate::rules::Query;
    use crate::rules::plan::{Modes, plan};
    use crate::rules::tree::tests::rules_of;

    const RULES: &str = "
domain: d
descriptors:
  - {key: user, rate_limit: &limit {unit: day, requests_per_unit: 5}}
  - {key: path, value: /a/*, share_threshold: true, rate_limit: *limit}
  - {key: session, rate_limit: *limit, metadata: {tollgate: {algorithm: concurrency, lease_by: session, lease: 30s}}}
";

    fn top_keys() -> (TopKeys, ManualClock) {
        let (clock, handle) = Clock::manual(Time::from_micros(1_700_000_000_000_000));
        (TopKeys::new(clock, &Metrics::new()), handle)
    }

    /// Records one request of one entry.
    fn record(worker: &Worker, rules: &RuleSet, entry: &str, hits: u64, over_limit: u64) {
        let query = Query::of_entries("d", [entry]).expect("an entry");
        let plan = plan(rules, &query, Modes::default(), Time::default()).expect("it is valid");
        let key = &plan.request.checks[0].key;
        let counts = HitCounts { hits, over_limit };
        let link = &plan.steps[0].links()[0];
        let domain = query.domain;
        let descriptor = &query.descriptors[0];
        let mut recording = worker.lock();
        recording.record(rules, domain, descriptor, link, key, counts);
    }

    /// Each rule with its keys, hits and hits over limit.
    async fn read(top_keys: &TopKeys, window: Window) -> Vec<String> {
        let rules = top_keys.read(Selection::default(), window).await;
        let shown = rules.into_iter().flat_map(|of_rule| {
            let rule = of_rule.rule;
            of_rule.keys.into_iter().map(move |key| {
                let entries: Vec<_> = key.entries.iter().map(|entry| entry.to_string()).collect();
                let HitCounts { hits, over_limit } = key.counts;
                format!("{rule} {} {hits} {over_limit}", entries.join(","))
            })
        });
        let mut shown: Vec<_> = shown.collect();
        shown.sort();
        shown
    }

    #[tokio::test]
    async fn workers_are_added_up_and_keys_are_those_of_counters() {
        let (top_keys, clock) = top_keys();
        let rules = rules_of(RULES);
        let workers = [top_keys.open(), top_keys.open()];
        for worker in &workers {
            record(worker, &rules, "user=ann", 2, 1);
            record(worker, &rules, "path=/a/1", 1, 0);
            record(worker, &rules, "path=/a/2", 1, 0);
            record(worker, &rules, "session=x", 1, 0);
            record(worker, &rules, "session=y", 1, 1);
        }
        record(&workers[0], &rules, "user=bob", 1, 0);
        clock.advance(READ_INTERVAL);
        let expected = [
            "d.path_/a/* path=/a/* 4 0",
            "d.session session= 4 2",
            "d.user user=ann 4 2",
            "d.user user=bob 1 0",
        ];
        assert_eq!(read(&top_keys, Window::Minute).await, expected);
        // Rules after a reload have the same paths.
        let reloaded = rules_of(RULES);
        clock.advance(READ_INTERVAL);
        record(&workers[1], &reloaded, "user=bob", 3, 0);
        let after = read(&top_keys, Window::Hour).await;
        assert_eq!(after[3], "d.user user=bob 4 0");

        let query = Query::of_entries("d", ["user=bob"]).expect("an entry");
        let plan = plan(&rules, &query, Modes::default(), Time::default()).expect("it is valid");
        let rule: Arc<str> = "d.user".into();
        let key = &plan.request.checks[0].key;
        let history = top_keys.history("d", &rule, key).await.expect("it is known");
        assert_eq!(history.last().map(|counts| counts.hits), Some(4));

        clock.advance(Span::from_secs(70));
        assert_eq!(read(&top_keys, Window::Minute).await.len(), 0);
        assert_eq!(read(&top_keys, Window::FiveMinutes).await.len(), 4);
    }

    #[tokio::test]
    async fn pending_keys_of_a_worker_are_bounded_in_bytes() {
        const RULES: usize = 260;
        let rules = (0..RULES).map(|key| {
            format!("  - {{key: k{key}, rate_limit: {{unit: day, requests_per_unit: 5}}}}\n")
        });
        let rules = rules.collect::<String>();
        let rules = rules_of(&format!("domain: d\ndescriptors:\n{rules}"));
        for (value_bytes, keys_max) in [(10, 25_000), (300, 10_200)] {
            let (top_keys, clock) = top_keys();
            let worker = top_keys.open();
            let long = "x".repeat(value_bytes);
            let mut recorded = 0;
            for rule in 0..RULES {
                // All later ones are more often than the first, whose places they take.
                for value in 0..TOP_KEYS_MAX + 3 {
                    let entry = format!("k{rule}={value:06}{long}");
                    let hits = 1 + value as u64;
                    record(&worker, &rules, &entry, hits, 0);
                    recorded += hits;
                }
            }
            let bytes = worker.pending.lock().bytes;
            let most = PENDING_KEYS_BYTES_MAX + PENDING_KEY_BYTES + 2 * (2 + 256);
            assert!((PENDING_KEYS_BYTES_MAX..most).contains(&bytes), "{bytes}");
            clock.advance(READ_INTERVAL);
            let kept = top_keys.read(Selection::default(), Window::Minute).await;
            let kept: Vec<_> = kept.into_iter().flat_map(|rule| rule.keys).collect();
            assert!((keys_max * 9 / 10..keys_max).contains(&kept.len()), "{}", kept.len());
            let hits: u64 = kept.iter().map(|key| key.counts.hits).sum();
            assert!(hits + top_keys.0.full.get() <= recorded);
            assert_eq!(worker.pending.lock().bytes, 0);
        }
    }
}
