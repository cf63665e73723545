//! From rules as they come, text or already in shape, to a RuleSet.
//!
//! There is one compiler, and it looks at everything before it gives up: all problems of all files
//! come out together, each with its place and what to write instead. What the reference accepts is
//! accepted, and means the same.

use std::sync::Arc;

use crate::config::compile::Compiler;
use crate::config::error::{Finding, Findings, SourceFindings};
use crate::config::overlay::Overlay;
use crate::config::schema::RulesFile;
use crate::config::yaml::Location;
use crate::limit::{Algorithm, Months};
use crate::rules::stats::StatsTable;
use crate::rules::tree::Dots;
use crate::rules::{KeyFormat, RuleSet};

pub mod compile;
pub mod error;
pub mod metadata;
pub mod metric_mapping;
pub mod overlay;
pub mod resolve;
pub mod schema;
pub mod tollgate;
pub mod yaml;

/// A text of rules.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Source {
    /// As the reference names it in its messages: the path below the watched directory, with dots
    /// for slashes.
    pub name: Arc<str>,
    /// Where an operator finds it.
    pub path: Arc<str>,
    /// What it says.
    pub text: Arc<str>,
}

/// Something that rules are read from.
pub trait Input {
    /// What messages call it. Of what is no text, there is none.
    fn source(&self) -> &Source;

    /// Its rules in shape; `None` if they have none, which is told.
    fn read(&self, findings: &mut SourceFindings<'_>) -> Option<RulesFile>;
}

/// A value, and where it stands.
#[derive(Debug, Clone, Default)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// Where.
    pub location: Location,
}

/// What compiling depends on besides the text.
#[derive(Debug, Clone)]
pub struct CompileOptions {
    /// MERGE_DOMAIN_CONFIG: the same domain in several files is one domain.
    pub merge_domains: bool,
    /// CACHE_KEY_PREFIX.
    pub key_prefix: Box<str>,
    /// CACHE_KEY_FORMAT, where the store is one whose keys others read, too.
    pub key_format: KeyFormat,
    /// DEFAULT_ALGORITHM: where nothing else says how to count.
    pub default_algorithm: Option<Algorithm>,
    /// USE_CALENDAR_MONTH_RATE_LIMIT.
    pub months: Months,
    /// SANITIZE_DESCRIPTOR_METRIC_DOTS.
    pub metric_dots: Dots,
    /// TOLLGATE_OVERLAY: blocks for rules that somebody else writes.
    pub overlay: Option<Source>,
    /// Where rules find their counters.
    pub stats: Arc<StatsTable>,
}

impl CompileOptions {
    /// As they are unless somebody says otherwise.
    pub fn new(stats: Arc<StatsTable>) -> Self {
        Self {
            merge_domains: false,
            key_prefix: Box::default(),
            key_format: KeyFormat::Reference,
            default_algorithm: None,
            months: Months::ThirtyDays,
            metric_dots: Dots::Keep,
            overlay: None,
            stats,
        }
    }
}

/// Rules that can serve, and what is odd about them.
#[derive(Debug)]
pub struct Loaded {
    /// The rules.
    pub rules: RuleSet,
    /// Worth a look, but no reason to refuse.
    pub warnings: Vec<Finding>,
}

impl Input for Source {
    fn source(&self) -> &Source {
        self
    }

    fn read(&self, findings: &mut SourceFindings<'_>) -> Option<RulesFile> {
        schema::read(self, findings)
    }
}

/// Compiles all inputs into one set.
///
/// # Errors
/// Every problem of every input. One is enough to refuse all: half of the rules is not what anybody
/// wrote.
pub fn load(inputs: &[impl Input], options: &CompileOptions) -> Result<Loaded, Vec<Finding>> {
    let mut findings = Findings::default();
    let overlay = options
        .overlay
        .as_ref()
        .map(|source| Overlay::read(source, &mut findings.of(source)))
        .unwrap_or_default();
    let mut compiler = Compiler::new(options, &overlay);
    for input in inputs {
        let mut findings = findings.of(input.source());
        if let Some(file) = input.read(&mut findings) {
            compiler.add(input.source(), file, &mut findings);
        }
    }
    let rules = compiler.finish();
    if let Some(source) = &options.overlay {
        overlay.warn_about_unused(&mut findings.of(source));
    }
    let (problems, warnings) = findings.into_parts();
    if problems.is_empty() {
        Ok(Loaded { rules, warnings })
    } else {
        Err(problems)
    }
}
