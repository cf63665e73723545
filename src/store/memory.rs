//! Counters in this process: sharded, bounded in bytes, swept.
//!
//! A counter is identified by a 128-bit hash of its key with a random seed, instead of the key:
//! entries have one size whatever clients send, a million of them take 70 MB, and clients cannot
//! construct collisions.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use siphasher::sip128::{Hasher128 as _, SipHasher13};
use smallvec::SmallVec;

use crate::base::shutdown::StoreProblem;
use crate::base::time::{Clock, Span, Time, ticks};
use crate::limits::Limit;
use crate::limits::algorithm::{Counter, decide_all_or_nothing};
use crate::limits::check::{
    Call, Check, CheckRequest, Hits, Key, Reading, Verdict, Verdicts, runs,
};
use crate::store::memory::shard::{ENTRY_BYTES, Fingerprint, Shard};
use crate::telemetry::metric::{Counter as Metric, Gauge, Metrics};

mod shard;

/// The number of shards, each with its own lock. Many more than cores, so contention is rare.
const SHARDS: usize = 64;
/// The interval of removing expired counters, which only take memory.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// What operators of several replicas must know.
pub(crate) const COUNTS_ALONE: &str = "counts in this process only";
pub(crate) const ADMITS_MORE: &str = "each replica would admit the whole limit";

/// All counters of the process.
#[derive(Debug)]
pub struct Counters {
    shards: Box<[Mutex<Shard>]>,
    shard_bytes_max: usize,
    seed: (u64, u64),
    metrics: MemoryMetrics,
}

#[derive(Debug)]
struct MemoryMetrics {
    keys: Gauge,
    evicted: Metric,
    full_logs: Metric,
    expired: Metric,
}

/// The problem, and what to do about it, where the store is memory because no setting says
/// otherwise.
pub(crate) fn not_chosen() -> StoreProblem {
    StoreProblem {
        runbook: "tollgatecountsinmemory",
        summary: COUNTS_ALONE.to_owned(),
        explanation: format!(
            "{ADMITS_MORE}; set REDIS_URL, or BACKEND_TYPE=memory for a single replica"
        ),
        is_undecided: false,
    }
}

