//! Where a descriptor is in the rules, and what applies there.

use std::sync::Arc;

use crate::rules::Rule;
use crate::rules::config::overlay::DomainOverlay;
use crate::rules::config::source::{CompileOptions, Source};
use crate::rules::config::tollgate::Block;

/// The position of a descriptor in the rules, and what applies there.
#[derive(Clone, Copy)]
pub(crate) struct Context<'c> {
    /// `domain.key_value…`, without the descriptor itself.
    pub(crate) path: &'c str,
    /// The path in the names of metrics.
    pub(crate) metric_path: &'c str,
    pub(crate) defaults: Option<&'c Block>,
    pub(crate) overlay: &'c DomainOverlay<'c>,
    pub(crate) settings: &'c [(Block, Arc<str>)],
    /// `value_to_metric` on a descriptor above.
    pub(crate) by_value: bool,
    pub(crate) source: &'c Source,
    pub(crate) options: &'c CompileOptions,
    /// The rules above, from the nearest up.
    pub(crate) above: Option<&'c Above<'c>>,
}

/// The rule of a descriptor with others below it.
pub(crate) struct Above<'c> {
    up: Option<&'c Self>,
    rule: Option<&'c Rule>,
    /// The number of entries down to it.
    pub(crate) entries: usize,
}

impl<'c> Above<'c> {
    pub(crate) fn new(up: Option<&'c Self>, rule: Option<&'c Rule>) -> Self {
        Self {
            up,
            rule: rule.filter(|rule| rule.all_limits().next().is_some()),
            entries: up.map_or(0, |up| up.entries) + 1,
        }
    }

    /// It and those above, as far as they have limits.
    pub(crate) fn limited(&'c self) -> impl Iterator<Item = (&'c Self, &'c Rule)> {
        let levels = std::iter::successors(Some(self), |level| level.up);
        levels.filter_map(|level| Some((level, level.rule?)))
    }
}
