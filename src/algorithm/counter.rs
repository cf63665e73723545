//! One counter of any kind. The only file that knows all algorithms.

use crate::algorithm::Decide;
use crate::algorithm::bucket::Bucket;
use crate::algorithm::fixed_window::FixedWindow;
use crate::check::{Hits, Verdict};
use crate::limit::{Algorithm, Limit};
use crate::time::Time;

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

    /// Whether it says no more than a counter that was never there, and need not be kept.
    pub fn is_untouched(&self) -> bool {
        match self {
            Self::FixedWindow(window) => window.is_untouched(),
            Self::Bucket(bucket) => bucket.is_untouched(),
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
