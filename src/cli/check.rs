//! `tollgate check`: loads rules as `serve` would, and reports every problem.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::cli::output::{Failure, counted, print};
use crate::config::error::{Findings, in_file_order};
use crate::config::yaml::{Diagnostic, Location};
use crate::config::{self, CompileOptions, Loaded, Source};
use crate::rule_source::files::read_overlay;
use crate::rule_source::settings::Reading;
use crate::rules::key::KeyFormat;
use crate::rules::stats::{METRIC_SERIES_MAX, StatsTable};
use crate::rules::tree::{Level, Node};
use crate::rules::{OnLimit, Rule};
use crate::settings::environment::Environment;
use crate::telemetry::metric::Metrics;
use crate::time::Span;

/// Arguments of `check`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// Directory of rules files [default: as for serve]
    #[arg(value_name = "DIR")]
    rules: Option<PathBuf>,
    /// The same, as in envoyproxy/ratelimit's tool
    #[arg(long, value_name = "DIR", conflicts_with = "rules")]
    config_dir: Option<PathBuf>,
    #[command(flatten)]
    reading: Reading,
}

/// Rules that a command has loaded.
pub(crate) struct Checked {
    pub directory: String,
    pub sources: Vec<Source>,
    pub loaded: Loaded,
}

/// Prints every warning and problem.
///
/// # Errors
/// Invalid rules, with every problem.
pub(crate) fn run(args: &Args, environment: &Environment) -> Result<ExitCode, Failure> {
    let checked = load(
        args.rules.as_ref().or(args.config_dir.as_ref()).cloned(),
        &args.reading,
        environment,
    )?;
    for warning in in_file_order(checked.loaded.warnings.clone()) {
        print(&format!("warning: {warning}\n\n"));
    }
    print_findings(&checked, "warning", shared_counters(&checked));
    print_findings(&checked, "note", queues(&checked));
    if checked.sources.is_empty() {
        print(&format!(
            "warning: no files in {}: nothing would be limited\n\n",
            checked.directory
        ));
    }
    let rules = &checked.loaded.rules;
    let (limits, domains) = (
        counted(rules.rule_count(), "limit"),
        counted(rules.domain_count(), "domain"),
    );
    print(&format!(
        "{}: ok, {limits} in {domains} of {}\n",
        checked.directory,
        counted(checked.sources.len(), "file")
    ));
    Ok(ExitCode::SUCCESS)
}

/// Loads the rules that `serve` would load with the same directory and settings.
///
/// # Errors
/// Files that cannot be read, rules that are invalid.
pub(crate) fn load(
    directory: Option<PathBuf>,
    reading: &Reading,
    environment: &Environment,
) -> Result<Checked, Failure> {
    let is_named = directory.is_some();
    let files = reading
        .files(directory, environment)
        .map_err(Failure::Config)?;
    let directory = files.path.display().to_string();
    let sources = files.read().map_err(|error| {
        let hint = if is_named {
            ""
        } else {
            "; name the directory of the rules, or set RUNTIME_ROOT"
        };
        Failure::Config(format!("{error:#}{hint}"))
    })?;
    let overlay = reading.tollgate_overlay.as_deref();
    let overlay = overlay
        .map(read_overlay)
        .transpose()
        .map_err(|error| Failure::Config(format!("{error:#}")))?;
    let options = CompileOptions {
        overlay,
        ..reading.options(StatsTable::new(METRIC_SERIES_MAX, &Metrics::new()))
    };
    match config::load(&sources, &options) {
        Ok(loaded) => Ok(Checked {
            directory,
            sources,
            loaded,
        }),
        Err(problems) => {
            let problems: Vec<String> = in_file_order(problems)
                .iter()
                .map(ToString::to_string)
                .collect();
            Err(Failure::Config(format!(
                "{} in {directory}\n\n{}",
                counted(problems.len(), "problem"),
                problems.join("\n\n")
            )))
        }
    }
}

/// A rule, what is to be known about it, and what to do.
type Finding<'r> = (&'r Rule, String, String);

