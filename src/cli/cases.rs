//! `tollgate test`: test cases of rules, decided in this process on a manual clock.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;

use crate::base::environment::Environment;
use crate::cli::deciding::Deciding;
use crate::cli::github::annotation;
use crate::cli::input;
use crate::cli::output::{CliError, json, print};
use crate::report::{CaseReport, Severity};
use crate::rules::config::Source;
use crate::rules::source::files::read_cases;
use crate::what_if::cases::case::CaseFile;
use crate::what_if::cases::{play, read};

mod github;
mod junit;
mod text;

/// The end of the help.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
   0  every test passes
   1  a test fails
  78  rules, settings or test cases are invalid, or there is no test";

/// Arguments of `test`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// Directory, file or manifest of rules [default: as for serve]
    #[arg(value_name = "RULES")]
    rules: Option<PathBuf>,
    /// File of test cases, or directory of *.test.yaml; may be repeated [default: RULES/../tests
    /// and RULES]
    #[arg(long, value_name = "PATH")]
    cases: Vec<PathBuf>,
    /// Run the tests whose names contain a text
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Print the rules that no test reaches
    #[arg(long)]
    coverage: bool,
    /// What to print
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,
    #[command(flatten)]
    deciding: Deciding,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// Each failure with the difference, and a caret at the expectation
    Text,
    /// All results
    Json,
    /// XML for CI systems
    Junit,
    /// Annotations of a pull request, as a GitHub workflow prints them
    Github,
}

/// Runs tests.
///
/// # Errors
/// Invalid rules or test cases, or no test.
pub(crate) fn run(args: &Args, environment: &Environment) -> Result<ExitCode, CliError> {
    let rules = args.deciding.rules(args.rules.as_ref(), environment)?;
    let directory = args.deciding.directory(args.rules.as_ref(), environment)?;
    let files = cases(args, &directory)?;
    let report = play(args.deciding.engine(rules), &files);
    let report = CaseReport { coverage: report.coverage.filter(|_| args.coverage), ..report };
    print(&match args.format {
        Format::Text => text::write(&report),
        Format::Json => json(&report),
        Format::Junit => junit::write(&report),
        Format::Github => github::write(&report),
    });
    Ok(if report.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The tests to run, in files that have any.
fn cases(args: &Args, rules: &Path) -> Result<Vec<CaseFile>, CliError> {
    let places = if args.cases.is_empty() { default_places(rules) } else { args.cases.clone() };
    let mut sources: Vec<Source> = Vec::new();
    for place in &places {
        let read = read_cases(place).map_err(|error| CliError::Config(format!("{error:#}")))?;
        sources.extend(read);
    }
    let mut files = read(sources).map_err(|problems| {
        if let Format::Github = args.format {
            for problem in &problems {
                print(&annotation(Severity::Error, &problem.report(), None));
            }
        }
        input::rejected("test cases", problems)
    })?;
    if let Some(filter) = &args.filter {
        for file in &mut files {
            file.cases.retain(|case| case.name.value.contains(filter));
        }
        files.retain(|file| !file.cases.is_empty());
    }
    if files.is_empty() {
        let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        let named = args.filter.as_ref();
        let named = named.map_or_else(String::new, |text| format!(" whose name contains `{text}`"));
        return Err(CliError::Config(format!(
            "no test{named} in *.test.yaml of {}; --cases names another directory",
            places.join(" and ")
        )));
    }
    Ok(files)
}

/// A directory `tests` beside that of the rules, where envoyproxy/ratelimit does not read them, and
/// that of the rules.
fn default_places(rules: &Path) -> Vec<PathBuf> {
    let beside = match rules.file_name() {
        Some(_) => rules.with_file_name("tests"),
        None => rules.join("../tests"),
    };
    let mut places = vec![beside];
    places.retain(|place| place.is_dir() && place != rules);
    places.push(rules.to_owned());
    places
}
