//! The specs of a file of rules, before they are compiled. YAML and xDS resources have the same ones.

use crate::config::tollgate::{Block, RootBlock};
use crate::config::yaml::{Located, Location};
use crate::rules::Metadata;

#[derive(Debug, Default)]
pub(crate) struct RulesFile {
    pub(crate) domain: Located<String>,
    pub(crate) descriptors: Vec<DescriptorSpec>,
    pub(crate) block: Option<RootBlock>,
}

#[derive(Debug, Default)]
pub(crate) struct DescriptorSpec {
    pub(crate) key: Located<String>,
    pub(crate) value: String,
    pub(crate) rate_limit: Option<RateLimitSpec>,
    pub(crate) descriptors: Vec<Self>,
    pub(crate) shadow_mode: bool,
    pub(crate) quota_mode: bool,
    pub(crate) detailed_metric: bool,
    pub(crate) value_to_metric: bool,
    pub(crate) share_threshold: Located<bool>,
    /// Without the `tollgate` block.
    pub(crate) metadata: Option<Metadata>,
    pub(crate) block: Option<Block>,
    pub(crate) location: Location,
}

#[derive(Debug, Default)]
pub(crate) struct RateLimitSpec {
    pub(crate) unit: Located<String>,
    /// The unit is missing, probably because of an unknown key beside it, which was reported.
    pub(crate) unit_misspelled: bool,
    pub(crate) requests_per_unit: u32,
    pub(crate) unlimited: bool,
    pub(crate) name: String,
    pub(crate) replaces: Vec<Located<String>>,
    pub(crate) location: Location,
}

impl RulesFile {
    /// An empty file; what it lacks is reported at its top.
    pub(super) fn at_top() -> Self {
        let top = Location {
            line: 1,
            column: 1,
            width: 1,
        };
        Self {
            domain: Located {
                value: String::new(),
                location: top,
            },
            ..Self::default()
        }
    }
}
