//! Compiles the rules with another text of one file, as a reload would. Blocks as long as that.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::config::error::{Finding, in_file_order};
use crate::config::{self, BoundedSource, CompileOptions, Source};
use crate::rule_files::name::FileName;
use crate::rule_source::files::{Directory, read_overlay};
use crate::rules::RuleSet;
use crate::rules::stats::{METRIC_SERIES_MAX, StatsTable};
use crate::telemetry::metric::Metrics;

/// The compiler of the rules in force, and what it reads.
#[derive(Debug)]
pub(crate) struct Compiler {
    pub(crate) directory: Directory,
    /// Without the overlay.
    pub(crate) options: CompileOptions,
    /// TOLLGATE_OVERLAY
    pub(crate) overlay: Option<PathBuf>,
}

/// Who sent a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sender {
    /// A request without a token.
    Unknown,
    /// A request with the token of operators: as large as files may be.
    Operator,
}

/// Valid rules that are not in force.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) rules: RuleSet,
    /// As objects of JSON, as errors are.
    pub(crate) warnings: Vec<Value>,
}

impl Compiler {
    /// Compiles all files, with `text` in place of that of one, which need not exist. Registers no
    /// metric.
    ///
    /// # Errors
    /// Every error, as an object of JSON.
    pub(crate) fn compile(
        &self,
        name: &FileName,
        text: Arc<str>,
        sender: Sender,
    ) -> Result<Compiled, Vec<Value>> {
        let path = self.directory.path.join(name.as_str());
        let read = self.directory.read_with(&path, text).and_then(|sources| {
            let overlay = self.overlay.as_deref().map(read_overlay);
            Ok((sources, overlay.transpose()?))
        });
        // A reload would be rejected for the same reason.
        let (sources, overlay) = read.map_err(|error| vec![unreadable(&error)])?;
        let options = CompileOptions {
            overlay,
            stats: StatsTable::new(METRIC_SERIES_MAX, &Metrics::new()),
            ..self.options.clone()
        };
        let bounded = |source: Source| match sender {
            Sender::Unknown if Path::new(&*source.path) == path => {
                BoundedSource::of_unknown(source)
            }
            _ => BoundedSource::of_operator(source),
        };
        let sources: Vec<_> = sources.into_iter().map(bounded).collect();
        let loaded = config::load_bounded(&sources, &options).map_err(|found| self.shown(found))?;
        Ok(Compiled {
            rules: loaded.rules,
            warnings: self.shown(loaded.warnings),
        })
    }

    fn shown(&self, findings: Vec<Finding>) -> Vec<Value> {
        let findings = in_file_order(findings).into_iter();
        findings.map(|found| self.finding(&found)).collect()
    }

    fn finding(&self, found: &Finding) -> Value {
        json!({
            "file": self.file_of(&found.source),
            "line": found.location.map(|at| at.line),
            "column": found.location.map(|at| at.column),
            "message": found.message(),
            "place": found.place,
            "hint": found.hint,
        })
    }

    /// The path of a file below the folder; of the overlay its whole path.
    fn file_of(&self, source: &Source) -> String {
        let path = Path::new(&*source.path);
        let below = path.strip_prefix(&self.directory.path).unwrap_or(path);
        below.to_string_lossy().into_owned()
    }
}

fn unreadable(error: &anyhow::Error) -> Value {
    let message = format!("{error:#}");
    json!({"file": null, "line": null, "column": null, "message": message, "place": null, "hint": null})
}
