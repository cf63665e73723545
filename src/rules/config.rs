//! Compiles rules to a [`RuleSet`], from YAML or from a control plane.
//!
//! There is one compiler. It checks everything before it fails: all problems of all files are
//! reported at once, each with its location and a hint. What envoyproxy/ratelimit accepts is
//! accepted with the same meaning; docs/compatibility.md lists the exceptions.

use crate::rules::RuleSet;
use crate::rules::config::compile::Compiler;
use crate::rules::config::error::{Finding, Findings, SourceFindings};
use crate::rules::config::overlay::Overlay;
use crate::rules::config::spec::RulesFile;

pub use source::{CompileOptions, Source};

mod allowance;
pub mod calendar;
mod chain;
mod compile;
mod context;
mod descriptor;
pub mod error;
pub(crate) mod keys;
pub mod metadata;
pub(crate) mod metric_mapping;
pub(crate) mod overlay;
mod resolve;
pub(crate) mod schema;
pub(crate) mod source;
pub(crate) mod spec;
pub(crate) mod tollgate;
pub mod yaml;

/// Something that rules are read from.
pub(crate) trait Input {
    /// The source that messages name. A resource of a control plane has no text.
    fn source(&self) -> &Source;

    /// The rules; `None` after a problem that leaves none.
    fn read(&self, findings: &mut SourceFindings<'_>) -> Option<RulesFile<'_>>;
}

/// Valid rules, and warnings about them.
#[derive(Debug)]
pub struct Loaded {
    /// The rules.
    pub rules: RuleSet,
    /// Rules that may not mean what their author thinks.
    pub warnings: Vec<Finding>,
}

impl Input for Source {
    fn source(&self) -> &Source {
        self
    }

    fn read(&self, findings: &mut SourceFindings<'_>) -> Option<RulesFile<'_>> {
        schema::read(findings)
    }
}

/// Compiles files into one rule set.
///
/// # Errors
/// Every problem of every file. One rejects all, because a part of the rules is not what their
/// author wrote.
pub fn load(sources: &[Source], options: &CompileOptions) -> Result<Loaded, Vec<Finding>> {
    load_inputs(sources, options)
}

/// [`load`] for any kind of input.
///
/// # Errors
/// The errors of [`load`].
pub(crate) fn load_inputs(
    inputs: &[impl Input],
    options: &CompileOptions,
) -> Result<Loaded, Vec<Finding>> {
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
            file.check(&mut findings);
            compiler.add(input.source(), file, &mut findings);
        }
    }
    let rules = compiler.finish();
    if let Some(source) = &options.overlay {
        overlay.warn_about_unused(&rules, &mut findings.of(source));
    }
    let (problems, warnings) = findings.into_parts();
    if problems.is_empty() { Ok(Loaded { rules, warnings }) } else { Err(problems) }
}
