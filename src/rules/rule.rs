//! A rule: a limit and what its descriptor says about it.

use std::fmt;
use std::sync::Arc;

use crate::base::named_enum::named_enum;
use crate::limits::check::Leased;
use crate::limits::{Algorithm, Limit, OverLimitHits, Terms, Unit, WarnAt};
use crate::rules::enforced_share::EnforcedShare;
use crate::rules::key::KeyTail;
use crate::rules::stats::counts::{LimitStats, RuleStats};

/// The `metadata` of a rule, any JSON, without the `tollgate` block.
pub type Metadata = serde_json::Map<String, serde_json::Value>;

/// A limit and the options of its descriptor.
#[derive(Debug)]
pub struct Rule {
    /// `domain.key_value.key_value`: the path in the rules, and the name of its metrics as in
    /// envoyproxy/ratelimit.
    pub path: Arc<str>,
    /// The limit, if any.
    pub allowance: Allowance,
    /// The terms of a limit in a request, except for number and unit. `None` if no `tollgate` block
    /// and no DEFAULT_ALGORITHM or DEFAULT_CONSISTENCY applies to the rule.
    pub override_terms: Option<Box<Terms>>,
    /// The name that `replaces` and clients use; may be empty.
    pub name: Box<str>,
    /// Rules of these names do not apply to a request that this one applies to.
    pub replaces: Box<[Box<str>]>,
    /// Counted and reported, never rejected.
    pub shadow_mode: bool,
    /// The other keys are counted and reported, never rejected.
    pub enforced_share: EnforcedShare,
    /// Rejects only if every quota of the request is used up.
    pub quota_mode: bool,
    /// Sent to Envoy as dynamic metadata.
    pub metadata: Option<Metadata>,
    /// See [`Naming`].
    pub naming: Naming,
    /// The counters, unless `naming` says that they depend on the request.
    pub stats: Arc<RuleStats>,
    /// Its checks carry it; `None` if the store decides each call.
    pub lease: Option<Arc<Leased>>,
    /// The end of its counter keys, and their format.
    pub key_tail: KeyTail,
    /// See [`OnLimit`].
    pub on_limit: OnLimit,
    /// `None` for the default of the process.
    pub on_store_error: Option<OnStoreError>,
    /// The options of `tollgate` blocks in force, and where they were set.
    pub options: Box<[EffectiveOption]>,
    /// The location of the definition.
    pub origin: Origin,
    /// Limits beside its own, decided in one step with it.
    pub limits: Box<[FurtherLimit]>,
    /// The limits of the rules above in the tree apply, too.
    pub parents: bool,
    /// As stated for this rule; what a block for many rules says is about limits alone.
    pub over_limit_hits: Option<OverLimitHits>,
    /// Of its own limit.
    pub warn_at: WarnAt,
    /// The number of leading entries that are in the hash tag of its keys, on a cluster: those of
    /// the outermost limit that is decided in one step with it. 0 without such limits.
    pub tagged_entries: usize,
}

/// A limit of a rule beside its own.
#[derive(Debug)]
pub struct FurtherLimit {
    /// Unique in its rule.
    pub name: Box<str>,
    /// The limit.
    pub limit: Limit,
    /// The end of its counter keys, in the safe format.
    pub key_tail: KeyTail,
    /// Used shares that are reported.
    pub warn_at: WarnAt,
    /// Its usage and the crossings of its thresholds.
    pub stats: Arc<LimitStats>,
}

/// An option of a `tollgate` block that is in force for a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectiveOption {
    /// The key in rules files.
    pub key: &'static str,
    /// The value as `explain` shows it.
    pub value: Arc<str>,
    /// The kind of block that set it.
    pub provenance: Provenance,
    /// The place of its value.
    pub origin: Origin,
}

named_enum! {
    /// The place where an option was set, highest precedence first, as `explain` shows it.
    pub enum Provenance {
        /// The rule itself.
        Rule = "the rule",
        /// `defaults` of its domain.
        Defaults = "the domain's defaults",
        /// The overlay, for rules of this path.
        OverlayOfPath = "the overlay's rules",
        /// The overlay, for the domain.
        OverlayOfDomain = "the overlay's defaults",
        /// DEFAULT_ALGORITHM or DEFAULT_CONSISTENCY.
        Setting = "the setting",
    }
}

/// Whether requests are limited.
#[derive(Debug, Clone, Copy)]
pub enum Allowance {
    /// Everything passes; nothing is counted.
    Unlimited {
        /// The number in the rule; only shown.
        requests_per_unit: u32,
    },
    /// Counted.
    Limited(Limit),
}

