//! What a rule's own block and its domain's defaults come to together.
//!
//! A word of the rule's own that does not fit is told. A default that does not fit is meant for other rules of the domain.

use crate::config::Located;
use crate::config::schema::DescriptorSpec;
use crate::config::tollgate::{Block, OnLimitWord, RequestHeaders};
use crate::config::yaml::Spot;
use crate::limit::{Algorithm, LimitError, RefusedHits, Terms};
use crate::rules::{OnLimit, OnStoreError};
use crate::time::Span;

/// The words that count for a rule, each its own or its domain's.
#[derive(Debug, Default)]
pub struct Chosen<'b> {
    own: Option<&'b Block>,
    defaults: Option<&'b Block>,
    algorithm: Option<&'b Located<Algorithm>>,
    unit_multiplier: Option<&'b Located<u32>>,
    burst: Option<&'b Located<u32>>,
    buckets: Option<&'b Located<u32>>,
    refused_hits: Option<&'b Located<RefusedHits>>,
    on_limit: Option<&'b Located<OnLimitWord>>,
    max_wait: Option<&'b Located<Span>>,
    request_headers: Option<&'b Located<RequestHeaders>>,
    response_body: Option<&'b Located<Box<str>>>,
    on_store_error: Option<OnStoreError>,
    lease_by: Option<&'b Located<Box<str>>>,
    lease: Option<&'b Located<Span>>,
}

/// Words that do not go together. What a [`LimitError`] says is not said here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// A queue in front of what has no slots.
    #[error("on_limit: queue is only for buckets, not for {0}; write algorithm: leaky_bucket, or on_limit: reject")]
    QueueWithoutBucket(Algorithm),
    /// A queue without an end.
    #[error("on_limit: queue needs a max_wait, the longest that a call may be held back; write one, such as max_wait: 200ms")]
    QueueWithoutMaxWait,
    /// A wait without a queue.
    #[error("max_wait is only for on_limit: queue, which is for buckets; remove it, or write on_limit: queue")]
    MaxWaitWithoutQueue,
    /// Headers that would never be sent.
    #[error("request_headers is only for on_limit: degrade; remove it, or write on_limit: degrade")]
    HeadersWithoutDegrade,
    /// A body that would never be sent.
    #[error("response_body is only for on_limit: reject, not for {}; remove it, or write on_limit: reject", .0.name())]
    BodyWithoutReject(OnLimitWord),
    /// Holders of what is not held.
    #[error("lease_by is only for concurrency, not for {0}; remove it, or write algorithm: concurrency")]
    LeaseByWithoutConcurrency(Algorithm),
    /// Nobody could give anything back.
    #[error(
        "concurrency needs lease_by, the key whose value names who holds a place; write lease_by: {key}, and have Envoy send an id there"
    )]
    NoLeaseBy {
        /// Of the rule's descriptor.
        key: String,
    },
    /// The holder's name stands in the last entry.
    #[error(
        "lease_by is {lease_by}, and must be the key of this descriptor, which is {key}; move the limit to a descriptor with key: {lease_by}"
    )]
    LeaseByOfOther {
        /// As given.
        lease_by: Box<str>,
        /// Of the rule's descriptor.
        key: String,
    },
    /// One holder, or a few.
    #[error("a descriptor with lease_by is for every value, since each names a holder; remove its value, and any * from its key")]
    LeaseByOfSome,
    /// A period of what has none.
    #[error("unit_multiplier is not for concurrency, which has no period but its lease; remove it")]
    PeriodOfConcurrency,
}

