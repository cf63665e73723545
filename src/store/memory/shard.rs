//! A shard of the memory store: a vector of entries and an index into it, so that sampling for
//! eviction and sweeping only touch the entries they examine.

use hashbrown::HashTable;

use crate::base::time::Time;
use crate::limits::algorithm::Counter;

/// The most memory of a counter, without the heap of its state: 48 bytes of entry, a quarter more
/// after the vector has grown, and two slots of the index.
pub const ENTRY_BYTES: usize = 72;
const _: () = assert!(size_of::<Entry>() == 48, "ENTRY_BYTES is derived from this size");
/// Counters that a sweep examines under one lock: a few µs.
const SWEEP_STEP: usize = 1_024;

/// Random counters that compete for eviction. The closest of 8 to its reset is among the
/// closest eighth or so of all.
const EVICTION_SAMPLES: usize = 8;

/// A keyed hash of a counter's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(pub u64, pub u64);

#[derive(Debug, Default)]
pub struct Shard {
    entries: Vec<Entry>,
    index: HashTable<u32>,
    /// The heap memory of all states.
    heap_bytes: usize,
}

#[derive(Debug)]
struct Entry {
    fingerprint: Fingerprint,
    counter: Counter,
    expires: Time,
}

/// The effect of [`Shard::set`].
#[derive(Debug, Clone, Copy)]
pub struct SetEffect {
    /// Whether a counter was added.
    pub added: bool,
    /// The number of evicted counters.
    pub evicted: u32,
}

impl Shard {
    /// The number of counters.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// A counter, by its key's hash.
    pub fn get(&self, fingerprint: Fingerprint) -> Option<&Counter> {
        self.find(fingerprint).map(|at| &self.entries[at].counter)
    }

    /// Takes a counter out; [`Shard::set`] or [`Shard::remove`] must follow.
    pub fn take(&mut self, fingerprint: Fingerprint) -> Option<Counter> {
        let at = self.find(fingerprint)?;
        let counter = std::mem::take(&mut self.entries[at].counter);
        self.heap_bytes -= counter.heap_bytes();
        Some(counter)
    }

    /// Stores a counter until `expires`, and evicts others beyond `bytes_max`.
    pub fn set(
        &mut self,
        fingerprint: Fingerprint,
        counter: Counter,
        expires: Time,
        bytes_max: usize,
    ) -> SetEffect {
        let heap_bytes = counter.heap_bytes();
        let known = self.find(fingerprint);
        if let Some(at) = known {
            self.heap_bytes -= self.entries[at].counter.heap_bytes();
        }
        let added = known.is_none();
        let mut evicted = 0;
        while self.bytes() + heap_bytes + usize::from(added) * ENTRY_BYTES > bytes_max
            && let Some(at) = self.closest_to_reset(fingerprint)
        {
            self.remove_at(at);
            evicted += 1;
        }
        self.heap_bytes += heap_bytes;
        // Evictions move entries.
        let known = if evicted == 0 { known } else { self.find(fingerprint) };
        match known {
            Some(at) => {
                let entry = &mut self.entries[at];
                entry.counter = counter;
                entry.expires = expires;
            }
            None => self.push(Entry { fingerprint, counter, expires }),
        }
        SetEffect { added, evicted }
    }

    /// Removes a counter. Returns whether there was one.
    pub fn remove(&mut self, fingerprint: Fingerprint) -> bool {
        let found = self.find(fingerprint);
        if let Some(at) = found {
            self.remove_at(at);
        }
        found.is_some()
    }

    /// Examines up to [`SWEEP_STEP`] counters from `at`, which it advances. Returns how many had
    /// expired and were removed; `None` at the end.
    pub fn sweep_step(&mut self, at: &mut usize, now: Time) -> Option<u32> {
        if *at >= self.entries.len() {
            self.shrink();
            return None;
        }
        let mut removed = 0;
        for _ in 0..SWEEP_STEP {
            match self.entries.get(*at) {
                None => break,
                // Another entry takes its index and is examined next.
                Some(entry) if entry.expires <= now => {
                    self.remove_at(*at);
                    removed += 1;
                }
                Some(_) => *at += 1,
            }
        }
        Some(removed)
    }

    fn find(&self, fingerprint: Fingerprint) -> Option<usize> {
        let found = self
            .index
            .find(fingerprint.0, |&at| self.entries[at as usize].fingerprint == fingerprint);
        found.map(|&at| at as usize)
    }

    fn bytes(&self) -> usize {
        self.entries.len() * ENTRY_BYTES + self.heap_bytes
    }

    fn push(&mut self, entry: Entry) {
        if self.entries.len() == self.entries.capacity() {
            // A quarter more rather than twice as much: the bound is in bytes.
            self.entries.reserve_exact(self.entries.len() / 4 + 16);
        }
        let at = self.entries.len();
        let hash = entry.fingerprint.0;
        self.entries.push(entry);
        let entries = &self.entries;
        self.index
            .insert_unique(hash, index_of(at), |&other| entries[other as usize].fingerprint.0);
    }

    /// The index of the counter to evict: the closest to its reset among a few random ones, never
    /// the one that is being added.
    fn closest_to_reset(&self, wanting: Fingerprint) -> Option<usize> {
        let is_other = |&at: &usize| self.entries[at].fingerprint != wanting;
        (0..EVICTION_SAMPLES.min(self.entries.len()))
            .map(|_| fastrand::usize(..self.entries.len()))
            .filter(is_other)
            .min_by_key(|&at| self.entries[at].expires)
            // Among few entries, all samples may be the one that is being added.
            .or_else(|| (0..self.entries.len()).find(is_other))
    }

    fn remove_at(&mut self, at: usize) {
        let hash = self.entries[at].fingerprint.0;
        let slot = self
            .index
            .find_entry(hash, |&slot| slot as usize == at)
            .expect("every entry is in the index");
        slot.remove();
        let last = self.entries.len() - 1;
        if at != last {
            let moved = self.entries[last].fingerprint;
            let slot = self
                .index
                .find_mut(moved.0, |&slot| slot as usize == last)
                .expect("every entry is in the index");
            *slot = index_of(at);
        }
        self.heap_bytes -= self.entries.swap_remove(at).counter.heap_bytes();
    }

    /// Frees memory after a burst of counters.
    fn shrink(&mut self) {
        if self.entries.capacity() > 64 && self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.len() * 2);
            let entries = &self.entries;
            self.index.shrink_to(entries.len() * 2, |&at| entries[at as usize].fingerprint.0);
        }
    }
}

fn index_of(at: usize) -> u32 {
    u32::try_from(at).expect("shard_bytes_max bounds entries below 2^32")
}
