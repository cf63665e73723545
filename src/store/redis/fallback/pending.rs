//! Hits that Redis does not have, per counter, until they are written back.
//!
//! A refund first reduces the pending hits of its counter; the rest of it is a refund of its own.
//! So a counter's pending write-back is a refund, which Redis ends at zero, and then hits. That is
//! exact in whatever order they came:
//!
//! ```text
//!   in Redis 4 |  consume 2, refund 3, consume 5          pending: refund 1, hits 5
//!              |  4 -> 6 -> 3 -> 8                        4 -> 3 -> 8
//! ```
//!
//! What a refund cannot give back may be hits that another replica has not written back yet. It
//! stays pending until they are there, or the window is over.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::{Mutex, MutexGuard};

use crate::base::time::Time;
use crate::limits::Limit;
use crate::limits::algorithm::counter::Kind;
use crate::limits::check::Key;
use crate::telemetry::metric::{self, Metrics};

/// Bytes of pending hits with their keys: those of 65,000 counters with short keys.
// bound pending_bytes_max: hits are counted locally, and not written back;
// tollgate_write_back_full_total
pub const PENDING_BYTES_MAX: usize = 32 << 20;
/// Bytes of a counter, without a key that is stored on the heap.
const ENTRY_BYTES: usize = 2 * size_of::<(Key, Pending)>();
/// How many parts there are, each behind a lock of its own.
const SHARDS: usize = 64;

/// The pending hits of all counters, by their local keys.
#[derive(Debug)]
pub struct PendingHits {
    shards: Box<[Mutex<HashMap<Key, Pending>>]>,
    seed: RandomState,
    bytes: AtomicUsize,
    full: metric::Counter,
}

/// The pending hits of one counter, in the units of its local state: hits of a window or a log,
/// credits of a bucket.
#[derive(Debug, Clone, Copy)]
pub struct Pending {
    /// The whole limit, which Redis counts by.
    pub whole: Limit,
    /// This replica's share of it, which was counted by.
    pub own: Limit,
    /// To be given back first.
    pub refund: u64,
    /// To be charged then.
    pub hits: u64,
    /// Whether there were other replicas, whose hits the refund may give back.
    pub has_peers: bool,
    /// When one of them last changed.
    pub at: Time,
    /// Whether earlier changes are on their way. Later ones wait for them: a refund that overtakes
    /// hits ends at zero too early.
    is_busy: bool,
}

/// The effect of a check on a local counter, in its units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalChange {
    /// A charge.
    Hits(u64),
    /// A refund.
    Refund(u64),
}

