//! How this service and the upstream of a trial decide the same requests.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::base::named_enum::named_enum;
use crate::base::text::Escaped;
use crate::limits::{Limit, Unit};

/// Results of a trial: `/trial`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TrialView {
    pub(crate) since: String,
    pub(crate) upstream: String,
    pub(crate) enforce_percent: u8,
    /// Compared requests.
    pub(crate) requests: u64,
    /// Requests with the same code of the response and of each status.
    pub(crate) agreed: u64,
    /// Calls that were not compared.
    pub(crate) dropped: u64,
    pub(crate) rules: Vec<TrialRule>,
    /// The newest first.
    pub(crate) disagreements: Vec<Disagreement>,
}

/// Descriptors of a rule, by how they compare with the upstream's.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TrialRule {
    pub(crate) domain: String,
    pub(crate) rule: String,
    pub(crate) requests: u64,
    pub(crate) agreed: u64,
    pub(crate) over_here: u64,
    pub(crate) over_there: u64,
    /// Disagreements by class.
    pub(crate) classes: BTreeMap<String, u64>,
}

/// A descriptor that was decided differently, or a request whose responses differ although its
/// descriptors do not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Disagreement {
    pub(crate) time: String,
    pub(crate) domain: String,
    /// `None` for the response.
    pub(crate) rule: Option<String>,
    pub(crate) descriptors: Vec<String>,
    pub(crate) here: DecidedSide,
    pub(crate) there: DecidedSide,
    pub(crate) class: String,
}

/// A side of a disagreement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum DecidedSide {
    Error { error: String },
    Status(StatusView),
    Response { code: Code },
}

named_enum! {
    /// A code of a RateLimitResponse.
    pub enum Code {
        /// Admitted.
        Ok = "OK",
        /// Rejected.
        OverLimit = "OVER_LIMIT",
    }
}

/// The status of a descriptor, with the names of the protobuf message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StatusView {
    pub(crate) code: Code,
    pub(crate) limit_remaining: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) current_limit: Option<StatedLimit>,
    /// Such as `30s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) duration_until_reset: Option<String>,
}

/// A limit as a response states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StatedLimit {
    #[serde(rename = "requests_per_unit")]
    pub(crate) requests: u64,
    /// `None` if a response cannot state it.
    pub(crate) unit: Option<Unit>,
}

impl TrialRule {
    /// The classes of disagreements that occurred, each by this name and its number.
    pub(crate) fn classes_by(&self, name: impl Fn(&str) -> String) -> String {
        let classes = self.classes.iter().filter(|(_, count)| **count > 0);
        let classes = classes.map(|(class, count)| format!("{} {count}", name(class)));
        classes.collect::<Vec<_>>().join(", ")
    }
}

impl DecidedSide {
    /// This side without the message of an error, which may quote the request.
    pub(crate) fn without_message(self) -> Self {
        match self {
            Self::Error { mut error } => {
                error.truncate(error.find(':').unwrap_or(error.len()));
                Self::Error { error }
            }
            other => other,
        }
    }
}

/// In one line.
impl fmt::Display for DecidedSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = match self {
            Self::Error { error } => return write!(f, "error {}", Escaped(error)),
            Self::Response { code } => return f.write_str(code.name()),
            Self::Status(status) => status,
        };
        f.write_str(status.code.name())?;
        if let Some(StatedLimit { requests, unit }) = status.current_limit {
            let unit = unit.map_or("period", Unit::name);
            let remaining = status.limit_remaining;
            write!(f, ", {requests} per {unit}, {remaining} left")?;
        }
        if let Some(reset) = &status.duration_until_reset {
            write!(f, ", reset in {}", Escaped(reset))?;
        }
        Ok(())
    }
}

impl From<&Limit> for StatedLimit {
    fn from(limit: &Limit) -> Self {
        Self { requests: limit.requests, unit: limit.unit() }
    }
}

impl From<bool> for Code {
    fn from(over_limit: bool) -> Self {
        if over_limit { Self::OverLimit } else { Self::Ok }
    }
}

/// A share with its 95 % interval by Wilson, which is valid for few requests and for shares near 1;
/// a dash of nothing.
pub(crate) fn agreement(agreed: u64, requests: u64) -> String {
    /// The quantile of the normal distribution for this interval.
    const Z: f64 = 1.959_964;
    if requests == 0 {
        return "–".to_owned();
    }
    #[expect(clippy::cast_precision_loss, reason = "a share is shown to 4 digits")]
    let (agreed, requests) = (agreed as f64, requests as f64);
    let share = agreed / requests;
    let z2 = Z * Z;
    let middle = share + z2 / (2.0 * requests);
    let half = Z * (share * (1.0 - share) / requests + z2 / (4.0 * requests * requests)).sqrt();
    let percent = |share: f64| 100.0 * (share / (1.0 + z2 / requests)).clamp(0.0, 1.0);
    format!(
        "{:.2} % ({:.2} to {:.2})",
        100.0 * share,
        percent(middle - half),
        percent(middle + half)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_wilson() {
        // By statsmodels' proportion_confint(method="wilson").
        for (agreed, requests, expected) in [
            (0, 0, "–"),
            (10, 10, "100.00 % (72.25 to 100.00)"),
            (0, 10, "0.00 % (0.00 to 27.75)"),
            (50, 100, "50.00 % (40.38 to 59.62)"),
            (9_990, 10_000, "99.90 % (99.82 to 99.95)"),
        ] {
            assert_eq!(agreement(agreed, requests), expected);
        }
    }
}
