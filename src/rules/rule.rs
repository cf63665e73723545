//! A rule: a limit and what its descriptor says about it.

use std::fmt;
use std::sync::Arc;

use crate::limit::{Algorithm, Limit, Terms};
use crate::rules::key::KeyTail;
use crate::rules::stats::RuleStats;

/// The `metadata` of a rule: any JSON. What is Tollgate's own in it was taken out when the rule was
/// compiled.
pub type Metadata = serde_json::Map<String, serde_json::Value>;

/// A limit and all that its descriptor says about it.
#[derive(Debug)]
pub struct Rule {
    /// `domain.key_value.key_value`: where it stands in the rules, and the name of its metrics as
    /// the reference builds it.
    pub path: Box<str>,
    /// What it allows.
    pub allowance: Allowance,
    /// What a limit in a request takes over, besides its number and unit. `None` where no
    /// `tollgate` block and no DEFAULT_ALGORITHM says anything about the rule.
    pub override_terms: Option<Box<Terms>>,
    /// The name by which others replace it and clients know it; may be empty.
    pub name: Box<str>,
    /// Rules of these names do not apply where this one does.
    pub replaces: Box<[Box<str>]>,
    /// Counted and told, but never refused.
    pub shadow_mode: bool,
    /// Refuses only if every quota of the request is used up.
    pub quota_mode: bool,
    /// What is told to Envoy when it is met.
    pub metadata: Option<Metadata>,
    /// How its metrics are named.
    pub naming: Naming,
    /// Its counters, unless `naming` says that they depend on the request.
    pub stats: Arc<RuleStats>,
    /// What its counter keys end with, and which form they have.
    pub key_tail: KeyTail,
    /// What happens to a request that is over it.
    pub on_limit: OnLimit,
    /// What is answered while no store can say. `None` is whatever holds for rules that do not
    /// say.
    pub on_store_error: Option<OnStoreError>,
    /// The words of `tollgate` blocks that count for it, and who says them.
    pub options: Box<[EffectiveOption]>,
    /// Where it was written.
    pub origin: Origin,
}

/// A word of a `tollgate` block that counts for a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectiveOption {
    /// Its key.
    pub key: &'static str,
    /// What it says.
    pub value: Box<str>,
    /// Who says so.
    pub provenance: Provenance,
    /// Where.
    pub origin: Origin,
}

/// Who has a say in what a rule means, the strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provenance {
    /// The rule itself.
    Rule,
    /// `defaults` of its domain.
    Defaults,
    /// The overlay, for rules of this path.
    OverlayOfPath,
    /// The overlay, for the domain.
    OverlayOfDomain,
    /// DEFAULT_ALGORITHM.
    Setting,
}

/// What a rule allows.
#[derive(Debug, Clone, Copy)]
pub enum Allowance {
    /// Anything; nothing is counted.
    Unlimited {
        /// What the rule says all the same; only shown.
        requests_per_unit: u32,
    },
    /// So much.
    Limited(Limit),
}

/// What happens to a request that is over its limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OnLimit {
    /// It is refused.
    Reject {
        /// What the refusal says, instead of what Envoy says by itself.
        body: Option<Box<str>>,
    },
    /// It is held back until a bucket has room for it, and refused if that is later than the
    /// limit's `max_wait`.
    Queue,
    /// It passes, and whoever serves it is told to give the cheap answer.
    Degrade {
        /// Headers that are added to the request, names in lower case. There may be none: Envoy's
        /// filters are told in any case.
        request_headers: Box<[(Box<str>, Box<str>)]>,
    },
}

/// What is answered while the store cannot answer in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnStoreError {
    /// What this process counts by itself.
    Local,
    /// Anything passes.
    Allow,
    /// Nothing passes.
    Deny,
    /// No verdict but an error, so that the caller's own policy decides.
    Error,
}

/// Where the names of a rule's metrics come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// From the rules alone.
    Fixed,
    /// `detailed_metric`: every key and value of the request.
    Detailed,
    /// `value_to_metric` on some level: there, the value of the request.
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
    /// Whether it stands in the same file as the rule.
    pub const fn is_in_rules_file(self) -> bool {
        matches!(self, Self::Rule | Self::Defaults)
    }
}

impl fmt::Display for EffectiveOption {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            key,
            value,
            provenance,
            origin,
        } = self;
        write!(formatter, "{key}: {value} (by {provenance}, {origin})")
    }
}

impl fmt::Display for Provenance {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Rule => "the rule",
            Self::Defaults => "the domain's defaults",
            Self::OverlayOfPath => "the overlay's rules",
            Self::OverlayOfDomain => "the overlay's defaults",
            Self::Setting => "the setting",
        })
    }
}

impl OnStoreError {
    /// All.
    pub const ALL: [Self; 4] = [Self::Local, Self::Allow, Self::Deny, Self::Error];

    /// Its name as rules write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Error => "error",
        }
    }

    /// The policy of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

impl Rule {
    /// Its limit; `None` if it is unlimited.
    pub fn limit(&self) -> Option<&Limit> {
        match &self.allowance {
            Allowance::Unlimited { .. } => None,
            Allowance::Limited(limit) => Some(limit),
        }
    }

    /// Whether a request beyond the limit passes, with a note to the upstream.
    pub const fn degrades(&self) -> bool {
        matches!(self.on_limit, OnLimit::Degrade { .. })
    }

    /// Whether the value of a request's last entry names who holds a place, and is no part of what
    /// is counted.
    pub fn names_holders(&self) -> bool {
        self.limit()
            .is_some_and(|limit| limit.algorithm() == Algorithm::Concurrency)
    }
}