impl<'b> Chosen<'b> {
    /// Chooses.
    pub fn new(own: Option<&'b Block>, defaults: Option<&'b Block>) -> Self {
        let algorithm = either(own, defaults, |block| block.algorithm.as_ref());
        let first = Self { own, defaults, algorithm, ..Self::default() };
        let (is, is_bucket) = (|other| first.algorithm() == other, first.algorithm().is_bucket());

        let can_queue = |on_limit: &&Located<OnLimitWord>| is_bucket || on_limit.value != OnLimitWord::Queue;
        let on_limit = defaults.and_then(|block| block.on_limit.as_ref()).filter(can_queue);
        let on_limit = own.and_then(|block| block.on_limit.as_ref()).or(on_limit);
        let then = |other| on_limit.map_or(OnLimitWord::Reject, |on_limit| on_limit.value) == other;

        let for_periods = defaults.filter(|_| !is(Algorithm::Concurrency));
        let for_buckets = defaults.filter(|_| is_bucket);
        let for_sliding_windows = defaults.filter(|_| is(Algorithm::SlidingWindow));
        let for_concurrency = defaults.filter(|_| is(Algorithm::Concurrency));
        Self {
            unit_multiplier: either(own, for_periods, |block| block.unit_multiplier.as_ref()),
            burst: either(own, for_buckets, |block| block.burst.as_ref()),
            buckets: either(own, for_sliding_windows, |block| block.buckets.as_ref()),
            refused_hits: either(own, for_periods, |block| block.refused_hits.as_ref()),
            on_limit,
            max_wait: either(own, defaults.filter(|_| then(OnLimitWord::Queue)), |block| block.max_wait.as_ref()),
            request_headers: either(own, defaults.filter(|_| then(OnLimitWord::Degrade)), |block| block.request_headers.as_ref()),
            response_body: either(own, defaults.filter(|_| then(OnLimitWord::Reject)), |block| block.response_body.as_ref()),
            on_store_error: own.and_then(|block| block.on_store_error).or_else(|| defaults?.on_store_error),
            lease_by: either(own, for_concurrency, |block| block.lease_by.as_ref()),
            lease: either(own, for_concurrency, |block| block.lease.as_ref()),
            ..first
        }
    }

    fn algorithm(&self) -> Algorithm {
        self.algorithm.map_or(Algorithm::FixedWindow, |algorithm| algorithm.value)
    }

    fn on_limit_word(&self) -> OnLimitWord {
        self.on_limit.map_or(OnLimitWord::Reject, |on_limit| on_limit.value)
    }

    fn queues(&self) -> bool {
        self.on_limit_word() == OnLimitWord::Queue && self.algorithm().is_bucket()
    }

    /// How many units make the period.
    pub fn unit_multiplier(&self) -> u32 {
        self.unit_multiplier.map_or(1, |multiplier| multiplier.value)
    }

    /// What is said of a limit, on top of what its rate_limit says.
    pub fn terms(&self, rate: Terms) -> Terms {
        Terms {
            unit_multiplier: self.unit_multiplier(),
            algorithm: self.algorithm(),
            burst: self.burst.map(|burst| burst.value),
            buckets: self.buckets.map(|buckets| buckets.value),
            refused_hits: self.refused_hits.map(|refused_hits| refused_hits.value),
            max_wait: self.max_wait.filter(|_| self.queues()).map(|max_wait| max_wait.value),
            lease: self.lease.map(|lease| lease.value),
            ..rate
        }
    }

    /// What happens beyond the limit.
    pub fn on_limit(&self) -> OnLimit {
        match self.on_limit_word() {
            OnLimitWord::Reject => OnLimit::Reject { body: self.response_body.map(|body| body.value.clone()) },
            OnLimitWord::Queue => OnLimit::Queue,
            OnLimitWord::Degrade => {
                OnLimit::Degrade { request_headers: self.request_headers.map(|headers| headers.value.clone()).unwrap_or_default() }
            }
        }
    }

    /// What is answered while no store can say.
    pub fn on_store_error(&self) -> Option<OnStoreError> {
        self.on_store_error
    }

    /// Whether something was told already that may be why words seem to be missing.
    pub fn is_faulty(&self) -> bool {
        self.own.into_iter().chain(self.defaults).any(|block| block.is_faulty)
    }

