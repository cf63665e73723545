//! The effect of rules on recorded requests, as `tollgate replay` shows it.

use std::{fmt, iter};

use serde::Serialize;

use crate::base::time::{Span, Time};
use crate::report::serialize::{micros, rfc3339};

#[derive(Debug, Serialize)]
pub(crate) struct Replay {
    pub(crate) file: String,
    #[serde(flatten)]
    pub(crate) traffic: TrafficStats,
    /// The times of the first and the last request.
    pub(crate) first: Option<String>,
    pub(crate) last: Option<String>,
    /// Results of these rules.
    #[serde(flatten)]
    pub(crate) rules: RulesReplay,
    /// Results of the rules that they are compared with.
    pub(crate) compared: Vec<RulesReplay>,
}

/// The lines of a file of requests.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct TrafficStats {
    pub(crate) requests: u64,
    /// Invalid lines.
    pub(crate) broken: u64,
    /// The first of them.
    pub(crate) invalid_lines: Vec<InvalidLine>,
    /// Empty lines, and lines of an access log about requests that asked for no limit.
    pub(crate) without_request: u64,
    /// Requests with a time before that of an earlier line.
    pub(crate) late: u64,
    /// The longest time between the two.
    #[serde(rename = "late_max_us", serialize_with = "micros")]
    pub(crate) late_max: Span,
}

/// Why a line is no request.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct InvalidLine {
    /// 1-based.
    pub(crate) line: u64,
    pub(crate) error: String,
}

/// Requests decided by one set of rules.
#[derive(Debug, Default, Serialize)]
pub(crate) struct RulesReplay {
    pub(crate) label: String,
    /// Responses of OVER_LIMIT.
    pub(crate) over_limit: u64,
    /// Of all requests, from 0 to 1.
    pub(crate) share: f64,
    /// Requests of which no descriptor has a limit.
    pub(crate) without_limit: u64,
    /// Requests that the service would answer with an error.
    pub(crate) errors: u64,
    pub(crate) first_error: Option<String>,
    /// Counters that were removed early, because memory had reached its bound.
    pub(crate) evicted: u64,
    /// The rules with the most over-limit requests first.
    pub(crate) rules: Vec<RuleReplay>,
}

/// Requests that one rule counted.
#[derive(Debug, Default, Serialize)]
pub(crate) struct RuleReplay {
    pub(crate) domain: Box<str>,
    /// The path of the rule.
    pub(crate) rule: Box<str>,
    /// Its place; `None` for limits of requests.
    #[serde(skip)]
    pub(crate) source: Option<String>,
    pub(crate) requests: u64,
    /// Requests over its limit, whether it rejects them or not.
    pub(crate) over_limit: u64,
    /// Of its requests, from 0 to 1.
    pub(crate) share: f64,
    /// The first minute with an over-limit request.
    pub(crate) first_minute: Option<Minute>,
    /// The minute with the most of them.
    pub(crate) worst_minute: Option<Minute>,
    /// The keys with the most over-limit requests.
    pub(crate) keys: Vec<KeyReplay>,
    /// By how much the numbers of its keys may be too low.
    pub(crate) keys_missed_max: u64,
}

#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Minute {
    #[serde(rename = "time", serialize_with = "rfc3339")]
    pub(crate) start: Time,
    pub(crate) requests: u64,
    pub(crate) over_limit: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct KeyReplay {
    pub(crate) key: Box<str>,
    pub(crate) over_limit: u64,
}

impl fmt::Display for InvalidLine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "line {}: {}", self.line, self.error)
    }
}

impl Replay {
    /// The rules, then what they are compared with.
    pub(crate) fn sets(&self) -> impl Iterator<Item = &RulesReplay> + Clone {
        iter::once(&self.rules).chain(&self.compared)
    }
}

impl RulesReplay {
    /// A rule by its path.
    pub(crate) fn rule(&self, path: &str) -> Option<&RuleReplay> {
        self.rules.iter().find(|rule| *rule.rule == *path)
    }
}
