//! A table of a fixed size with a few numbers for each hash. When two hashes share a slot, the
//! later one overwrites the earlier, so entries may be lost at any time.

use std::hash::{BuildHasher as _, Hash};

use hashbrown::DefaultHashBuilder;
use parking_lot::Mutex;

/// Each has its own lock.
const SHARDS: usize = 64;

/// A hash, which is not 0, and its numbers.
type Slot<const N: usize> = (u64, [u64; N]);

/// A table with N numbers for each hash.
#[derive(Debug)]
pub(crate) struct DirectMappedTable<const N: usize> {
    shards: Box<[Mutex<Vec<Slot<N>>>]>,
    seed: DefaultHashBuilder,
}

impl<const N: usize> DirectMappedTable<N> {
    pub(crate) const SLOT_BYTES: usize = size_of::<Slot<N>>();

    /// At least one slot per shard. The memory is touched when it is used.
    pub(crate) fn new(count: usize) -> Self {
        let each = count.div_ceil(SHARDS).max(1);
        Self {
            shards: (0..SHARDS).map(|_| Mutex::new(vec![(0, [0; N]); each])).collect(),
            seed: DefaultHashBuilder::default(),
        }
    }

    /// The hash of a key, with a random seed.
    pub(crate) fn hash(&self, of: impl Hash) -> u64 {
        self.seed.hash_one(of).max(1)
    }

    pub(crate) fn get(&self, hash: u64) -> Option<[u64; N]> {
        self.with(hash, |slot| (slot.0 == hash).then_some(slot.1))
    }

    /// Sets the numbers of a hash. Returns those of another hash that this overwrites.
    pub(crate) fn set(&self, hash: u64, numbers: [u64; N]) -> Option<[u64; N]> {
        self.with(hash, |slot| {
            let lost = (slot.0 != 0 && slot.0 != hash).then_some(slot.1);
            *slot = (hash, numbers);
            lost
        })
    }

    /// Replaces the numbers of a hash, which are `None` if it has none.
    pub(crate) fn update<T>(
        &self,
        hash: u64,
        change: impl FnOnce(Option<[u64; N]>) -> ([u64; N], T),
    ) -> T {
        self.with(hash, |slot| {
            let known = (slot.0 == hash).then_some(slot.1);
            let (numbers, result) = change(known);
            *slot = (hash, numbers);
            result
        })
    }

    fn with<T>(&self, hash: u64, run: impl FnOnce(&mut Slot<N>) -> T) -> T {
        let shard = &self.shards[usize::try_from(hash % SHARDS as u64).unwrap_or(0)];
        let mut slots = shard.lock();
        let len = slots.len() as u64;
        let at = usize::try_from(hash / SHARDS as u64 % len).unwrap_or(0);
        run(&mut slots[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_hash_overwrites_the_slot() {
        let slots = DirectMappedTable::new(SHARDS);
        assert_eq!(slots.get(1), None);
        assert_eq!(slots.set(1, [2, 3]), None);
        assert_eq!(slots.set(1, [4, 5]), None, "nothing is lost");
        assert_eq!(slots.get(1), Some([4, 5]));
        assert_eq!(slots.set(1 + SHARDS as u64, [6, 7]), Some([4, 5]));
        assert_eq!(slots.get(1), None);
    }
}
