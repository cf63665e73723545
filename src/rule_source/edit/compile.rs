//! Compiles the rules with another text of one file, as a reload would. Blocks as long as that.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::source::CHECKED_CALENDARS_MAX;
use crate::config::{self, BoundedSource, CompileOptions, Source, error};
use crate::report::Finding;
use crate::rule_source::edit::name::FileName;
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

/// The sender of a text.
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
    pub(crate) warnings: Vec<Finding>,
}

impl Compiler {
    /// Compiles all files, with `text` in place of that of one, which need not exist. Registers no
    /// metric.
    ///
    /// # Errors
    /// Every error.
    pub(crate) fn compile(
        &self,
        name: &FileName,
        text: Arc<str>,
        sender: Sender,
    ) -> Result<Compiled, Vec<Finding>> {
        let path = self.directory.path.join(name.as_str());
        let read = self.directory.read_with(&path, text).and_then(|sources| {
            let overlay = self.overlay.as_deref().map(read_overlay);
            Ok((sources, overlay.transpose()?))
        });
        // A reload would be rejected for the same reason.
        let (sources, overlay) =
            read.map_err(|error| vec![Finding::unread(format!("{error:#}"))])?;
        let options = CompileOptions {
            overlay,
            calendars_max: CHECKED_CALENDARS_MAX,
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
        let loaded = config::load_bounded(&sources, &options);
        let loaded = loaded.map_err(|found| self.reported(found))?;
        Ok(Compiled {
            rules: loaded.rules,
            warnings: self.reported(loaded.warnings),
        })
    }

    /// Files are named by their paths below the folder; the overlay by its whole path.
    fn reported(&self, findings: Vec<error::Finding>) -> Vec<Finding> {
        let mut findings = error::reported(findings);
        for path in findings.iter_mut().filter_map(|found| found.file.as_mut()) {
            if let Ok(below) = Path::new(path).strip_prefix(&self.directory.path) {
                *path = below.to_string_lossy().into_owned();
            }
        }
        findings
    }
}
