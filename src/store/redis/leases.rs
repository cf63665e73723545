//! The leases of this process, by counter and limit. All workers share them.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry as Slot;
use parking_lot::Mutex;
use tokio_util::task::TaskTracker;

use crate::base::time::{Span, Time};
use crate::limits::algorithm::lease::{
    Answer, Asked, Demand, GiveBack, LeasedCounter, Settled, Take, TakeReply,
};
use crate::limits::check::{Check, CheckError, Hits, KEY_BYTES_MAX, Key, Leased, Source, Verdict};
use crate::limits::{LeaseTerms, Limit};
use crate::store::redis::direct_mapped::DirectMappedTable;
use crate::store::redis::leases::metrics::LeaseMetrics;
use crate::telemetry::metric::Metrics;

mod metrics;
mod upkeep;

/// Counters with leases: 24 MiB with short keys, 56 MiB with the longest.
// bound leases_max: further counters are exact, and so are those with longer keys;
// tollgate_leases_full_total
const LEASES_MAX: usize = 65_536;
/// Counters without leases whose demand is known: 1.5 MiB.
const DEMANDS_MAX: usize = 65_536;
/// Each has its own lock.
const SHARDS: usize = 64;

#[derive(Debug)]
pub(crate) struct Leases {
    shards: Box<[Mutex<HashTable<Entry>>]>,
    /// The demand of counters without leases.
    cold: DirectMappedTable<2>,
    entries: AtomicUsize,
    /// Whether nothing more is taken: the process drains.
    is_draining: AtomicBool,
    /// Takes in flight, which no caller waits for.
    pub(crate) tasks: TaskTracker,
    metrics: LeaseMetrics,
}

#[derive(Debug)]
struct Entry {
    hash: u64,
    key: Key,
    leased: Arc<Leased>,
    counter: LeasedCounter,
}

/// What the leases of its counter decide of a check.
#[derive(Debug)]
pub(crate) enum Ahead {
    /// Nothing: the store decides it.
    Exact,
    Decided(Verdict),
    /// All hits are reserved.
    Reserved(Asked),
    /// The store decides the hits that are not reserved.
    Ask(Asked),
}

/// Unused hits that are to be refunded.
#[derive(Debug)]
pub(crate) struct DueGiveBack {
    pub(crate) check: Check,
    pub(crate) give_back: GiveBack,
}

