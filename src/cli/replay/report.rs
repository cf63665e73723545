//! The result of a replay, which each format prints; all of its figures as JSON.

use serde_json::{Map, Value, json};

use crate::cli::replay::tally::{Minute, RuleTally};
use crate::cli::replay::variant::Variant;
use crate::time::Time;
use crate::traffic::Stats;

/// Keys that are shown of a rule.
pub(super) const KEYS_SHOWN: usize = 10;

/// What is printed.
pub(super) struct Report {
    pub(super) file: String,
    pub(super) stats: Stats,
    /// The times of the first and the last request.
    pub(super) times: Option<(Time, Time)>,
    /// The rules, then what they are compared with.
    pub(super) variants: Vec<Variant>,
}

impl Report {
    /// All figures, for programs.
    pub(super) fn json(&self) -> String {
        let stats = &self.stats;
        let invalid = stats
            .invalid
            .iter()
            .map(|line| json!({"line": line.number, "error": line.reason}));
        let mut report = json!({
            "file": self.file,
            "requests": stats.requests,
            "broken": stats.broken,
            "invalid_lines": invalid.collect::<Vec<_>>(),
            "without_request": stats.without_request,
            "late": stats.late,
            "late_max_us": stats.late_max.as_micros(),
            "first": self.times.map(|(first, _)| first.to_rfc3339()),
            "last": self.times.map(|(_, last)| last.to_rfc3339()),
        });
        let mut variants = self.variants.iter().map(|variant| self.variant(variant));
        if let (Some(report), Some(own)) = (report.as_object_mut(), variants.next()) {
            report.extend(own);
            let compared: Vec<Value> = variants.map(Value::Object).collect();
            report.insert("compared".to_owned(), compared.into());
        }
        format!("{report:#}\n")
    }

    fn variant(&self, variant: &Variant) -> Map<String, Value> {
        let tally = &variant.tally;
        let rules = tally.sorted().into_iter();
        let fields = [
            ("label", json!(variant.label)),
            ("over_limit", json!(tally.over_limit)),
            ("share", json!(share(tally.over_limit, self.stats.requests))),
            ("without_limit", json!(tally.without_limit)),
            ("errors", json!(tally.errors)),
            ("first_error", json!(tally.first_error)),
            ("evicted", json!(variant.evicted())),
            (
                "rules",
                rules.map(|(path, rule)| of_rule(path, rule)).collect(),
            ),
        ];
        let named = fields
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value));
        named.collect()
    }
}

fn of_rule(path: &str, rule: &RuleTally) -> Value {
    let keys = rule.keys.top(KEYS_SHOWN).into_iter();
    let keys: Vec<Value> = keys
        .map(|(key, over_limit)| json!({"key": key, "over_limit": over_limit}))
        .collect();
    json!({
        "domain": rule.domain,
        "rule": path,
        "requests": rule.requests,
        "over_limit": rule.over_limit,
        "share": share(rule.over_limit, rule.requests),
        "first_minute": rule.first.map(minute),
        "worst_minute": rule.worst.map(minute),
        "keys": keys,
        "keys_missed_max": rule.keys.missed_max(),
    })
}

fn minute(minute: Minute) -> Value {
    json!({
        "time": minute.start.to_rfc3339(),
        "requests": minute.requests,
        "over_limit": minute.over_limit,
    })
}

/// From 0 to 1.
#[expect(clippy::cast_precision_loss, reason = "a ratio to be shown")]
pub(super) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}
