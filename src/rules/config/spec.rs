//! The specs of a file of rules, before they are compiled. YAML and xDS resources have the same
//! ones.

use std::fmt;

use crate::rules::Metadata;
use crate::rules::config::error::SourceFindings;
use crate::rules::config::tollgate::{Block, RootBlock};
use crate::rules::config::yaml::{Located, Location, shortened};

/// Memory of a name besides its text.
const NAME_BYTES: usize = 32;

#[derive(Debug, Default)]
pub(crate) struct RulesFile<'f> {
    pub(crate) domain: Located<String>,
    pub(crate) descriptors: Option<Box<dyn Level + 'f>>,
    pub(crate) block: Option<RootBlock>,
}

/// The descriptors of one level. They are read one at a time, first for what is invalid about them
/// and then to be compiled: all together they would take more memory than the text.
pub(crate) trait Level: fmt::Debug {
    fn len(&self) -> usize;

    /// Reads a descriptor; `None` if it is none, which was reported.
    fn read(&self, index: usize, findings: &mut SourceFindings<'_>) -> Option<DescriptorSpec<'_>>;
}

#[derive(Debug, Default)]
pub(crate) struct DescriptorSpec<'f> {
    pub(crate) key: Located<String>,
    pub(crate) value: String,
    pub(crate) rate_limit: Option<RateLimitSpec>,
    /// `None` if there are none.
    pub(crate) descriptors: Option<Box<dyn Level + 'f>>,
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

impl RulesFile<'_> {
    /// Reports what is invalid about each descriptor on its own.
    pub(crate) fn check(&self, findings: &mut SourceFindings<'_>) {
        if let Some(descriptors) = &self.descriptors {
            let domain = shortened(&self.domain.value);
            let place = format!("domain {domain} > ");
            check(&**descriptors, &mut findings.at(place));
        }
    }

    /// An empty file; what it lacks is reported at its top.
    pub(super) fn at_top() -> Self {
        Self { domain: Located::new(String::new(), Location::new(1, 1, 1)), ..Self::default() }
    }
}

fn check(level: &dyn Level, findings: &mut SourceFindings<'_>) {
    for index in 0..level.len() {
        if findings.is_full() {
            return;
        }
        let mut findings = findings.at(format_args!("descriptors[{index}]"));
        let Some(spec) = level.read(index, &mut findings) else {
            continue;
        };
        if let Some(limit) = &spec.rate_limit {
            let replaced = limit.replaces.iter().map(|name| NAME_BYTES + name.value.len());
            let bytes = limit.name.len() + replaced.sum::<usize>();
            findings.fits(bytes, limit.location);
        }
        if let Some(below) = spec.descriptors {
            check(&*below, &mut findings.at("."));
        }
    }
}