impl Leases {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            cold: DirectMappedTable::new(DEMANDS_MAX),
            entries: AtomicUsize::new(0),
            is_draining: AtomicBool::new(false),
            tasks: TaskTracker::new(),
            metrics: LeaseMetrics::new(metrics),
        }
    }

    /// Decides a check from its leases, or reserves hits for it. Also returns the hits to take
    /// ahead. `now` is by the server's clock; without a number of `replicas` nothing is taken.
    pub(crate) fn decide(
        &self,
        check: &Check,
        leased: &Arc<Leased>,
        replicas: Option<NonZeroU32>,
        now: Time,
    ) -> (Ahead, Option<Take>) {
        let hits = match check.hits {
            Hits::Add(hits) => hits,
            Hits::Peek => {
                let verdict = self.with(check, |counter| counter.peek(now)).flatten();
                return (verdict.map_or(Ahead::Exact, decided), None);
            }
            Hits::Refund(_) => {
                self.with(check, LeasedCounter::end_hold);
                return (Ahead::Exact, None);
            }
        };
        let replicas = replicas.filter(|_| !self.is_draining.load(Relaxed));
        let hash = self.cold.hash(&check.key);
        let known = self.with_hash(hash, check, |counter| {
            let ahead = match counter.reserve(hits, now) {
                Answer::Over(verdict) => decided(verdict),
                Answer::Ask(asked) => Ahead::Ask(asked),
                // The verdicts of all checks of its group admit it.
                Answer::Reserved(asked) if check.group != 0 => Ahead::Reserved(asked),
                Answer::Reserved(asked) => {
                    counter.settle(asked, Settled::Used, now);
                    decided(counter.verdict(check.call(), false, now))
                }
            };
            let take = replicas.and_then(|replicas| counter.wanted_take(replicas, now));
            (ahead, take)
        });
        if let Some((ahead, take)) = known {
            if let Ahead::Decided(Verdict { over: true, .. }) = ahead {
                self.metrics.held_answers.inc();
            }
            return (ahead, take);
        }
        if let Some(replicas) = replicas {
            self.warm_up(hash, check, leased, replicas, now);
        }
        (Ahead::Exact, None)
    }

    pub(crate) fn end_take(
        &self,
        check: &Check,
        take: Take,
        reply: Result<TakeReply, CheckError>,
        now: Time,
    ) {
        self.metrics.count_take(take, reply.as_ref().ok().map(|reply| reply.granted));
        self.with(check, |counter| match reply {
            Ok(reply) => counter.taken(take, reply, now),
            Err(failed) => counter.take_failed(take, failed.effect, now),
        });
    }

    /// Removes idle entries, and takes out what was unused for a lifetime: for this one, or for
    /// that of each counter. `now` gives the time of a counter's server; `None` leaves it as it is.
    pub(crate) fn sweep(
        &self,
        lifetime: Option<Span>,
        now: impl Fn(&Key, &Limit) -> Option<Time>,
    ) -> Vec<DueGiveBack> {
        let mut due = Vec::new();
        for shard in &self.shards {
            shard.lock().retain(|entry| {
                let limit = *entry.counter.limit();
                let Some(now) = now(&entry.key, &limit) else {
                    return true;
                };
                let held = entry.counter.held();
                let lifetime = lifetime.unwrap_or(entry.counter.lifetime());
                for give_back in entry.counter.give_back(lifetime, now) {
                    let hits = Hits::Refund(give_back.hits());
                    due.push(DueGiveBack {
                        check: Check::new(entry.key.clone(), limit, hits),
                        give_back,
                    });
                }
                self.metrics.count(&entry.leased, &mut entry.counter, held);
                let is_idle = entry.counter.is_idle(now);
                if is_idle {
                    self.entries.fetch_sub(1, Relaxed);
                }
                !is_idle
            });
        }
        due
    }

    /// Whether there is any lease.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.load(Relaxed) == 0
    }

    /// Takes nothing more.
    pub(crate) fn stop_taking(&self) {
        self.is_draining.store(true, Relaxed);
    }

    /// Counters may have been refunded.
    pub(crate) fn end_holds(&self) {
        self.for_each(|entry| entry.counter.end_hold());
    }

    /// The counters with these keys were deleted at this time by the server's clock.
    pub(crate) fn drop_deleted(&self, is_deleted: impl Fn(&Key) -> bool, at: Time) {
        self.for_each(|entry| {
            if is_deleted(&entry.key) {
                entry.counter.drop_taken_before(at);
            }
        });
    }

    fn for_each(&self, run: impl Fn(&mut Entry)) {
        for shard in &self.shards {
            for entry in shard.lock().iter_mut() {
                let held = entry.counter.held();
                run(entry);
                self.metrics.count(&entry.leased, &mut entry.counter, held);
            }
        }
    }

    /// Counts the demand of a counter without leases. Once it is hot it may have some.
    fn warm_up(
        &self,
        hash: u64,
        check: &Check,
        leased: &Arc<Leased>,
        replicas: NonZeroU32,
        now: Time,
    ) {
        let Some(terms) = LeaseTerms::new(&check.limit, leased.lifetime) else {
            return;
        };
        if !LeasedCounter::can_lease(&check.limit, replicas) {
            return;
        }
        let demand = self.cold.update(hash, |words| {
            let mut demand = words.map(Demand::from_words).unwrap_or_default();
            demand.add(check.hits.count(), now, terms.span());
            (demand.to_words(), demand)
        });
        if !demand.is_hot(now, terms.span()) {
            return;
        }
        let is_full = self.entries.load(Relaxed) >= LEASES_MAX;
        if is_full || check.key.len() > KEY_BYTES_MAX {
            self.metrics.full.inc();
            return;
        }
        let mut shard = self.shard(hash).lock();
        let is_same = |entry: &Entry| entry.is_of(check);
        if let Slot::Vacant(slot) = shard.entry(hash, is_same, |entry| entry.hash) {
            slot.insert(Entry {
                hash,
                key: check.key.clone(),
                leased: leased.clone(),
                counter: LeasedCounter::new(check.limit, terms, demand),
            });
            self.entries.fetch_add(1, Relaxed);
        }
    }

    /// Runs something on the leases of a check, if there are any.
    pub(crate) fn with<T>(
        &self,
        check: &Check,
        run: impl FnOnce(&mut LeasedCounter) -> T,
    ) -> Option<T> {
        self.with_hash(self.cold.hash(&check.key), check, run)
    }

    fn with_hash<T>(
        &self,
        hash: u64,
        check: &Check,
        run: impl FnOnce(&mut LeasedCounter) -> T,
    ) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let mut shard = self.shard(hash).lock();
        let entry = shard.find_mut(hash, |entry| entry.is_of(check))?;
        let held = entry.counter.held();
        let result = run(&mut entry.counter);
        self.metrics.count(&entry.leased, &mut entry.counter, held);
        Some(result)
    }

    fn shard(&self, hash: u64) -> &Mutex<HashTable<Entry>> {
        // The table itself uses the lowest and the highest bits.
        &self.shards[usize::try_from(hash >> 32).unwrap_or(0) % SHARDS]
    }
}

impl Entry {
    fn is_of(&self, check: &Check) -> bool {
        self.key == check.key && *self.counter.limit() == check.limit
    }
}

fn decided(verdict: Verdict) -> Ahead {
    Ahead::Decided(Verdict { source: Source::Lease, ..verdict })
}
