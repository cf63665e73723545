//! `tollgate check`: loads rules as `serve` would, and reports every problem.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::base::environment::Environment;
use crate::cli::check::format::Format;
use crate::cli::check::report::Report;
use crate::cli::input::{Input, compile_options};
use crate::cli::output::{CliError, counted};
use crate::report::Severity;
use crate::rules::config;
use crate::rules::config::error::in_file_order;
use crate::rules::source::settings::Reading;

mod environment;
mod format;
mod notes;
mod report;

/// Arguments of `check`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// Folders of rules files, single rules files, Kubernetes manifests with rules in ConfigMaps; -
    /// reads stdin [default: the folder that serve reads]
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// A folder of rules files, as in envoyproxy/ratelimit's tool
    #[arg(long, value_name = "DIR", conflicts_with = "paths")]
    config_dir: Option<PathBuf>,
    /// Check the environment of a deployment of envoyproxy/ratelimit instead: which variables mean
    /// the same, which files are read, and which commands Redis must allow. FILE has a variable a
    /// line, as env prints it; - reads stdin [default: the environment of this process]
    #[arg(long, value_name = "FILE", num_args = 0..=1, conflicts_with_all = ["paths", "config_dir", "format", "deny_warnings"])]
    #[expect(clippy::option_option, reason = "the flag may have no value")]
    environment: Option<Option<PathBuf>>,
    /// What to print
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,
    /// Exit with 78 if there is a warning
    #[arg(long)]
    deny_warnings: bool,
    #[command(flatten)]
    reading: Reading,
}

/// Prints every problem, warning and note.
///
/// # Errors
/// Invalid rules, with every problem; with --deny-warnings also rules with a warning.
pub(crate) fn run(args: &Args, environment: &Environment) -> Result<ExitCode, CliError> {
    if let Some(file) = &args.environment {
        return environment::run(file.as_deref(), environment);
    }
    let paths = match &args.config_dir {
        Some(directory) => std::slice::from_ref(directory),
        None => &args.paths,
    };
    let input = Input::read(paths, &args.reading, environment)?;
    let report = check(input, &args.reading, environment)?;
    format::print(&report, args.format)?;
    let warnings = report.count(Severity::Warning);
    if args.deny_warnings && warnings > 0 {
        let warnings = counted(warnings, "warning");
        return Err(CliError::Config(format!(
            "{warnings} in {}, and --deny-warnings is set",
            report.name
        )));
    }
    Ok(ExitCode::SUCCESS)
}

fn check(input: Input, reading: &Reading, environment: &Environment) -> Result<Report, CliError> {
    let options = compile_options(reading, environment)?;
    let mut report = Report::default();
    for sources in &input.sets {
        report.files += sources.len();
        match config::load(sources, &options) {
            Ok(loaded) => {
                let rules = &loaded.rules;
                report.limits += rules.rule_count();
                report.domains += rules.domain_count();
                report.add(Severity::Warning, in_file_order(loaded.warnings));
                report.add(Severity::Warning, notes::shared_counters(rules, &input.files));
                report.add(Severity::Note, notes::queues(rules, &input.files));
                report.add(Severity::Note, notes::reference(rules, &input.files));
                if environment.variable("BACKEND_TYPE") == Some("memory") {
                    report.add(Severity::Note, notes::one_process(rules, &input.files));
                }
            }
            Err(problems) => report.add(Severity::Error, in_file_order(problems)),
        }
    }
    if report.files == 0 {
        report.add(Severity::Warning, vec![notes::nothing_limited(&input.name)]);
    }
    report.name = input.name;
    report.quoted = input.quoted;
    Ok(report)
}
