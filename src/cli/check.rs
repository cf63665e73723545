//! `tollgate check`: the loader that serves, without serving.

use std::path::PathBuf;

use crate::cli::{Failure, counted, say};
use crate::config::error::{Draft, Findings, in_file_order};
use crate::config::yaml::Location;
use crate::config::{self, CompileOptions, Loaded, Source};
use crate::limit::Limit;
use crate::rule_source::settings::Reading;
use crate::rules::key::KeyFormat;
use crate::rules::stats::{METRIC_SERIES_MAX, StatsTable};
use crate::rules::tree::{Level, Node};
use crate::rules::{OnLimit, Rule};
use crate::telemetry::metric::Metrics;
use crate::time::Span;

/// Arguments of `check`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Directory of rules files [default: as for serve]
    #[arg(value_name = "DIR")]
    rules: Option<PathBuf>,
    /// The same, as the reference's tool has it
    #[arg(long, value_name = "DIR", conflicts_with = "rules")]
    config_dir: Option<PathBuf>,
    #[command(flatten)]
    reading: Reading,
}

/// Rules as a command reads them.
pub struct Checked {
    /// Where they are.
    pub directory: String,
    /// The files.
    pub sources: Vec<Source>,
    /// What they come to.
    pub loaded: Loaded,
}

/// Prints every warning and problem.
///
/// # Errors
/// Rules that would be refused, with all that is wrong with them.
pub fn run(args: &Args) -> Result<(), Failure> {
    let checked = load(
        args.rules.as_ref().or(args.config_dir.as_ref()).cloned(),
        &args.reading,
    )?;
    for warning in in_file_order(checked.loaded.warnings.clone()) {
        say(&format!("warning: {warning}\n\n"));
    }
    warn_about_underscores(&checked);
    note_queues(&checked);
    if checked.sources.is_empty() {
        say(&format!(
            "warning: no files in {}: nothing would be limited\n\n",
            checked.directory
        ));
    }
    let rules = &checked.loaded.rules;
    let (limits, domains) = (
        counted(rules.rule_count(), "limit"),
        counted(rules.domain_count(), "domain"),
    );
    say(&format!(
        "{}: ok, {limits} in {domains} of {}\n",
        checked.directory,
        counted(checked.sources.len(), "file")
    ));
    Ok(())
}

/// Loads the rules that `serve` would load with the same directory and settings.
///
/// # Errors
/// Files that cannot be read, rules that are invalid.
pub fn load(directory: Option<PathBuf>, reading: &Reading) -> Result<Checked, Failure> {
    let is_named = directory.is_some();
    let files = reading.files(directory).map_err(Failure::Config)?;
    let directory = files.path().display().to_string();
    let sources = files.read().map_err(|error| {
        let hint = if is_named {
            ""
        } else {
            "; name the directory of the rules, or set RUNTIME_ROOT"
        };
        Failure::Config(format!("{error:#}{hint}"))
    })?;
    let overlay = reading
        .overlay()
        .map(|overlay| overlay.read())
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

/// Prints what has to be set at Envoy for rules that hold calls back. A service does not, since it
/// cannot know whether it is.
fn note_queues(checked: &Checked) {
    let max_wait = |rule: &Rule| {
        rule.limit()
            .filter(|_| rule.on_limit == OnLimit::Queue && !rule.shadow_mode)
            .map(Limit::max_wait)
    };
    let rules = checked.loaded.rules.rules();
    let mut findings = Findings::default();
    for source in &checked.sources {
        let waits = rules
            .iter()
            .filter(|rule| rule.origin.file == source.path)
            .filter_map(|rule| Some((max_wait(rule)?, rule)));
        let Some((longest, rule)) = waits.max_by_key(|(wait, _)| *wait) else {
            continue;
        };
        let location = Location {
            line: rule.origin.line,
            column: rule.origin.column,
            width: 1,
        };
        let text = format!(
            "calls are held back for up to {longest}, and Envoy waits 20 ms for an answer unless told otherwise"
        );
        let hint = Some(format!(
            "give Envoy's rate limit filter a `timeout` of at least {}s",
            timeout_for(longest).as_secs_f64()
        ));
        findings.of(source).warning(Draft {
            location,
            place: &format!("rule {}", rule.path),
            text,
            hint,
        });
    }
    for note in in_file_order(findings.into_parts().1) {
        say(&format!("note: {note}\n\n"));
    }
}

/// The shortest time-out that leaves so long to wait: of each a fifth, or eight ms, is kept for the
/// answer's way back.
fn timeout_for(wait: Span) -> Span {
    Span::from_micros((wait.as_micros() * 5 / 4).max(wait.as_micros() + 8_000))
}

/// Warns about keys and values with `_` in the reference format, which joins them with `_`: clients
/// can make two counters share one key. `serve` does not repeat it at every load.
fn warn_about_underscores(checked: &Checked) {
    let mut joined = Vec::new();
    for domain in checked.loaded.rules.domains() {
        collect_joined(&domain.root, None, &mut joined);
    }
    let first = joined
        .iter()
        .min_by_key(|(rule, _)| (&rule.origin.file, rule.origin.line));
    let Some((rule, node)) = first else {
        return;
    };
    let source = checked
        .sources
        .iter()
        .find(|source| source.path == rule.origin.file)
        .expect("every rule is from a source");
    let value = if node.value.is_empty() {
        "x"
    } else {
        &node.value
    };
    let both = format!("{}_{value}", node.key);
    let (key, rest) = both.split_once('_').expect("they were just joined");
    // A key without `_` is followed by a value that has one.
    let (key, rest) = if *key == *node.key {
        both.rsplit_once('_').expect("they were just joined")
    } else {
        (key, rest)
    };
    let mut findings = Findings::default();
    findings.of(source).warning(Draft {
        location: Location {
            line: rule.origin.line,
            column: rule.origin.column,
            width: 1,
        },
        place: &format!("rule {}", rule.path),
        text: format!(
            "{}={value} and {key}={rest} have the same counter key, because CACHE_KEY_FORMAT=reference joins keys and values with `_`; rules with a `_` in a key or value: {}",
            node.key,
            joined.len(),
        ),
        hint: Some("set CACHE_KEY_FORMAT=safe (every counter starts again, once)".to_owned()),
    });
    for warning in findings.into_parts().1 {
        say(&format!("warning: {warning}\n\n"));
    }
}

/// Collects the rules with a reference key below a node with `_` in its key or value, each with the
/// outermost such node.
fn collect_joined<'r>(
    level: &'r Level,
    above: Option<&'r Node>,
    joined: &mut Vec<(&'r Rule, &'r Node)>,
) {
    for node in level.nodes() {
        let has_underscore = node.key.contains('_') || node.value.contains('_');
        let found = above.or(has_underscore.then_some(node));
        if let (Some(rule), Some(found)) = (&node.rule, found)
            && rule.key_tail.format() == KeyFormat::Reference
        {
            joined.push((rule, found));
        }
        if let Some(below) = &node.below {
            collect_joined(below, found, joined);
        }
    }
}
