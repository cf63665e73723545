//! From the text of rules files to a RuleSet.
//!
//! There is one compiler, and it looks at everything before it gives up: all problems of all files come out together, each with its
//! place and what to write instead. What the reference accepts is accepted, and means the same.

use std::sync::Arc;

use crate::config::compile::Compiler;
use crate::config::error::{Finding, Findings};
use crate::config::yaml::Spot;
use crate::rules::stats::StatsTable;
use crate::rules::{KeyFormat, RuleSet};

pub mod chosen;
pub mod compile;
pub mod error;
pub mod metadata;
pub mod metric_mapping;
pub mod schema;
pub mod tollgate;
pub mod yaml;

/// A text of rules.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Source {
    /// As the reference names it in its messages: the path below the watched directory, with dots for slashes.
    pub name: Arc<str>,
    /// Where an operator finds it.
    pub path: Arc<str>,
    /// What it says.
    pub text: Arc<str>,
}

/// A value, and where it stands.
#[derive(Debug, Clone, Default)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// Where.
    pub spot: Spot,
}

/// What compiling depends on besides the text.
#[derive(Debug, Clone)]
pub struct Options {
    /// MERGE_DOMAIN_CONFIG: the same domain in several files is one domain.
    pub merge_domains: bool,
    /// CACHE_KEY_PREFIX.
    pub key_prefix: Box<str>,
    /// CACHE_KEY_FORMAT, where the store is one whose keys others read, too.
    pub key_format: KeyFormat,
    /// Where rules find their counters.
    pub stats: Arc<StatsTable>,
}

/// Rules that can serve, and what is odd about them.
#[derive(Debug)]
pub struct Loaded {
    /// The rules.
    pub rules: RuleSet,
    /// Worth a look, but no reason to refuse.
    pub warnings: Vec<Finding>,
}

/// Compiles all sources into one set.
///
/// # Errors
/// Every problem of every source. One is enough to refuse all: half of the rules is not what anybody wrote.
pub fn load(sources: &[Source], options: &Options) -> Result<Loaded, Vec<Finding>> {
    let mut findings = Findings::default();
    let mut compiler = Compiler::new(options);
    for source in sources {
        let mut findings = findings.of(source);
        if let Some(file) = schema::read(source, &mut findings) {
            compiler.add(source, file, &mut findings);
        }
    }
    let rules = compiler.finish();
    let (problems, warnings) = findings.into_parts();
    if problems.is_empty() { Ok(Loaded { rules, warnings }) } else { Err(problems) }
}
