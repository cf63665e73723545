//! A limit to compare, and what distinguishes it from others.

use crate::base::time::Span;
use crate::limits::Limit;
use crate::rules::{EnforcedShare, OnLimit, Rule};

/// A limit to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Compare {
    pub(crate) limit: Limit,
    /// The maximum time in the queue.
    pub(crate) book_ahead: Span,
}

/// Properties of a rule that a simulation of its limit does not show.
pub(crate) fn notes(rule: &Rule) -> Vec<String> {
    let notes = [
        (rule.shadow_mode, "shadow_mode: counted as shown, but never over limit"),
        (rule.quota_mode, "quota_mode: over limit when every quota of the request is used up"),
        (
            matches!(rule.on_limit, OnLimit::Degrade { .. }),
            "on_limit: degrade: requests over the limit are admitted, and a header asks the upstream for a cheap response",
        ),
        (
            rule.is_chained(),
            "limits or parents: other limits are decided in one step with it, and may reject more",
        ),
        (
            rule.enforced_share != EnforcedShare::ALL,
            "enforce_percent: over limit as shown, but only for a share of keys",
        ),
    ];
    let apply = notes.into_iter().filter(|(applies, _)| *applies);
    apply.map(|(_, note)| note.to_owned()).collect()
}

/// A label that distinguishes a limit from the others.
pub(crate) fn label(limit: &Limit) -> String {
    let mut label = limit.algorithm.name().to_owned();
    if limit.algorithm.is_bucket() {
        label += &format!(", burst {}", limit.capacity);
    }
    if limit.buckets > 0 {
        label += &format!(", {} buckets", limit.buckets);
    }
    if limit.max_wait > Span::ZERO {
        label += &format!(", queue {}", limit.max_wait);
    }
    if limit.algorithm.counts_holders() {
        label += &format!(", lease {}", limit.period);
    }
    if limit.over_limit_hits != limit.algorithm.default_over_limit_hits() {
        label += &format!(", {}", limit.over_limit_hits.name());
    }
    label
}
