//! The share of a replica in a limit while the store is unavailable.

use std::num::NonZeroU32;

/// The share of one of several replicas that cannot see each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    replicas: NonZeroU32,
    /// From 0, if known.
    rank: Option<u32>,
}

impl Share {
    /// The share of a replica whose rank is unknown.
    pub const fn one_of(replicas: NonZeroU32) -> Self {
        Self { replicas, rank: None }
    }

    /// The share of the replica with this rank, from 0.
    pub const fn ranked(replicas: NonZeroU32, rank: u32) -> Self {
        Self { replicas, rank: Some(rank) }
    }

    /// The number of replicas.
    pub const fn replicas(self) -> NonZeroU32 {
        self.replicas
    }

    /// The part of a quota. The parts of all ranks add up to the whole; without a rank it is
    /// rounded down.
    pub fn of_allowed(self, whole: u64) -> u64 {
        let replicas = u64::from(self.replicas.get());
        let has_one_more = self.rank.is_some_and(|rank| u64::from(rank) < whole % replicas);
        whole / replicas + u64::from(has_one_more)
    }

    /// The part of used quota. The parts of all ranks add up to the whole; without a rank it is
    /// rounded up.
    pub fn of_used(self, whole: u64) -> u64 {
        match self.rank {
            None => whole.div_ceil(self.replicas.get().into()),
            Some(_) => self.of_allowed(whole),
        }
    }
}
