//! The input of the compiler: texts of rules, the settings and the table of counters.

use std::sync::Arc;

use crate::limits::{Algorithm, Consistency, Windows};
use crate::rules::key::KeyFormat;
use crate::rules::stats::StatsTable;
use crate::rules::tree::Dots;

/// Calendars of a process. They are kept across reloads, because limits refer to them.
pub(crate) const CALENDARS_MAX: usize = 10_000;
/// Calendars while a change of a rules file is compiled: texts that are never in force leave the
/// rest free.
pub(crate) const CHECKED_CALENDARS_MAX: usize = 5_000;

/// A file of rules.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Source {
    /// The name in messages of envoyproxy/ratelimit: the path below the watched directory, with
    /// dots for slashes.
    pub name: Arc<str>,
    /// The path, for operators.
    pub path: Arc<str>,
    /// The content.
    pub text: Arc<str>,
}

/// See the settings of the same names.
#[derive(Debug, Clone)]
pub struct CompileOptions {
    /// MERGE_DOMAIN_CONFIG: several files may define one domain.
    pub merge_domains: bool,
    /// CACHE_KEY_PREFIX.
    pub key_prefix: Box<str>,
    /// CACHE_KEY_FORMAT on a store that is shared with envoyproxy/ratelimit.
    pub key_format: KeyFormat,
    /// DEFAULT_ALGORITHM: for rules that no block gives an algorithm.
    pub default_algorithm: Option<Algorithm>,
    /// DEFAULT_CONSISTENCY: for rules that no block gives one.
    pub default_consistency: Consistency,
    /// USE_CALENDAR_MONTH_RATE_LIMIT.
    pub windows: Windows,
    /// Whether counters that are decided in one step have to be in one slot: REDIS_TYPE=cluster.
    pub one_slot: bool,
    /// Calendars of the process beyond which rules with another one are invalid.
    pub calendars_max: usize,
    /// SANITIZE_DESCRIPTOR_METRIC_DOTS.
    pub metric_dots: Dots,
    /// TOLLGATE_OVERLAY: blocks for rules that another system writes.
    pub overlay: Option<Source>,
    /// The counters of rules.
    pub stats: Arc<StatsTable>,
}

impl CompileOptions {
    /// The defaults.
    pub fn new(stats: Arc<StatsTable>) -> Self {
        Self {
            merge_domains: false,
            key_prefix: Box::default(),
            key_format: KeyFormat::Reference,
            default_algorithm: None,
            default_consistency: Consistency::Exact,
            windows: Windows::Aligned,
            one_slot: false,
            calendars_max: CALENDARS_MAX,
            metric_dots: Dots::Keep,
            overlay: None,
            stats,
        }
    }
}