impl Counters {
    /// With memory for at least one counter per shard. `use_of` labels the metrics.
    pub fn new(bytes_max: u64, use_of: &str, metrics: &Metrics) -> Self {
        let labels = [("use", use_of)];
        let shard_bytes = usize::try_from(bytes_max).unwrap_or(usize::MAX) / SHARDS;
        let counter = |name, help| metrics.counter_with(name, help, &labels);
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            // The index has 32 bits.
            shard_bytes_max: shard_bytes.min(u32::MAX as usize * ENTRY_BYTES),
            seed: {
                let random = RandomState::new();
                (random.hash_one(0), random.hash_one(1))
            },
            metrics: MemoryMetrics {
                keys: metrics.gauge_with(
                    "tollgate_memory_keys",
                    "Counters in memory, by what they are for.",
                    &labels,
                ),
                evicted: counter(
                    "tollgate_memory_evicted_total",
                    "Counters evicted before they expired, because memory had reached its bound \
                     (memory_bytes_max, fallback_bytes_max).",
                ),
                full_logs: full_logs(use_of, metrics),
                expired: counter(
                    "tollgate_memory_expired_total",
                    "Expired counters removed from memory.",
                ),
            },
        }
    }

    /// Decides all checks, in order; those of a group atomically.
    pub fn decide(&self, request: &CheckRequest, now: Time) -> Verdicts {
        let untouched = |index: usize| Counter::new(&request.checks[index].limit);
        self.decide_from(&request.checks, now, |index, known| {
            known.unwrap_or_else(|| untouched(index))
        })
    }

    /// Decides each check on the counter that `state` returns for its index and the stored counter,
    /// if any.
    pub fn decide_from(
        &self,
        checks: &[Check],
        now: Time,
        state: impl Fn(usize, Option<Counter>) -> Counter,
    ) -> Verdicts {
        let mut verdicts = Verdicts::with_capacity(checks.len());
        for group in runs(checks, |check| check.group) {
            let first = verdicts.len();
            let state = |index: usize, known| state(first + index, known);
            match group {
                [alone] => verdicts.push(self.decide_one(alone, now, |known| state(0, known))),
                all => verdicts.extend(self.decide_all_or_nothing(all, now, state)),
            }
        }
        verdicts
    }

    /// Reads one counter, without a change.
    pub fn peek(&self, check: &Check, now: Time) -> Reading {
        let fingerprint = self.fingerprint(&check.key);
        let shard = self.shards[shard_of(fingerprint)].lock();
        let known = shard.get(fingerprint).cloned();
        drop(shard);
        let counter = known.unwrap_or_else(|| Counter::new(&check.limit));
        let verdict_of = |hits| {
            let check = check.with_hits(hits);
            counter.clone().decide(&check.limit, now, check.call()).1
        };
        let books = check.book_ahead > Span::ZERO;
        Reading::new(verdict_of(Hits::Peek), books.then(|| verdict_of(Hits::Add(1))))
    }

    /// Removes all counters.
    pub fn clear(&self) {
        for shard in &self.shards {
            let removed = std::mem::take(&mut *shard.lock()).len();
            self.metrics.keys.sub(i64::try_from(removed).unwrap_or(0));
        }
    }

    /// Gives the hits of a refund back, and what is spent over the limit.
    pub fn grant(&self, refund: &Check, now: Time) {
        self.change(refund, now, |known| {
            let counter = known.unwrap_or_else(|| Counter::new(&refund.limit));
            counter.grant(&refund.limit, now, refund.call())
        });
    }

    /// Removes one counter.
    pub fn forget(&self, key: &Key) {
        let fingerprint = self.fingerprint(key);
        let removed = self.shards[shard_of(fingerprint)].lock().remove(fingerprint);
        self.metrics.keys.sub(removed.into());
    }

    /// The spent units of the counter at `now`.
    pub fn spent_at(&self, key: &Key, limit: &Limit, now: Time) -> u64 {
        let fingerprint = self.fingerprint(key);
        self.shards[shard_of(fingerprint)]
            .lock()
            .get(fingerprint)
            .map_or(0, |counter| counter.spent_at(limit, now))
    }

    /// Removes expired counters periodically; never returns.
    pub async fn sweep_on(&self, clock: Clock) {
        let mut interval = ticks(SWEEP_INTERVAL);
        loop {
            interval.tick().await;
            self.sweep(clock.now());
        }
    }

    /// Removes expired counters.
    pub fn sweep(&self, now: Time) {
        for shard in &self.shards {
            let mut at = 0;
            while let Some(removed) = shard.lock().sweep_step(&mut at, now) {
                self.metrics.expired.inc_by(removed.into());
                self.metrics.keys.sub(removed.into());
            }
        }
    }

    /// The number of counters.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// The number of counters that were thrown away before their time.
    pub(crate) fn evicted(&self) -> u64 {
        self.metrics.evicted.get()
    }

    /// Whether there are no counters.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Decides one check.
    pub(crate) fn decide_check(&self, check: &Check, now: Time) -> Verdict {
        self.decide_one(check, now, |known| known.unwrap_or_else(|| Counter::new(&check.limit)))
    }

    fn decide_one(
        &self,
        check: &Check,
        now: Time,
        state: impl Fn(Option<Counter>) -> Counter,
    ) -> Verdict {
        self.change(check, now, |known| state(known).decide(&check.limit, now, check.call()))
    }

    fn change(
        &self,
        check: &Check,
        now: Time,
        change: impl FnOnce(Option<Counter>) -> (Counter, Verdict),
    ) -> Verdict {
        let fingerprint = self.fingerprint(&check.key);
        let mut shard = self.shards[shard_of(fingerprint)].lock();
        let (after, verdict) = change(shard.take(fingerprint));
        let expires = now.plus(verdict.reset_after);
        self.keep(&mut shard, fingerprint, after, expires);
        verdict
    }

    fn decide_all_or_nothing(
        &self,
        checks: &[Check],
        now: Time,
        state: impl Fn(usize, Option<Counter>) -> Counter,
    ) -> Verdicts {
        // Each counter once, with the index of its first check.
        let mut distinct: SmallVec<[(Fingerprint, usize); 4]> = SmallVec::new();
        let mut slots: SmallVec<[usize; 4]> = SmallVec::new();
        for (index, check) in checks.iter().enumerate() {
            let fingerprint = self.fingerprint(&check.key);
            let known = distinct.iter().position(|(known, _)| *known == fingerprint);
            slots.push(known.unwrap_or_else(|| {
                distinct.push((fingerprint, index));
                distinct.len() - 1
            }));
        }
        let mut shards = self.lock_all(distinct.iter().map(|(fingerprint, _)| *fingerprint));
        let counters = distinct.iter().map(|&(fingerprint, first)| {
            let known = held(&mut shards, fingerprint).take(fingerprint);
            state(first, known)
        });
        let mut counters: SmallVec<[Counter; 4]> = counters.collect();

        let verdicts = decide_all_or_nothing(checks, &slots, &mut counters, now);

        for ((fingerprint, first), counter) in distinct.into_iter().zip(counters) {
            let (counter, look) = counter.decide(&checks[first].limit, now, Call::PEEK);
            let shard = held(&mut shards, fingerprint);
            let expires = now.plus(look.reset_after);
            self.keep(shard, fingerprint, counter, expires);
        }
        verdicts
    }

    /// Locks the shards of these counters, each once and in ascending order, which excludes
    /// deadlocks.
    fn lock_all(
        &self,
        fingerprints: impl Iterator<Item = Fingerprint>,
    ) -> SmallVec<[(usize, MutexGuard<'_, Shard>); 4]> {
        let mut wanted: SmallVec<[usize; 4]> = fingerprints.map(shard_of).collect();
        wanted.sort_unstable();
        wanted.dedup();
        wanted.into_iter().map(|index| (index, self.shards[index].lock())).collect()
    }

    fn keep(&self, shard: &mut Shard, fingerprint: Fingerprint, counter: Counter, expires: Time) {
        if counter.is_new() {
            self.metrics.keys.sub(i64::from(shard.remove(fingerprint)));
            return;
        }
        self.metrics.full_logs.inc_by(u64::from(counter.is_full()));
        let change = shard.set(fingerprint, counter, expires, self.shard_bytes_max);
        self.metrics.keys.add(i64::from(change.added) - i64::from(change.evicted));
        self.metrics.evicted.inc_by(u64::from(change.evicted));
    }

    fn fingerprint(&self, key: &Key) -> Fingerprint {
        let mut hasher = SipHasher13::new_with_keys(self.seed.0, self.seed.1);
        hasher.write(key.as_bytes());
        let hash = hasher.finish128();
        Fingerprint(hash.h1, hash.h2)
    }
}

fn shard_of(fingerprint: Fingerprint) -> usize {
    usize::try_from(fingerprint.1 % SHARDS as u64).unwrap_or(0)
}

fn held<'s>(
    shards: &'s mut [(usize, MutexGuard<'_, Shard>)],
    fingerprint: Fingerprint,
) -> &'s mut Shard {
    let wanted = shard_of(fingerprint);
    let (_, shard) = shards
        .iter_mut()
        .find(|(index, _)| *index == wanted)
        .expect("all shards of the request are locked");
    shard
}

/// Counts calls to full sliding logs. `user` is what the counters are for.
pub(crate) fn full_logs(user: &str, metrics: &Metrics) -> Metric {
    metrics.counter_with(
        "tollgate_log_entries_full_total",
        "Calls to a sliding_log with as many entries as it may have (log_entries_max), so that their hits went to the newest one.",
        &[("use", user)],
    )
}
