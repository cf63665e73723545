//! One counter of any kind. The only file that knows all algorithms.

use crate::algorithm::Decide;
use crate::algorithm::bucket::Bucket;
use crate::algorithm::charge::Charge;
use crate::algorithm::fixed_window::FixedWindow;
use crate::check::{Hits, Verdict};
use crate::limit::{Algorithm, Limit};
use crate::time::Time;

/// The twins of all algorithms, each under the name of its file, after what they share.
pub const LUA: [&str; 3] = [include_str!("charge.lua"), FixedWindow::LUA, Bucket::LUA];

/// The state of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    /// See [`fixed_window`](crate::algorithm::fixed_window).
    FixedWindow(FixedWindow),
    /// See [`bucket`](crate::algorithm::bucket).
    Bucket(Bucket),
}

impl Counter {
    /// A counter that nobody has touched.
    pub fn untouched(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::FixedWindow => Self::FixedWindow(FixedWindow::default()),
            Algorithm::TokenBucket => Self::Bucket(Bucket::default()),
        }
    }

    /// A counter of which so much is spent at `now`, in its own units.
    pub fn spent(limit: &Limit, now: Time, spent: u64) -> Self {
        match Self::untouched(limit.algorithm()) {
            Self::FixedWindow(window) => Self::FixedWindow(window.at(limit, now).with_spent(spent)),
            Self::Bucket(bucket) => Self::Bucket(bucket.at(limit, now).with_spent(spent)),
        }
    }

    /// What is spent of it as it stands at `now`, in its own units.
    pub fn spent_at(&self, limit: &Limit, now: Time) -> u64 {
        match self {
            Self::FixedWindow(window) => window.at(limit, now).spent(),
            Self::Bucket(bucket) => bucket.at(limit, now).spent(),
        }
    }

    /// Whether it says no more than a counter that was never there, and need not be kept.
    pub fn is_untouched(&self) -> bool {
        match self {
            Self::FixedWindow(window) => window.spent() == 0,
            Self::Bucket(bucket) => bucket.spent() == 0,
        }
    }

    /// What a call does, in the counter's own units.
    pub fn charge(limit: &Limit, hits: Hits) -> Charge {
        match limit.algorithm() {
            Algorithm::FixedWindow => FixedWindow::charge(limit, hits),
            Algorithm::TokenBucket => Bucket::charge(limit, hits),
        }
    }

    /// What to tell a caller who has left the counter, which is as of now, like this.
    pub fn verdict(self, limit: &Limit, now: Time, hits: Hits, over: bool) -> Verdict {
        match self {
            Self::FixedWindow(window) => window.verdict(limit, now, hits, over),
            Self::Bucket(bucket) => bucket.verdict(limit, now, hits, over),
        }
    }

    /// Decides one call. A state of another algorithm than the limit's cannot stand at its key, which names the algorithm; should it,
    /// it counts as untouched.
    pub fn decide(self, limit: &Limit, now: Time, hits: Hits) -> (Self, Verdict) {
        match limit.algorithm() {
            Algorithm::FixedWindow => {
                let window = if let Self::FixedWindow(window) = self { window } else { FixedWindow::default() };
                let (window, verdict) = window.decide(limit, now, hits);
                (Self::FixedWindow(window), verdict)
            }
            Algorithm::TokenBucket => {
                let bucket = if let Self::Bucket(bucket) = self { bucket } else { Bucket::default() };
                let (bucket, verdict) = bucket.decide(limit, now, hits);
                (Self::Bucket(bucket), verdict)
            }
        }
    }
}
