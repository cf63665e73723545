//! A rule as operators read it: the JSON of `/rlconfig`, and a side of a change.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::rules::{Metadata, Origin};

/// A descriptor.
#[derive(Debug, Serialize)]
pub(crate) struct DescriptorView {
    pub(crate) path: String,
    /// The entries of the descriptors down to this one.
    pub(crate) entries: Vec<EntryView>,
    pub(crate) share_threshold: bool,
    pub(crate) value_to_metric: bool,
    pub(crate) limit: Option<RuleView>,
}

/// Key and value of a descriptor.
#[derive(Debug, Serialize)]
pub(crate) struct EntryView {
    pub(crate) key: String,
    /// Empty for any value.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) value: String,
}

/// A `rate_limit`, and what its descriptor says about it.
#[derive(Debug, Serialize)]
pub(crate) struct RuleView {
    pub(crate) source: Source,
    pub(crate) name: String,
    pub(crate) replaces: Vec<String>,
    pub(crate) unlimited: bool,
    pub(crate) shadow_mode: bool,
    pub(crate) quota_mode: bool,
    pub(crate) detailed_metric: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<Metadata>,
    #[serde(flatten)]
    pub(crate) limit: Option<LimitView>,
    /// Options in force by their keys in rules files; none if nothing is counted.
    #[serde(flatten)]
    pub(crate) options: Map<String, Value>,
}

/// The limit of a rule that is not unlimited.
#[derive(Debug, Serialize)]
pub(crate) struct LimitView {
    pub(crate) requests_per_unit: u64,
    #[serde(flatten)]
    pub(crate) period: Option<PeriodView>,
}

/// A period; concurrency has none.
#[derive(Debug, Serialize)]
pub(crate) struct PeriodView {
    pub(crate) unit: String,
    pub(crate) unit_multiplier: u64,
    pub(crate) period_seconds: u64,
}

/// The place of a rule, or of an option.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum Source {
    /// In a rules file.
    File { file: String, line: u32, column: u32 },
    /// A resource of a control plane, which has no lines.
    Resource { resource: String },
}

impl From<&Origin> for Source {
    fn from(origin: &Origin) -> Self {
        let &Origin { line, column, .. } = origin;
        let file = origin.file.to_string();
        match line {
            0 => Self::Resource { resource: file },
            _ => Self::File { file, line, column },
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { file, line, .. } => write!(formatter, "{file}:{line}"),
            Self::Resource { resource } => formatter.write_str(resource),
        }
    }
}
