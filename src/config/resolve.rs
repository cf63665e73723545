//! What a rule's own block, its domain's defaults, the overlay and DEFAULT_ALGORITHM come to
//! together.
//!
//! A word of the rule's own that does not fit is told. Any other that does not fit is meant for
//! other rules.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::config::Located;
use crate::config::schema::DescriptorSpec;
use crate::config::tollgate::{Block, OnLimitWord, RequestHeaders};
use crate::config::yaml::Location;
use crate::limit::{Algorithm, LimitError, OverLimitHits, Terms};
use crate::rules::{EffectiveOption, OnLimit, OnStoreError, Origin, Provenance};
use crate::time::Span;

/// A block that has a say in what a rule means.
#[derive(Debug, Clone, Copy)]
pub struct Layer<'b> {
    /// What it says.
    pub block: &'b Block,
    /// Who says so.
    pub by: Provenance,
    /// In which file.
    pub file: &'b Arc<str>,
}

/// The blocks that have a say, the strongest first.
pub type Layers<'b> = SmallVec<[Layer<'b>; 4]>;

/// A word that counts, and who says it.
#[derive(Debug)]
struct Sourced<'b, T> {
    located: &'b Located<T>,
    layer: Layer<'b>,
}

/// The words that count for a rule.
#[derive(Debug, Default)]
pub struct ResolvedOptions<'b> {
    layers: Layers<'b>,
    algorithm: Option<Sourced<'b, Algorithm>>,
    unit_multiplier: Option<Sourced<'b, u32>>,
    burst: Option<Sourced<'b, u32>>,
    buckets: Option<Sourced<'b, u32>>,
    over_limit_hits: Option<Sourced<'b, OverLimitHits>>,
    on_limit: Option<Sourced<'b, OnLimitWord>>,
    max_wait: Option<Sourced<'b, Span>>,
    request_headers: Option<Sourced<'b, RequestHeaders>>,
    response_body: Option<Sourced<'b, Box<str>>>,
    on_store_error: Option<Sourced<'b, OnStoreError>>,
    lease_by: Option<Sourced<'b, Box<str>>>,
    lease: Option<Sourced<'b, Span>>,
}

/// Words that do not go together. What a [`LimitError`] says is not said here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionConflict {
    /// A queue in front of what has no slots.
    #[error(
        "on_limit: queue is only for buckets, not for {0}; write algorithm: leaky_bucket, or on_limit: reject"
    )]
    QueueWithoutBucket(Algorithm),
    /// A queue without an end.
    #[error(
        "on_limit: queue needs a max_wait, the longest that a call may be held back; write one, such as max_wait: 200ms"
    )]
    QueueWithoutMaxWait,
    /// A wait without a queue.
    #[error(
        "max_wait is only for on_limit: queue, which is for buckets; remove it, or write on_limit: queue"
    )]
    MaxWaitWithoutQueue,
    /// Headers that would never be sent.
    #[error("request_headers is only for on_limit: degrade; remove it, or write on_limit: degrade")]
    HeadersWithoutDegrade,
    /// A body that would never be sent.
    #[error("response_body is only for on_limit: reject, not for {}; remove it, or write on_limit: reject", .0.name())]
    BodyWithoutReject(OnLimitWord),
    /// Holders of what is not held.
    #[error(
        "lease_by is only for concurrency, not for {0}; remove it, or write algorithm: concurrency"
    )]
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
    #[error(
        "a descriptor with lease_by is for every value, since each names a holder; remove its value, and any * from its key"
    )]
    LeaseByOfSome,
    /// A period of what has none.
    #[error("unit_multiplier is not for concurrency, which has no period but its lease; remove it")]
    PeriodOfConcurrency,
}

