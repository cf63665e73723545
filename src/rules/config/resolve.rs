//! Derives from the options in force for a rule the terms of its limit, what happens over the
//! limit, and which options contradict each other.

use crate::base::time::Span;
use crate::limits::{
    Algorithm, Consistency, LeaseError, LeaseTerms, Limit, LimitError, LimitOption, OverLimitHits,
    Terms, Windows,
};
use crate::rules::config::calendar::{self, CalendarError};
use crate::rules::config::error::SourceFindings;
use crate::rules::config::spec::DescriptorSpec;
use crate::rules::config::tollgate::{OnLimitWord, ResolvedOptions, Sourced};
use crate::rules::config::yaml::Location;
use crate::rules::{OnLimit, Provenance};

impl<'b> ResolvedOptions<'b> {
    fn algorithm(&self) -> Algorithm {
        self.algorithm.map_or(Algorithm::FixedWindow, Sourced::value)
    }

    fn on_limit_word(&self) -> OnLimitWord {
        self.on_limit.map_or(OnLimitWord::Reject, Sourced::value)
    }

    fn queues(&self) -> bool {
        self.on_limit_word() == OnLimitWord::Queue && self.algorithm().is_bucket()
    }

    /// The number of units in the period.
    pub(crate) fn unit_multiplier(&self) -> u32 {
        self.unit_multiplier.map_or(1, Sourced::value)
    }

    /// Sets the windows of a limit to those of its calendar, if it has one. A calendar in a block
    /// for many rules is dropped if it is not for this period. Returns what is wrong with the
    /// rule's own one, and where.
    pub(crate) fn settle_windows(
        &mut self,
        terms: &mut Terms,
        calendars_max: usize,
    ) -> Option<(Option<Location>, String)> {
        let is_window = terms.algorithm.takes(LimitOption::Calendar);
        let option = self.calendar.filter(|_| is_window)?;
        let is_own = option.layer.provenance == Provenance::Rule;
        match calendar::calendar(&option, terms.unit, terms.unit_multiplier, calendars_max) {
            Ok(calendar) => {
                terms.windows = Windows::Calendar(calendar);
                // Rejected hits are no usage.
                terms.over_limit_hits = terms.over_limit_hits.or(Some(OverLimitHits::Drop));
            }
            Err(error) if is_own || matches!(error, CalendarError::TooMany(_)) => {
                return Some((option.location(), error.to_string()));
            }
            Err(_) => self.calendar = None,
        }
        None
    }

    /// The terms of a `rate_limit` with these options.
    pub(crate) fn terms(&self, rate: Terms) -> Terms {
        let queues = self.queues();
        let counts_holders = self.algorithm().counts_holders();
        Terms {
            unit_multiplier: self.unit_multiplier(),
            algorithm: self.algorithm(),
            burst: self.burst.map(Sourced::value),
            buckets: self.buckets.map(Sourced::value),
            over_limit_hits: self.over_limit_hits.map(Sourced::value),
            max_wait: self.max_wait.filter(|_| queues).map(Sourced::value),
            lease: self.lease.filter(|_| counts_holders).map(Sourced::value),
            ..rate
        }
    }

