//! A table of a fixed size that remembers a few numbers for a hash. When two hashes fall into one
//! slot, the later one has it: whatever is kept here may be forgotten at any time.

use std::hash::{BuildHasher as _, Hash, RandomState};

use parking_lot::Mutex;

/// How many parts the slots are in, each behind a lock of its own.
const SHARDS: usize = 64;

/// A hash, which is not 0, and what is remembered for it.
type Slot<const N: usize> = (u64, [u64; N]);

/// The table, of N numbers for each hash.
#[derive(Debug)]
pub struct DirectMappedTable<const N: usize> {
    shards: Box<[Mutex<Vec<Slot<N>>>]>,
    seed: RandomState,
}

impl<const N: usize> DirectMappedTable<N> {
    /// Size of one slot in bytes.
    pub const SLOT_BYTES: usize = size_of::<Slot<N>>();

    /// Room for so many; at least one a shard. Memory is touched when it is used.
    pub fn new(count: usize) -> Self {
        let each = count.div_ceil(SHARDS).max(1);
        Self {
            shards: (0..SHARDS)
                .map(|_| Mutex::new(vec![(0, [0; N]); each]))
                .collect(),
            seed: RandomState::new(),
        }
    }

    /// The hash of something in this table, which nobody outside can foresee.
    pub fn hash(&self, of: impl Hash) -> u64 {
        self.seed.hash_one(of).max(1)
    }

    /// What is remembered for that hash.
    pub fn get(&self, hash: u64) -> Option<[u64; N]> {
        self.with(hash, |slot| (slot.0 == hash).then_some(slot.1))
    }

    /// Remembers, and gives what another hash loses by it.
    pub fn set(&self, hash: u64, numbers: [u64; N]) -> Option<[u64; N]> {
        self.with(hash, |slot| {
            let lost = (slot.0 != 0 && slot.0 != hash).then_some(slot.1);
            *slot = (hash, numbers);
            lost
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
    fn the_later_one_has_the_slot() {
        let slots = DirectMappedTable::new(SHARDS);
        assert_eq!(slots.get(1), None);
        assert_eq!(slots.set(1, [2, 3]), None);
        assert_eq!(slots.set(1, [4, 5]), None, "it is its own slot");
        assert_eq!(slots.get(1), Some([4, 5]));
        assert_eq!(slots.set(1 + SHARDS as u64, [6, 7]), Some([4, 5]));
        assert_eq!(slots.get(1), None);
    }
}