/// The treatment of a request that is over its limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OnLimit {
    /// Reject it.
    Reject {
        /// The body of the response; `None` for Envoy's own.
        body: Option<Arc<str>>,
    },
    /// Delay it until its slot, or reject it if that is later than the limit's `max_wait`.
    Queue,
    /// Admit it, with headers that ask the upstream for a cheaper response.
    Degrade {
        /// Names in lower case. May be empty: dynamic metadata is set in any case.
        request_headers: Arc<[(Box<str>, Box<str>)]>,
    },
}

named_enum! {
    /// The fallback while the store does not answer in time.
    pub enum OnStoreError {
        /// Counted in this process.
        Local = "local",
        /// Every request passes.
        Allow = "allow",
        /// No request passes.
        Deny = "deny",
        /// An error, so that the caller's own policy applies.
        Error = "error",
    }
}

/// The parts of the names of a rule's metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// The rules only.
    Fixed,
    /// `detailed_metric`: every key and value of the request.
    Detailed,
    /// `value_to_metric` on some level: the value of the request there.
    ByValue,
}

/// A place in a rules file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The file, or the name of the resource.
    pub file: Arc<str>,
    /// 1-based; 0 where there are no lines.
    pub line: u32,
    /// 1-based, in characters.
    pub column: u32,
}

impl Allowance {
    /// `None` if everything passes.
    pub const fn limit(&self) -> Option<&Limit> {
        match self {
            Self::Unlimited { .. } => None,
            Self::Limited(limit) => Some(limit),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            formatter.write_str(&self.file)
        } else {
            write!(formatter, "{}:{}", self.file, self.line)
        }
    }
}

impl Provenance {
    /// Whether the option is in the same file as the rule.
    pub const fn is_in_rules_file(self) -> bool {
        matches!(self, Self::Rule | Self::Defaults)
    }

    /// Whether the option is not for this rule in particular.
    pub(crate) const fn is_for_many(self) -> bool {
        !matches!(self, Self::Rule | Self::OverlayOfPath)
    }
}

impl fmt::Display for EffectiveOption {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, .. } = self;
        let provenance = self.provenance.name();
        let origin = &self.origin;
        write!(formatter, "{key}: {value} (by {provenance}, {origin})")
    }
}

impl Rule {
    /// `None` if it is unlimited.
    pub fn limit(&self) -> Option<&Limit> {
        self.allowance.limit()
    }

    /// Whether other limits may be decided in one step with its own.
    pub fn is_chained(&self) -> bool {
        !self.limits.is_empty() || self.parents
    }

    /// Whether a call that it ends is charged to every limit, whatever they answer.
    pub fn settles(&self) -> bool {
        self.is_chained() && self.counts_over_limit()
    }

    /// Whether its own hits over the limit are usage, by what it says itself.
    pub(crate) fn counts_over_limit(&self) -> bool {
        self.over_limit_hits == Some(OverLimitHits::Count)
    }

    /// Its own limit, and further ones, each with the end of its counter keys.
    pub(crate) fn counters(
        &self,
    ) -> impl Iterator<Item = (Option<&FurtherLimit>, &Limit, &KeyTail)> {
        let own = self.limit().map(|limit| (None, limit, &self.key_tail));
        let further =
            self.limits.iter().map(|further| (Some(further), &further.limit, &further.key_tail));
        own.into_iter().chain(further)
    }

    /// Its own limit, and further ones.
    pub(crate) fn all_limits(&self) -> impl Iterator<Item = &Limit> {
        self.counters().map(|(_, limit, _)| limit)
    }

    /// Whether one of its limits counts over a day or more. A lease is no period.
    pub(crate) fn has_long_period(&self) -> bool {
        self.all_limits()
            .any(|limit| limit.period >= Unit::Day.span() && !limit.algorithm.counts_holders())
    }

    /// Whether a counter is more than hits on a fixed window, which INCRBY counts.
    pub(crate) fn needs_script(&self) -> bool {
        let is_plain = |limit: &Limit| {
            limit.algorithm == Algorithm::FixedWindow
                && limit.over_limit_hits == OverLimitHits::Count
                && !limit.chained
        };
        self.all_limits().count() > 1 || !self.all_limits().all(is_plain)
    }

    /// Whether a request over the limit passes as degraded.
    pub const fn degrades(&self) -> bool {
        matches!(self.on_limit, OnLimit::Degrade { .. })
    }

    /// Whether the value of the last entry names a holder, and is no part of the counter key.
    pub fn names_holders(&self) -> bool {
        self.limit().is_some_and(|limit| limit.algorithm.counts_holders())
    }
}