    pub(crate) fn leased(&self) -> Option<Sourced<'b, Consistency>> {
        self.consistency.filter(|option| **option == Consistency::Leased)
    }

    /// A `lease` in a block for many rules may be meant for holders, unless the block has
    /// `consistency: leased`.
    pub(crate) fn lease_beside_consistency(&self) -> Option<Sourced<'b, Span>> {
        let layer = self.leased()?.layer;
        let located = layer.block.lease.as_ref()?;
        Some(Sourced { located, layer })
    }

    /// The `lease` of hits that are taken ahead, or one that has no meaning.
    pub(crate) fn hit_lease(&self) -> Option<Sourced<'b, Span>> {
        self.lease.filter(|_| !self.algorithm().counts_holders())
    }

    /// Whether the rule has a `lease` without `consistency: leased` beside it.
    fn has_misplaced_lease(&self) -> bool {
        let leased = self.leased().map(|option| option.layer.provenance);
        self.hit_lease().is_some_and(|lease| leased != Some(lease.layer.provenance))
    }

    /// Why hits of the limit, which was made from `terms`, cannot be taken ahead although the rule
    /// itself says so, and where. What a block for many rules says is dropped if it does not apply.
    pub(crate) fn settle_leases(
        &mut self,
        terms: &Terms,
        limit: &Limit,
    ) -> Option<(Location, String)> {
        let leased = self.leased()?;
        let lifetime = self.hit_lease();
        let stated = lifetime.map(Sourced::value);
        let error = LeaseTerms::check(terms, limit, stated).err()?;
        let of_lifetime = lifetime.filter(|_| matches!(error, LeaseError::OutOfRange { .. }));
        if leased.layer.provenance == Provenance::Rule {
            let own = of_lifetime.map_or(leased.located.location, |option| option.located.location);
            // A limit of 0 is often a temporary one.
            return (error != LeaseError::NoHits).then(|| (own, error.to_string()));
        }
        self.lease = self.lease.filter(|_| lifetime.is_none());
        self.consistency = self.consistency.filter(|_| of_lifetime.is_some());
        None
    }

    /// Whether checks of the limit can have leases.
    pub(crate) fn takes_ahead(&self, limit: &Limit) -> bool {
        self.leased().is_some() && LeaseTerms::new(limit, None).is_some()
    }

    pub(crate) fn on_limit(&self) -> OnLimit {
        match self.on_limit_word() {
            OnLimitWord::Reject => {
                OnLimit::Reject { body: self.response_body.map(|body| body.text.clone()) }
            }
            OnLimitWord::Queue => OnLimit::Queue,
            OnLimitWord::Degrade => OnLimit::Degrade {
                request_headers: self
                    .request_headers
                    .map(|headers| headers.pairs.clone())
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

    /// Options that contradict each other or the descriptor, and where. [`LimitError`] covers the
    /// others.
    pub(crate) fn conflicts(&self, spec: &DescriptorSpec) -> Vec<(Location, String)> {
        let algorithm = self.algorithm();
        let on_limit = self.on_limit_word();
        let mut conflicts = Vec::new();
        let mut add = |at: Option<Location>, text: String| {
            conflicts.push((at.unwrap_or(spec.location), text));
        };
        if on_limit == OnLimitWord::Queue && !algorithm.is_bucket() {
            add(
                self.location("on_limit"),
                format!(
                    "on_limit: queue is only for buckets, not for {algorithm}; write algorithm: leaky_bucket, or on_limit: reject"
                ),
            );
        }
        if self.queues() && self.max_wait.is_none() {
            let text = "on_limit: queue needs a max_wait, the longest that a call may be queued; write one, such as max_wait: 200ms";
            add(self.location("on_limit"), text.to_owned());
        }
        if on_limit != OnLimitWord::Queue && self.max_wait.is_some() {
            let text = "max_wait is only for on_limit: queue, which is for buckets; remove it, or write on_limit: queue";
            add(self.location("max_wait"), text.to_owned());
        }
        if on_limit != OnLimitWord::Degrade && self.request_headers.is_some() {
            let text = "request_headers is only for on_limit: degrade; remove it, or write on_limit: degrade";
            add(self.location("request_headers"), text.to_owned());
        }
        if on_limit != OnLimitWord::Reject && self.response_body.is_some() {
            let on_limit = on_limit.name();
            let text = format!(
                "response_body is only for on_limit: reject, not for {on_limit}; remove it, or write on_limit: reject"
            );
            add(self.location("response_body"), text);
        }
        if algorithm.takes(LimitOption::LeaseBy)
            && let Some((at, text)) = self.lease_by_conflict(spec)
        {
            add(at, text);
        }
        for (at, text) in self.misplaced() {
            add(at, text);
        }
        conflicts
    }

    /// Options that the algorithm does not take and [`LimitError`] does not cover.
    pub(crate) fn misplaced(&self) -> Vec<(Option<Location>, String)> {
        let algorithm = self.algorithm();
        let stated = [
            (LimitOption::LeaseBy, self.lease_by.is_some()),
            (LimitOption::UnitMultiplier, self.unit_multiplier.is_some()),
            (LimitOption::Calendar, self.calendar.is_some()),
            (LimitOption::Lease, self.has_misplaced_lease()),
        ];
        let stated = stated.into_iter();
        let misplaced =
            stated.filter(|(option, is_stated)| *is_stated && !algorithm.takes(*option));
        let text = |(option, _): (LimitOption, bool)| {
            (self.location(option.name()), option.misplaced(algorithm))
        };
        misplaced.map(text).collect()
    }

    /// What is stated for this rule in particular.
    pub(crate) fn own_over_limit_hits(&self) -> Option<OverLimitHits> {
        let stated = self.over_limit_hits;
        let own = stated.filter(|option| !option.layer.provenance.is_for_many());
        own.map(Sourced::value)
    }

    /// Makes the rule exact: hits of a chain, or of a limit with `warn_at`, are not taken ahead. An
    /// error if the rule itself says that they are.
    pub(crate) fn settle_exact(&mut self, findings: &mut SourceFindings<'_>) {
        if let Some(location) = self.leased().and_then(Sourced::own_location) {
            let text = "consistency: leased beside limits, parents or warn_at, which need each call to be decided by the store";
            findings.reject(location, text, "write consistency: exact, or remove the others");
        }
        self.lease = self.lease.filter(|_| self.hit_lease().is_none());
        self.consistency = self.consistency.filter(|_| self.leased().is_none());
    }

    /// The last entry of a descriptor names the holder.
    fn lease_by_conflict(&self, spec: &DescriptorSpec) -> Option<(Option<Location>, String)> {
        let key = &*spec.key.value;
        let Some(lease_by) = self.lease_by else {
            let text = format!(
                "concurrency needs lease_by, the key whose value names the holder of a slot; write lease_by: {key}, and have Envoy send an id there"
            );
            return Some((self.algorithm_location(), text));
        };
        let text = if **lease_by != *key {
            let lease_by = &**lease_by;
            format!(
                "lease_by is {lease_by}, and must be the key of this descriptor, which is {key}; move the limit to a descriptor with key: {lease_by}"
            )
        } else if !spec.value.is_empty() || key.contains('*') {
            "a descriptor with lease_by is for every value, since each names a holder; remove its value, and any * from its key".to_owned()
        } else {
            return None;
        };
        Some((lease_by.location(), text))
    }

    /// The location of the option that makes a limit invalid; `None` if it is in the `rate_limit`.
    pub(crate) fn location_of(&self, error: &LimitError) -> Option<Location> {
        let option = match error {
            LimitError::PeriodZero | LimitError::PeriodTooLong { .. } => {
                LimitOption::UnitMultiplier
            }
            LimitError::BurstZero | LimitError::BurstTooLarge { .. } => LimitOption::Burst,
            LimitError::BucketsOutOfRange(_) => LimitOption::Buckets,
            LimitError::MaxWaitOutOfRange(_) => LimitOption::MaxWait,
            LimitError::LeaseOutOfRange(_) => LimitOption::Lease,
            LimitError::Misplaced { option, .. } => *option,
            LimitError::NoLease => return self.algorithm_location(),
            LimitError::RequestsTooLarge { .. }
            | LimitError::AmountTooLarge { .. }
            | LimitError::TooManyHolders(_) => return None,
        };
        self.location(option.name())
    }

    pub(crate) fn algorithm_location(&self) -> Option<Location> {
        self.algorithm.and_then(Sourced::location)
    }
}