impl<'b> ResolvedOptions<'b> {
    /// Chooses, of layers of which the strongest comes first.
    pub fn new(layers: Layers<'b>) -> Self {
        let any = |_: Provenance| true;
        let algorithm = strongest(&layers, any, |block| block.algorithm.as_ref());
        let first = Self {
            layers,
            algorithm,
            ..Self::default()
        };
        let (is, is_bucket) = (
            |other| first.algorithm() == other,
            first.algorithm().is_bucket(),
        );
        // A rule's own word is taken whether it fits or not.
        let if_fits = |fits: bool| move |by: Provenance| fits || by == Provenance::Rule;

        let on_limits = first.layers.iter().filter_map(|&layer| {
            Some(Sourced {
                located: layer.block.on_limit.as_ref()?,
                layer,
            })
        });
        let can_be = |word: &Sourced<'_, OnLimitWord>| {
            is_bucket
                || word.located.value != OnLimitWord::Queue
                || word.layer.by == Provenance::Rule
        };
        let on_limit = on_limits.into_iter().find(can_be);
        let then = |other| value_of(on_limit).unwrap_or(OnLimitWord::Reject) == other;
        let layers = &first.layers;
        Self {
            unit_multiplier: strongest(layers, if_fits(!is(Algorithm::Concurrency)), |block| {
                block.unit_multiplier.as_ref()
            }),
            burst: strongest(layers, if_fits(is_bucket), |block| block.burst.as_ref()),
            buckets: strongest(layers, if_fits(is(Algorithm::SlidingWindow)), |block| {
                block.buckets.as_ref()
            }),
            over_limit_hits: strongest(layers, if_fits(!is(Algorithm::Concurrency)), |block| {
                block.over_limit_hits.as_ref()
            }),
            on_limit,
            max_wait: strongest(layers, if_fits(then(OnLimitWord::Queue)), |block| {
                block.max_wait.as_ref()
            }),
            request_headers: strongest(layers, if_fits(then(OnLimitWord::Degrade)), |block| {
                block.request_headers.as_ref()
            }),
            response_body: strongest(layers, if_fits(then(OnLimitWord::Reject)), |block| {
                block.response_body.as_ref()
            }),
            on_store_error: strongest(layers, any, |block| block.on_store_error.as_ref()),
            lease_by: strongest(layers, if_fits(is(Algorithm::Concurrency)), |block| {
                block.lease_by.as_ref()
            }),
            lease: strongest(layers, if_fits(is(Algorithm::Concurrency)), |block| {
                block.lease.as_ref()
            }),
            ..first
        }
    }

    fn algorithm(&self) -> Algorithm {
        value_of(self.algorithm).unwrap_or(Algorithm::FixedWindow)
    }

    fn on_limit_word(&self) -> OnLimitWord {
        value_of(self.on_limit).unwrap_or(OnLimitWord::Reject)
    }

    fn queues(&self) -> bool {
        self.on_limit_word() == OnLimitWord::Queue && self.algorithm().is_bucket()
    }

    /// Every word that counts, and who says it.
    pub fn effective(&self) -> Box<[EffectiveOption]> {
        let mut choices = Vec::new();
        choose(&mut choices, "algorithm", self.algorithm, |algorithm| {
            algorithm.name().into()
        });
        choose(
            &mut choices,
            "unit_multiplier",
            self.unit_multiplier,
            ToString::to_string,
        );
        choose(&mut choices, "burst", self.burst, ToString::to_string);
        choose(&mut choices, "buckets", self.buckets, ToString::to_string);
        choose(
            &mut choices,
            "over_limit_hits",
            self.over_limit_hits,
            |over_limit_hits| over_limit_hits.name().into(),
        );
        choose(&mut choices, "on_limit", self.on_limit, |on_limit| {
            on_limit.name().into()
        });
        choose(&mut choices, "max_wait", self.max_wait, ToString::to_string);
        choose(
            &mut choices,
            "request_headers",
            self.request_headers,
            |headers| {
                headers
                    .iter()
                    .map(|(name, value)| format!("{name}: {value}"))
                    .collect::<Vec<_>>()
                    .join(", ")
            },
        );
        choose(&mut choices, "response_body", self.response_body, |body| {
            format!("{body:?}")
        });
        choose(
            &mut choices,
            "on_store_error",
            self.on_store_error,
            |policy| policy.name().into(),
        );
        choose(&mut choices, "lease_by", self.lease_by, ToString::to_string);
        choose(&mut choices, "lease", self.lease, ToString::to_string);
        choices.into()
    }

    /// How many units make the period.
    pub fn unit_multiplier(&self) -> u32 {
        value_of(self.unit_multiplier).unwrap_or(1)
    }

    /// What is said of a limit, on top of what its rate_limit says.
    pub fn terms(&self, rate: Terms) -> Terms {
        Terms {
            unit_multiplier: self.unit_multiplier(),
            algorithm: self.algorithm(),
            burst: value_of(self.burst),
            buckets: value_of(self.buckets),
            over_limit_hits: value_of(self.over_limit_hits),
            max_wait: value_of(self.max_wait).filter(|_| self.queues()),
            lease: value_of(self.lease),
            ..rate
        }
    }

    /// What happens beyond the limit.
    pub fn on_limit(&self) -> OnLimit {
        match self.on_limit_word() {
            OnLimitWord::Reject => OnLimit::Reject {
                body: self.response_body.map(|body| body.located.value.clone()),
            },
            OnLimitWord::Queue => OnLimit::Queue,
            OnLimitWord::Degrade => OnLimit::Degrade {
                request_headers: self
                    .request_headers
                    .map(|headers| headers.located.value.clone())
                    .unwrap_or_default(),
            },
        }
    }

    /// What is answered while no store can say.
    pub fn on_store_error(&self) -> Option<OnStoreError> {
        value_of(self.on_store_error)
    }

    /// Whether something was told already that may be why words seem to be missing.
    pub fn is_faulty(&self) -> bool {
        self.layers.iter().any(|layer| layer.block.is_faulty)
    }

    /// What counts here and does not stand in the file of the rule, for whoever wonders what is
    /// wrong with it; `None` if all does.
    pub fn inherited(&self) -> Option<String> {
        let choices = self.effective();
        let elsewhere: Vec<String> = choices
            .iter()
            .filter(|choice| !choice.by.is_in_rules_file())
            .map(ToString::to_string)
            .collect();
        (!elsewhere.is_empty()).then(|| format!("what is not said here: {}", elsewhere.join("; ")))
    }

    /// Where the rule itself says that calls queue.
    pub fn own_queue(&self) -> Option<Location> {
        let word = self.on_limit.filter(|word| {
            word.layer.by == Provenance::Rule && word.located.value == OnLimitWord::Queue
        })?;
        Some(word.located.location)
    }

    /// Where the algorithm is said.
    pub fn algorithm_location(&self) -> Option<Location> {
        location(self.algorithm)
    }

    /// All that does not go together, and where.
    pub fn conflicts(&self, spec: &DescriptorSpec) -> Vec<(Location, OptionConflict)> {
        let (algorithm, on_limit) = (self.algorithm(), self.on_limit_word());
        let mut conflicts = Vec::new();
        let mut add = |place: Option<Location>, conflict: OptionConflict| {
            conflicts.push((place.unwrap_or(spec.location), conflict))
        };
        if on_limit == OnLimitWord::Queue && !algorithm.is_bucket() {
            add(
                location(self.on_limit),
                OptionConflict::QueueWithoutBucket(algorithm),
            );
        }
        if self.queues() && self.max_wait.is_none() {
            add(location(self.on_limit), OptionConflict::QueueWithoutMaxWait);
        }
        if on_limit != OnLimitWord::Queue && self.max_wait.is_some() {
            add(location(self.max_wait), OptionConflict::MaxWaitWithoutQueue);
        }
        if on_limit != OnLimitWord::Degrade && self.request_headers.is_some() {
            add(
                location(self.request_headers),
                OptionConflict::HeadersWithoutDegrade,
            );
        }
        if on_limit != OnLimitWord::Reject && self.response_body.is_some() {
            add(
                location(self.response_body),
                OptionConflict::BodyWithoutReject(on_limit),
            );
        }
        if algorithm != Algorithm::Concurrency {
            if self.lease_by.is_some() {
                add(
                    location(self.lease_by),
                    OptionConflict::LeaseByWithoutConcurrency(algorithm),
                );
            }
            return conflicts;
        }
        let key = &spec.key.value;
        match self.lease_by {
            None => add(
                location(self.algorithm),
                OptionConflict::NoLeaseBy { key: key.clone() },
            ),
            Some(lease_by) if *lease_by.located.value != **key => {
                add(
                    location(self.lease_by),
                    OptionConflict::LeaseByOfOther {
                        lease_by: lease_by.located.value.clone(),
                        key: key.clone(),
                    },
                );
            }
            Some(_) if !spec.value.value.is_empty() || key.contains('*') => {
                add(location(self.lease_by), OptionConflict::LeaseByOfSome)
            }
            Some(_) => {}
        }
        if self.unit_multiplier.is_some() {
            add(
                location(self.unit_multiplier),
                OptionConflict::PeriodOfConcurrency,
            );
        }
        conflicts
    }

    /// Where that stands which makes a limit one that cannot be counted; `None` if it is in the
    /// rate_limit.
    pub fn location_of(&self, error: &LimitError) -> Option<Location> {
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
            LimitError::NoLease => location(self.algorithm),
            LimitError::CountedHolders => location(self.over_limit_hits),
            LimitError::RequestsTooLarge { .. } | LimitError::TooManyHolders(_) => None,
        }
    }
}