impl PendingHits {
    /// Nothing is pending.
    pub fn new(metrics: &Metrics) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            seed: RandomState::new(),
            bytes: AtomicUsize::new(0),
            full: metrics.counter(
                "tollgate_write_back_full_total",
                "Checks decided during an outage that will not be written back to Redis, because pending hits had reached their bound \
                 (pending_bytes_max).",
            ),
        }
    }

    /// Whether nothing is pending.
    pub fn is_empty(&self) -> bool {
        self.bytes.load(Relaxed) == 0
    }

    /// Pending hits and refund of a counter, unless they are outdated.
    pub fn get(&self, key: &Key, now: Time) -> Option<Pending> {
        if self.is_empty() {
            return None;
        }
        let pending = *self.shard(key).get(key)?;
        pending.is_current(now).then_some(pending)
    }

    /// Adds a change of a counter. `none` is its entry if it has none yet, or an outdated one.
    pub fn add(&self, key: &Key, change: LocalChange, none: Pending) {
        if matches!(change, LocalChange::Hits(0) | LocalChange::Refund(0)) {
            return;
        }
        let mut shard = self.shard(key);
        if !shard.contains_key(key) {
            let bytes = entry_bytes(key);
            if self.bytes.fetch_add(bytes, Relaxed) + bytes > PENDING_BYTES_MAX {
                self.bytes.fetch_sub(bytes, Relaxed);
                self.full.inc();
                return;
            }
        }
        let pending = shard.entry(key.clone()).or_insert(none);
        if !pending.is_current(none.at) {
            *pending = Pending { is_busy: pending.is_busy, ..none };
        }
        pending.add(change);
        pending.at = none.at;
    }

    /// The keys of all counters that `belong`, less those of which something is on its way.
    pub fn keys(&self, belongs: impl Fn(&Key, &Pending) -> bool) -> Vec<Key> {
        let of_shard = |shard: &Mutex<HashMap<Key, Pending>>| -> Vec<Key> {
            let shard = shard.lock();
            let belonging =
                shard.iter().filter(|(key, pending)| !pending.is_busy && belongs(key, pending));
            belonging.map(|(key, _)| key.clone()).collect()
        };
        self.shards.iter().flat_map(of_shard).collect()
    }

    /// Takes the pending hits of a counter, to be sent. [`Self::settle`] has to follow.
    pub fn take(&self, key: &Key) -> Option<Pending> {
        let mut shard = self.shard(key);
        let pending = shard.get_mut(key).filter(|pending| !pending.is_busy)?;
        let taken = *pending;
        *pending = Pending { refund: 0, hits: 0, is_busy: true, ..taken };
        Some(taken)
    }

    /// Ends a write-back. `refund` and `hits` were not confirmed and become pending again, before
    /// later changes.
    pub fn settle(&self, key: &Key, refund: u64, hits: u64, at: Time) {
        let mut shard = self.shard(key);
        let Some(pending) = shard.get_mut(key) else {
            return;
        };
        let later = *pending;
        *pending = Pending { refund: 0, hits: 0, is_busy: false, ..later };
        if (Pending { at, ..later }).is_current(later.at) {
            pending.refund = refund;
            pending.hits = hits;
        }
        pending.add(LocalChange::Refund(later.refund));
        pending.add(LocalChange::Hits(later.hits));
        if pending.refund == 0 && pending.hits == 0 {
            shard.remove(key);
            self.bytes.fetch_sub(entry_bytes(key), Relaxed);
        }
    }

    fn shard(&self, key: &Key) -> MutexGuard<'_, HashMap<Key, Pending>> {
        self.shards[usize::try_from(self.seed.hash_one(key) % SHARDS as u64).unwrap_or(0)].lock()
    }
}

impl Pending {
    /// Nothing, for a counter of that limit and this replica's share of it.
    pub fn none(whole: &Limit, own: &Limit, has_peers: bool, now: Time) -> Self {
        Self { whole: *whole, own: *own, refund: 0, hits: 0, has_peers, at: now, is_busy: false }
    }

    /// Whether the hits still count at `now`: hits of a window while it lasts, of a log for a
    /// period after the last change, of sub-windows until the last of them has passed. A bucket
    /// leaks here as in Redis.
    pub fn is_current(&self, now: Time) -> bool {
        match Kind::of(&self.own) {
            Kind::FixedWindow | Kind::SlidingWindow => {
                self.own.window(self.at).id == self.own.window(now).id
            }
            Kind::SubWindows => {
                let last_ends = self.at.plus(self.own.period);
                now < last_ends.plus(self.own.sub_window())
            }
            Kind::SlidingLog | Kind::Concurrency => now.since(self.at) < self.own.period,
            Kind::Bucket => true,
        }
    }

    fn add(&mut self, change: LocalChange) {
        match change {
            LocalChange::Hits(hits) => self.hits = self.hits.saturating_add(hits),
            LocalChange::Refund(refund) => {
                let settled = self.hits.min(refund);
                self.hits -= settled;
                self.refund = self.refund.saturating_add(refund - settled);
            }
        }
    }
}

fn entry_bytes(key: &Key) -> usize {
    ENTRY_BYTES + key.len()
}
