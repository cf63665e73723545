//! One descriptor under one rule set: its rule, its check, and whether a response reports it over
//! limit.

use std::hash::Hasher as _;
use std::sync::Arc;

use siphasher::sip::SipHasher13;
use smallvec::SmallVec;

use crate::check::{Hits, Verdict};
use crate::rules::{Plan, Step};

/// A descriptor, without a borrow of the rules.
#[derive(Debug, Clone)]
pub(crate) struct Side {
    /// The path of its rule; `None` if no rule applies.
    pub(crate) rule: Option<Arc<str>>,
    /// `None` if nothing is counted.
    counted: Option<Counted>,
}

#[derive(Debug, Clone, Copy)]
struct Counted {
    check: usize,
    key_hash: u64,
    /// False in shadow mode, for refunds and for rules that degrade.
    can_reject: bool,
}

/// The sides of all descriptors, in order.
pub(crate) type Sides = SmallVec<[Side; 2]>;

/// The descriptors of a plan.
pub(crate) fn sides(plan: &Plan<'_>) -> Sides {
    plan.steps
        .iter()
        .map(|step| Side {
            rule: step.path(),
            counted: step.check().map(|check| counted(plan, step, check)),
        })
        .collect()
}

fn counted(plan: &Plan<'_>, step: &Step<'_>, check: usize) -> Counted {
    let is_refund = matches!(plan.request.checks[check].hits, Hits::Refund(_));
    let mut hasher = SipHasher13::new();
    hasher.write(plan.request.checks[check].key.as_bytes());
    Counted {
        check,
        key_hash: hasher.finish(),
        can_reject: !is_refund && !step.admits(),
    }
}

impl Side {
    /// Whether its descriptor's status is OVER_LIMIT.
    pub(crate) fn is_over(&self, verdicts: &[Verdict]) -> bool {
        self.counted
            .is_some_and(|counted| counted.can_reject && verdicts[counted.check].over)
    }

    /// A hash of its counter's key.
    pub(crate) fn key_hash(&self) -> Option<u64> {
        self.counted.map(|counted| counted.key_hash)
    }
}
