//! The rules that a command line names: folders, files, Kubernetes manifests or stdin.
//!
//! A folder is read as `serve` reads it. A file is a rules file, or a Kubernetes manifest with
//! rules in ConfigMaps.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::slice;

use anyhow::Context as _;

use crate::base::environment::Environment;
use crate::cli::manifest::{self, Quoted};
use crate::cli::output::{CliError, counted};
use crate::rules::RuleSet;
use crate::rules::config::error::{Finding, in_file_order};
use crate::rules::config::{self, CompileOptions, Source};
use crate::rules::source::files::{has_cases, read_overlay, read_text_from};
use crate::rules::source::settings::Reading;
use crate::rules::stats::{METRIC_SERIES_MAX, StatsTable};
use crate::store::redis::settings::CLUSTER;
use crate::telemetry::metric::Metrics;

/// The rules that were read.
#[derive(Debug, Default)]
pub(crate) struct Input {
    /// The name in messages.
    pub(crate) name: String,
    /// Every file as it was read, and the sources in [`Input::quoted`].
    pub(crate) files: Vec<Source>,
    /// Rules files and folders are one set of rules; a ConfigMap is one of its own.
    pub(crate) sets: Vec<Vec<Source>>,
    /// Sources in manifests that have positions of their own.
    pub(crate) quoted: Vec<Quoted>,
}

impl Input {
    /// Reads folders, files, manifests and stdin (`-`); without any, the folder that `serve` reads.
    ///
    /// # Errors
    /// Anything that cannot be read.
    pub(crate) fn read(
        paths: &[PathBuf],
        reading: &Reading,
        environment: &Environment,
    ) -> Result<Self, CliError> {
        let mut input = Self::default();
        let mut rules = Vec::new();
        match paths {
            [] => {
                let files = reading.files(None, environment).map_err(CliError::Config)?;
                input.name = files.path.display().to_string();
                let hint = "name the directory of the rules, or set RUNTIME_ROOT";
                let read = files.read();
                rules = read.map_err(|error| CliError::Config(format!("{error:#}; {hint}")))?;
                input.files.clone_from(&rules);
            }
            [first, others @ ..] => {
                input.name = shown(first);
                if !others.is_empty() {
                    input.name += &format!(" and {}", counted(others.len(), "other path"));
                }
            }
        }
        for path in paths {
            input.add(path, &mut rules, reading, environment).map_err(invalid)?;
        }
        if !rules.is_empty() || input.sets.is_empty() {
            input.sets.push(rules);
        }
        Ok(input)
    }

    fn add(
        &mut self,
        path: &Path,
        rules: &mut Vec<Source>,
        reading: &Reading,
        environment: &Environment,
    ) -> anyhow::Result<()> {
        if path.is_dir() {
            let files = reading.files(Some(path.to_owned()), environment);
            let sources = files.map_err(anyhow::Error::msg)?.read()?;
            self.files.extend_from_slice(&sources);
            rules.extend(sources);
            return Ok(());
        }
        if !has_cases(path) {
            self.add_file(read_file(path)?, rules);
        }
        Ok(())
    }

    fn add_file(&mut self, file: Source, rules: &mut Vec<Source>) {
        match manifest::read(&file) {
            None => rules.push(file.clone()),
            Some(manifest) => {
                let sources = manifest.config_maps.iter().flatten();
                let quoted = sources.filter(|source| source.path != file.path);
                self.files.extend(quoted.cloned());
                self.sets.extend(manifest.config_maps);
                self.quoted.extend(manifest.quoted);
            }
        }
        self.files.push(file);
    }
}

/// The options that `serve` compiles rules with.
///
/// # Errors
/// The overlay cannot be read.
pub(crate) fn compile_options(
    reading: &Reading,
    environment: &Environment,
) -> Result<CompileOptions, CliError> {
    let overlay = reading.tollgate_overlay.as_deref();
    let redis_type = environment.variable("REDIS_TYPE");
    Ok(CompileOptions {
        one_slot: redis_type.is_some_and(|name| name.eq_ignore_ascii_case(CLUSTER)),
        overlay: overlay.map(read_overlay).transpose().map_err(invalid)?,
        ..reading.options(StatsTable::new(METRIC_SERIES_MAX, &Metrics::new()))
    })
}

/// Loads the rules that `serve` would load with the same directory and settings.
///
/// # Errors
/// Files that cannot be read, rules that are invalid.
pub(crate) fn load(
    directory: Option<&PathBuf>,
    reading: &Reading,
    environment: &Environment,
) -> Result<RuleSet, CliError> {
    let paths = directory.map_or(&[][..], slice::from_ref);
    let input = Input::read(paths, reading, environment)?;
    compile(&input.name, &input.sets.concat(), reading, environment)
}

/// Compiles sources as `serve` would.
///
/// # Errors
/// The overlay cannot be read, rules that are invalid.
pub(crate) fn compile(
    name: &str,
    sources: &[Source],
    reading: &Reading,
    environment: &Environment,
) -> Result<RuleSet, CliError> {
    let loaded = config::load(sources, &compile_options(reading, environment)?);
    Ok(loaded.map_err(|problems| rejected(name, problems))?.rules)
}

/// Every problem of rules or test cases that are invalid.
pub(crate) fn rejected(name: &str, problems: Vec<Finding>) -> CliError {
    let problems: Vec<String> = in_file_order(problems).iter().map(ToString::to_string).collect();
    CliError::Config(format!(
        "{} in {name}\n\n{}",
        counted(problems.len(), "problem"),
        problems.join("\n\n")
    ))
}

fn read_file(path: &Path) -> anyhow::Result<Source> {
    let shown = shown(path);
    let text = if is_stdin(path) {
        read_text_from(io::stdin(), &shown)?
    } else {
        // As a process substitution of a shell, it may be a pipe.
        let file = File::open(path).with_context(|| format!("read {shown}"))?;
        read_text_from(file, &shown)?
    };
    let name = Path::new(&shown).file_name().unwrap_or_default();
    Ok(Source {
        name: name.to_string_lossy().into(),
        path: shown.as_str().into(),
        text: text.into(),
    })
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// A path in messages.
fn shown(path: &Path) -> String {
    if is_stdin(path) { "stdin".to_owned() } else { path.display().to_string() }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn invalid(error: anyhow::Error) -> CliError {
    CliError::Config(format!("{error:#}"))
}
