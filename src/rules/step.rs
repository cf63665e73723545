//! What becomes of a descriptor: the limits that decide it.

use std::slice;
use std::sync::Arc;

use crate::limits::WarnAt;
use crate::rules::key::KeyFormat;
use crate::rules::rule::{FurtherLimit, Rule};

/// Shown instead of the path of a rule if the limit comes with the request.
pub(crate) const OWN_LIMIT: &str = "(limit of the request)";

/// The treatment of a descriptor.
#[derive(Debug)]
pub enum Step<'r> {
    /// No rule is about it.
    NoRule,
    /// The rule is unlimited.
    Unlimited(&'r Rule),
    /// Another rule of the same request takes the place of its rule.
    Replaced(&'r Rule),
    /// One limit decides it.
    Counted(Link<'r>),
    /// Several limits may decide it, in one step: those of the rules above in the tree first.
    Chain {
        /// The rule that the descriptor matches.
        rule: &'r Rule,
        /// At least one, of consecutive checks.
        links: Box<[Link<'r>]>,
    },
}

/// A limit that decides a descriptor, alone or in a chain.
#[derive(Debug)]
pub struct Link<'r> {
    /// The rule that says what is done beyond the limit and without the store. `None` for a limit
    /// in the request that takes nothing over from a rule.
    pub rule: Option<&'r Rule>,
    /// `None` for the rule's own limit.
    pub further: Option<&'r FurtherLimit>,
    /// The request states number and unit. As in envoyproxy/ratelimit, the name, modes and metrics
    /// of the rule do not apply.
    pub is_override: bool,
    /// Index of its check.
    pub check: usize,
    /// The number of entries of the descriptor that it is counted by.
    pub entries: usize,
    /// Whether the rule's `enforce_percent` includes its key.
    pub enforced: bool,
    /// Whether a request over it passes: it shadows, degrades, or is a quota.
    pub passes: bool,
    /// The form of its key.
    pub key_format: KeyFormat,
    /// The name of its metrics, where it depends on the request.
    pub metric_name: Option<Box<str>>,
}

impl<'r> Step<'r> {
    /// The limits that decide it.
    pub fn links(&self) -> &[Link<'r>] {
        // Most are; this test alone takes less than one of five variants.
        if let Self::Counted(link) = self {
            return slice::from_ref(link);
        }
        match self {
            Self::Chain { links, .. } => links,
            _ => &[],
        }
    }

    /// The rule that the descriptor matches, whether it is counted or not.
    pub(crate) fn matched(&self) -> Option<&'r Rule> {
        match self {
            Self::Unlimited(rule) | Self::Replaced(rule) | Self::Chain { rule, .. } => Some(rule),
            Self::Counted(link) => link.rule,
            Self::NoRule => None,
        }
    }

    /// The path of its rule, as `explain` shows it; `None` if no rule applies.
    pub(crate) fn path(&self) -> Option<Arc<str>> {
        match self {
            Self::Counted(link) => Some(link.path()),
            _ => self.matched().map(|rule| rule.path.clone()),
        }
    }
}

impl<'r> Link<'r> {
    /// The rule whose name, modes and metrics apply.
    pub fn own_rule(&self) -> Option<&'r Rule> {
        self.rule.filter(|_| !self.is_override)
    }

    /// Whether both are limits of one rule, or of one in the request.
    pub(crate) fn is_of_same_rule(&self, other: &Self) -> bool {
        let path = |link: &Self| link.own_rule().map(|rule| Arc::as_ptr(&rule.path));
        path(self) == path(other)
    }

    /// The name of the limit; may be empty.
    pub fn name(&self) -> &'r str {
        match self.further {
            Some(further) => &further.name,
            None => self.rule.map_or("", |rule| &rule.name),
        }
    }

    /// The path of its rule, as `explain` shows it.
    pub(crate) fn path(&self) -> Arc<str> {
        self.rule.map_or_else(|| OWN_LIMIT.into(), |rule| rule.path.clone())
    }

    /// Used shares from which responses carry a warning, in percent.
    pub(crate) fn warn_at(&self) -> Option<&'r WarnAt> {
        let warn_at = match self.further {
            Some(further) => &further.warn_at,
            None => &self.own_rule()?.warn_at,
        };
        Some(warn_at).filter(|warn_at| !warn_at.percents().is_empty())
    }

    /// Whether over limit is only counted, by `shadow_mode` or `enforce_percent`. As in
    /// envoyproxy/ratelimit, `shadow_mode` does not apply to a limit in a request.
    pub fn in_shadow(&self) -> bool {
        !self.enforced || self.own_rule().is_some_and(|rule| rule.shadow_mode)
    }

    /// Whether the status is OK even over its limit.
    pub fn admits(&self) -> bool {
        self.in_shadow() || self.rule.is_some_and(Rule::degrades)
    }
}