impl<T> Clone for Sourced<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Sourced<'_, T> {}

/// The word of the strongest layer that says one and may.
fn strongest<'b, T>(
    layers: &Layers<'b>,
    may: impl Fn(Provenance) -> bool,
    word: impl Fn(&'b Block) -> Option<&'b Located<T>>,
) -> Option<Sourced<'b, T>> {
    layers
        .iter()
        .filter(|layer| may(layer.by))
        .find_map(|&layer| {
            Some(Sourced {
                located: word(layer.block)?,
                layer,
            })
        })
}

fn value_of<T: Copy>(word: Option<Sourced<'_, T>>) -> Option<T> {
    word.map(|word| word.located.value)
}

fn choose<T>(
    choices: &mut Vec<EffectiveOption>,
    key: &'static str,
    word: Option<Sourced<'_, T>>,
    text: impl Fn(&T) -> String,
) {
    choices.extend(word.map(|Sourced { located, layer }| {
        let origin = Origin {
            file: layer.file.clone(),
            line: located.location.line,
            column: located.location.column,
        };
        EffectiveOption {
            key,
            value: text(&located.value).into(),
            by: layer.by,
            origin,
        }
    }));
}

/// Where a word stands, if that is in the file of the rule.
fn location<T>(word: Option<Sourced<'_, T>>) -> Option<Location> {
    word.filter(|word| word.layer.by.is_in_rules_file())
        .map(|word| word.located.location)
}
