//! What the options in force for a rule come to: the terms of its limit, what happens over the limit,
//! and which options contradict each other.

use crate::config::spec::DescriptorSpec;
use crate::config::tollgate::{OnLimitWord, ResolvedOptions, Sourced};
use crate::config::yaml::Location;
use crate::limit::{Algorithm, LimitError, Terms};
use crate::rules::{OnLimit, Provenance};

impl ResolvedOptions<'_> {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
            .map_or(Algorithm::FixedWindow, |option| *option)
    }

    fn on_limit_word(&self) -> OnLimitWord {
        self.on_limit.map_or(OnLimitWord::Reject, |option| *option)
    }

    fn queues(&self) -> bool {
        self.on_limit_word() == OnLimitWord::Queue && self.algorithm().is_bucket()
    }

    /// The number of units in the period.
    pub(crate) fn unit_multiplier(&self) -> u32 {
        self.unit_multiplier.map_or(1, |option| *option)
    }

    /// The terms of a `rate_limit` with these options.
    pub(crate) fn terms(&self, rate: Terms) -> Terms {
        Terms {
            unit_multiplier: self.unit_multiplier(),
            algorithm: self.algorithm(),
            burst: self.burst.map(|option| *option),
            buckets: self.buckets.map(|option| *option),
            over_limit_hits: self.over_limit_hits.map(|option| *option),
            max_wait: self
                .max_wait
                .filter(|_| self.queues())
                .map(|option| *option),
            lease: self.lease.map(|option| *option),
            ..rate
        }
    }

    pub(crate) fn on_limit(&self) -> OnLimit {
        match self.on_limit_word() {
            OnLimitWord::Reject => OnLimit::Reject {
                body: self.response_body.map(|body| body.0.clone()),
            },
            OnLimitWord::Queue => OnLimit::Queue,
            OnLimitWord::Degrade => OnLimit::Degrade {
                request_headers: self
                    .request_headers
                    .map(|headers| (*headers).clone())
                    .unwrap_or_default(),
            },
        }
    }

    /// Whether a block had an error that may be why options seem to be missing.
    pub(crate) fn is_faulty(&self) -> bool {
        self.layers.iter().any(|layer| layer.block.is_faulty)
    }

    /// A hint with the options that are not set in the file of the rule; `None` if all are.
    pub(crate) fn inherited(&self) -> Option<String> {
        let inherited: Vec<String> = self
            .effective()
            .iter()
            .filter(|option| !option.provenance.is_in_rules_file())
            .map(ToString::to_string)
            .collect();
        (!inherited.is_empty()).then(|| format!("set elsewhere: {}", inherited.join("; ")))
    }

    /// Where the rule itself has `on_limit: queue`.
    pub(crate) fn own_queue(&self) -> Option<Location> {
        let option = self.on_limit?;
        (option.layer.provenance == Provenance::Rule && *option == OnLimitWord::Queue)
            .then_some(option.located.location)
    }

    /// Options that contradict each other or the descriptor, and where. [`LimitError`] covers the
    /// others.
    pub(crate) fn conflicts(&self, spec: &DescriptorSpec) -> Vec<(Location, String)> {
        let (algorithm, on_limit) = (self.algorithm(), self.on_limit_word());
        let queue = OnLimitWord::Queue;
        let mut conflicts = Vec::new();
        let mut check = |conflicts_here: bool, at: Option<Location>, text: String| {
            if conflicts_here {
                conflicts.push((at.unwrap_or(spec.location), text));
            }
        };
        check(
            on_limit == queue && !algorithm.is_bucket(),
            location(self.on_limit),
            format!(
                "on_limit: queue is only for buckets, not for {algorithm}; write algorithm: leaky_bucket, or on_limit: reject"
            ),
        );
        check(
            self.queues() && self.max_wait.is_none(),
            location(self.on_limit),
            "on_limit: queue needs a max_wait, the longest that a call may be queued; write one, such as max_wait: 200ms".to_owned(),
        );
        check(
            on_limit != queue && self.max_wait.is_some(),
            location(self.max_wait),
            "max_wait is only for on_limit: queue, which is for buckets; remove it, or write on_limit: queue".to_owned(),
        );
        check(
            on_limit != OnLimitWord::Degrade && self.request_headers.is_some(),
            location(self.request_headers),
            "request_headers is only for on_limit: degrade; remove it, or write on_limit: degrade"
                .to_owned(),
        );
        check(
            on_limit != OnLimitWord::Reject && self.response_body.is_some(),
            location(self.response_body),
            format!(
                "response_body is only for on_limit: reject, not for {}; remove it, or write on_limit: reject",
                on_limit.name()
            ),
        );
        if algorithm != Algorithm::Concurrency {
            check(
                self.lease_by.is_some(),
                location(self.lease_by),
                format!(
                    "lease_by is only for concurrency, not for {algorithm}; remove it, or write algorithm: concurrency"
                ),
            );
            return conflicts;
        }
        if let Some((at, conflict)) = self.lease_by_conflict(spec) {
            check(true, at, conflict);
        }
        check(
            self.unit_multiplier.is_some(),
            location(self.unit_multiplier),
            "unit_multiplier is not for concurrency, which has no period but its lease; remove it"
                .to_owned(),
        );
        conflicts
    }

    /// The last entry of a descriptor names the holder.
    fn lease_by_conflict(&self, spec: &DescriptorSpec) -> Option<(Option<Location>, String)> {
        let key = &*spec.key.value;
        let Some(lease_by) = self.lease_by else {
            let text = format!(
                "concurrency needs lease_by, the key whose value names the holder of a slot; write lease_by: {key}, and have Envoy send an id there"
            );
            return Some((location(self.algorithm), text));
        };
        let text = if **lease_by != *key {
            let lease_by = &**lease_by;
            format!(
                "lease_by is {lease_by}, and must be the key of this descriptor, which is {key}; move the limit to a descriptor with key: {lease_by}"
            )
        } else if !spec.value.value.is_empty() || key.contains('*') {
            "a descriptor with lease_by is for every value, since each names a holder; remove its value, and any * from its key".to_owned()
        } else {
            return None;
        };
        Some((location(self.lease_by), text))
    }

    /// Where the option is that makes a limit invalid; `None` if that is in the `rate_limit`.
    pub(crate) fn location_of(&self, error: &LimitError) -> Option<Location> {
        match error {
            LimitError::PeriodZero | LimitError::PeriodTooLong { .. } => {
                location(self.unit_multiplier)
            }
            LimitError::BurstWithoutBucket(_)
            | LimitError::BurstZero
            | LimitError::BurstTooLarge { .. } => location(self.burst),
            LimitError::BucketsWithoutSlidingWindow(_) | LimitError::BucketsOutOfRange(_) => {
                location(self.buckets)
            }
            LimitError::MaxWaitWithoutBucket(_) | LimitError::MaxWaitOutOfRange(_) => {
                location(self.max_wait)
            }
            LimitError::LeaseWithoutConcurrency(_) | LimitError::LeaseOutOfRange(_) => {
                location(self.lease)
            }
            LimitError::NoLease => self.algorithm_location(),
            LimitError::CountedHolders => location(self.over_limit_hits),
            LimitError::RequestsTooLarge { .. } | LimitError::TooManyHolders(_) => None,
        }
    }

    pub(crate) fn algorithm_location(&self) -> Option<Location> {
        location(self.algorithm)
    }
}

/// The location of an option that is set in the file of the rule.
fn location<T>(option: Option<Sourced<'_, T>>) -> Option<Location> {
    option
        .filter(|option| option.layer.provenance.is_in_rules_file())
        .map(|option| option.located.location)
}
