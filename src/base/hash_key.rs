//! The key of the hashes that replace values: the same on every replica that shares it.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::sync::Arc;

use arc_swap::ArcSwap;
use sha2::{Digest as _, Sha256};

use crate::base::parse::Secret;

/// A key that may be replaced. Clones share it.
#[derive(Debug, Clone)]
pub struct HashKey(Arc<ArcSwap<u128>>);

impl HashKey {
    /// From the system's source of randomness.
    pub(crate) fn random() -> Self {
        let random = RandomState::new();
        let [high, low] = [0, 1].map(|half| u128::from(random.hash_one(half)));
        Self::new(high << 64 | low)
    }

    /// The key that a setting determines.
    pub(crate) fn of(secret: &Secret) -> Self {
        Self::new(digest(secret.reveal().as_bytes()))
    }

    fn new(key: u128) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(key)))
    }

    pub(crate) fn get(&self) -> u128 {
        **self.0.load()
    }

    pub(crate) fn set(&self, key: u128) {
        self.0.store(Arc::new(key));
    }

    /// Follows a setting that has changed.
    pub(crate) fn follow(&self, secret: &Secret) {
        self.set(digest(secret.reveal().as_bytes()));
    }
}

/// The first half of the SHA-256 of these bytes.
pub(crate) fn digest(bytes: &[u8]) -> u128 {
    let digest = Sha256::digest(bytes);
    u128::from_be_bytes(*digest.first_chunk().expect("it has 32 bytes"))
}