/// Prints findings in the order of their files.
fn print_findings(checked: &Checked, kind: &str, found: Vec<Finding<'_>>) {
    let mut findings = Findings::default();
    for (rule, text, hint) in found {
        let source = checked
            .sources
            .iter()
            .find(|source| source.path == rule.origin.file)
            .expect("every rule is from a source");
        let location = Location {
            line: rule.origin.line,
            column: rule.origin.column,
            width: 1,
        };
        findings
            .of(source)
            .at(format_args!("rule {}", rule.path))
            .warning(Diagnostic::new(location, text).hint(hint));
    }
    for finding in in_file_order(findings.into_parts().1) {
        print(&format!("{kind}: {finding}\n\n"));
    }
}

/// Which timeout rules that queue requests need at Envoy: the longest of each file. `serve` does not
/// report it, since it cannot know what is set there.
fn queues(checked: &Checked) -> Vec<Finding<'_>> {
    let max_wait = |rule: &Rule| {
        rule.limit()
            .filter(|_| rule.on_limit == OnLimit::Queue && !rule.shadow_mode)
            .map(|limit| limit.max_wait)
    };
    let rules = checked.loaded.rules.rules();
    let longest = checked.sources.iter().filter_map(|source| {
        rules
            .iter()
            .filter(|rule| rule.origin.file == source.path)
            .filter_map(|rule| Some((max_wait(rule)?, *rule)))
            .max_by_key(|(wait, _)| *wait)
    });
    let found = longest.map(|(wait, rule)| {
        let text = format!(
            "requests are queued for up to {wait}, but Envoy waits only 20 ms for an answer by default"
        );
        let hint = format!(
            "give Envoy's rate limit filter a `timeout` of at least {}s",
            timeout_for(wait).as_secs_f64()
        );
        (rule, text, hint)
    });
    found.collect()
}

/// The shortest timeout that leaves this time to wait: a fifth of it, at least 8 ms, is reserved for
/// the response.
fn timeout_for(wait: Span) -> Span {
    Span::from_micros((wait.as_micros() * 5 / 4).max(wait.as_micros() + 8_000))
}

/// Descriptors side by side of which one has any value and another begins with its key and `_`. The
/// reference format joins keys and values with `_`, so clients can make them share a counter.
/// `serve` does not repeat it at every load.
fn shared_counters(checked: &Checked) -> Vec<Finding<'_>> {
    let mut shared = Vec::new();
    for domain in checked.loaded.rules.domains() {
        collect_shared(&domain.root, &mut shared);
    }
    let hint = "set CACHE_KEY_FORMAT=safe (every counter starts again, once), or rename a key";
    let found = shared.into_iter().map(|(rule, one, other)| {
        let text = format!("{one} and {other} share a counter on Redis");
        (rule, text, hint.to_owned())
    });
    found.collect()
}

/// Rules that can share a counter with another one, each with an example of both.
fn collect_shared<'r>(level: &'r Level, shared: &mut Vec<(&'r Rule, String, String)>) {
    let labels: BTreeMap<&str, &Node> = level
        .nodes()
        .iter()
        .map(|node| (&*node.label, node))
        .collect();
    for node in level.nodes() {
        let prefix = format!("{}_", node.key);
        let is_reference = |rule: &&Rule| rule.key_tail.format() == KeyFormat::Reference;
        let rule = node.rule.as_deref().filter(is_reference);
        let other = labels
            .range(&*prefix..)
            .take_while(|(label, _)| label.starts_with(&prefix))
            .find(|(_, other)| other.key != node.key && other.rule.is_some());
        if let (Some(rule), Some((label, other)), true) = (rule, other, node.value.is_empty()) {
            let (rest, value) = match &*other.value {
                "" => (format!("{}_x", &label[prefix.len()..]), "x"),
                value => (label[prefix.len()..].to_owned(), value),
            };
            shared.push((
                rule,
                format!("{}={rest}", node.key),
                format!("{}={value}", other.key),
            ));
        }
        if let Some(below) = &node.below {
            collect_shared(below, shared);
        }
    }
}