    /// Where the rule itself says that calls queue.
    pub fn own_queue(&self) -> Option<Spot> {
        let own = self.own?.on_limit.as_ref()?;
        (own.value == OnLimitWord::Queue).then_some(own.spot)
    }

    /// Where the algorithm is said.
    pub fn algorithm_spot(&self) -> Option<Spot> {
        spot(self.algorithm)
    }

    /// All that does not go together, and where.
    pub fn misfits(&self, spec: &DescriptorSpec) -> Vec<(Spot, Misfit)> {
        let (algorithm, on_limit) = (self.algorithm(), self.on_limit_word());
        let mut misfits = Vec::new();
        let mut add = |place: Option<Spot>, misfit: Misfit| misfits.push((place.unwrap_or(spec.spot), misfit));
        if on_limit == OnLimitWord::Queue && !algorithm.is_bucket() {
            add(spot(self.on_limit), Misfit::QueueWithoutBucket(algorithm));
        }
        if self.queues() && self.max_wait.is_none() {
            add(spot(self.on_limit), Misfit::QueueWithoutMaxWait);
        }
        if on_limit != OnLimitWord::Queue && self.max_wait.is_some() {
            add(spot(self.max_wait), Misfit::MaxWaitWithoutQueue);
        }
        if on_limit != OnLimitWord::Degrade && self.request_headers.is_some() {
            add(spot(self.request_headers), Misfit::HeadersWithoutDegrade);
        }
        if on_limit != OnLimitWord::Reject && self.response_body.is_some() {
            add(spot(self.response_body), Misfit::BodyWithoutReject(on_limit));
        }
        if algorithm != Algorithm::Concurrency {
            if self.lease_by.is_some() {
                add(spot(self.lease_by), Misfit::LeaseByWithoutConcurrency(algorithm));
            }
            return misfits;
        }
        let key = &spec.key.value;
        match self.lease_by {
            None => add(spot(self.algorithm), Misfit::NoLeaseBy { key: key.clone() }),
            Some(lease_by) if *lease_by.value != **key => {
                add(Some(lease_by.spot), Misfit::LeaseByOfOther { lease_by: lease_by.value.clone(), key: key.clone() });
            }
            Some(lease_by) if !spec.value.value.is_empty() || key.contains('*') => add(Some(lease_by.spot), Misfit::LeaseByOfSome),
            Some(_) => {}
        }
        if self.unit_multiplier.is_some() {
            add(spot(self.unit_multiplier), Misfit::PeriodOfConcurrency);
        }
        misfits
    }

    /// Where that stands which makes a limit one that cannot be counted; `None` if it is in the rate_limit.
    pub fn spot_of(&self, error: &LimitError) -> Option<Spot> {
        match error {
            LimitError::PeriodZero | LimitError::PeriodTooLong { .. } => spot(self.unit_multiplier),
            LimitError::BurstWithoutBucket(_) | LimitError::BurstZero | LimitError::BurstTooLarge { .. } => spot(self.burst),
            LimitError::BucketsWithoutSlidingWindow(_) | LimitError::BucketsOutOfRange(_) => spot(self.buckets),
            LimitError::MaxWaitWithoutBucket(_) | LimitError::MaxWaitOutOfRange(_) => spot(self.max_wait),
            LimitError::LeaseWithoutConcurrency(_) | LimitError::LeaseOutOfRange(_) => spot(self.lease),
            LimitError::NoLease => spot(self.algorithm),
            LimitError::CountedHolders => spot(self.refused_hits),
            LimitError::RequestsTooLarge { .. } | LimitError::TooManyHolders(_) => None,
        }
    }
}

/// The rule's own word, else its domain's.
fn either<'b, T>(
    own: Option<&'b Block>,
    defaults: Option<&'b Block>,
    word: impl Fn(&'b Block) -> Option<&'b Located<T>>,
) -> Option<&'b Located<T>> {
    own.and_then(&word).or_else(|| defaults.and_then(&word))
}

fn spot<T>(located: Option<&Located<T>>) -> Option<Spot> {
    located.map(|located| located.spot)
}
