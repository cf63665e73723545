//! `tollgate check DIR`: the loader that serves, without serving.

use std::path::PathBuf;

use clap::ArgAction;

use crate::cli::{Failure, say};
use crate::config::{self, Loaded, Options, Source};
use crate::rule_source::files::Directory;
use crate::rule_source::settings::key_format;
use crate::rules::KeyFormat;
use crate::rules::stats::{METRIC_SERIES_MAX, StatsTable};
use crate::setting;
use crate::telemetry::metric::Metrics;

/// Arguments of `check`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Directory of rules files
    #[arg(value_name = "DIR", required_unless_present = "config_dir")]
    rules: Option<PathBuf>,
    /// The same, as the reference's tool has it
    #[arg(long, value_name = "DIR", conflicts_with = "rules")]
    config_dir: Option<PathBuf>,
    #[command(flatten)]
    reading: Reading,
}

/// What rules mean depends on these settings of `serve`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Reading {
    /// Make one domain of a domain that several files have
    #[arg(long, alias = "merge-domain-configs", env = "MERGE_DOMAIN_CONFIG", default_value = "false", value_name = "BOOL",
        value_parser = setting::flag, num_args = 0..=1, default_missing_value = "true", action = ArgAction::Set)]
    merge_domain_config: bool,
    /// How counters' keys are written on Redis: reference or safe. In memory they are always safe
    #[arg(long, env = "CACHE_KEY_FORMAT", default_value = "reference", value_name = "FORM", value_parser = key_format)]
    cache_key_format: KeyFormat,
    /// What every counter's key begins with
    #[arg(long, env = "CACHE_KEY_PREFIX", default_value = "", value_name = "TEXT")]
    cache_key_prefix: String,
}

/// Rules as a command reads them.
pub struct Checked {
    /// How many files.
    pub files: usize,
    /// What they come to.
    pub loaded: Loaded,
}

/// Prints every warning and problem.
///
/// # Errors
/// Rules that would be refused, with all that is wrong with them.
pub fn run(args: &Args) -> Result<(), Failure> {
    let directory = args.rules.as_ref().or(args.config_dir.as_ref()).cloned().unwrap_or_default();
    let checked = load(directory.clone(), &args.reading)?;
    for warning in &checked.loaded.warnings {
        say(&format!("warning: {warning}\n\n"));
    }
    if checked.files == 0 {
        say(&format!("warning: no files in {}: nothing would be limited\n\n", directory.display()));
    }
    let rules = &checked.loaded.rules;
    let (limits, domains) = (rules.rule_count(), rules.domain_count());
    say(&format!("{}: ok, {limits} limits in {domains} domains of {} files\n", directory.display(), checked.files));
    Ok(())
}

/// Loads a directory as `serve` would.
///
/// # Errors
/// Files that cannot be read, rules that would be refused.
pub fn load(directory: PathBuf, reading: &Reading) -> Result<Checked, Failure> {
    let path = directory.display().to_string();
    let sources: Vec<Source> = Directory::new(directory, true).read().map_err(|error| Failure::Config(format!("{error:#}")))?;
    let options = Options {
        merge_domains: reading.merge_domain_config,
        key_prefix: reading.cache_key_prefix.as_str().into(),
        key_format: reading.cache_key_format,
        stats: StatsTable::new(METRIC_SERIES_MAX, &Metrics::new()),
    };
    match config::load(&sources, &options) {
        Ok(loaded) => Ok(Checked { files: sources.len(), loaded }),
        Err(problems) => {
            let listed: Vec<String> = problems.iter().map(ToString::to_string).collect();
            Err(Failure::Config(format!("{} problems in {path}\n\n{}", problems.len(), listed.join("\n\n"))))
        }
    }
}
