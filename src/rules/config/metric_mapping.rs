//! Reads a mapping file of statsd_exporter: which of the reference's metrics has which name and
//! labels on the page for Prometheus.
//!
//! Everything that statsd_exporter accepts is accepted and means the same. Options that need every
//! single time (quantiles) or drop metrics (`ttl`) are ignored with a warning.

use std::io::{self, Read as _};
use std::path::Path;

use crate::base::regular_file;
use crate::base::text::did_you_mean;
use crate::rules::config::error::{Finding, Findings, SourceFindings};
use crate::rules::config::source::Source;
use crate::rules::config::tollgate::reader::{flag, list, map, word};
use crate::rules::config::yaml::{Diagnostic, FILE_NODES_MAX, Kind, Node};
use crate::telemetry::mapper::{self, MAPPINGS_MAX, Mapping, Observer, Pattern, Rule};

/// Bytes of PROMETHEUS_MAPPER_YAML: as many as a ConfigMap holds.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Buckets of a histogram: each is a series.
const BUCKETS_MAX: usize = 1_000;

const ROOT_KEYS: &[&str] = &["defaults", "mappings"];
/// The keys of a mapping, with those of `defaults`.
const KEYS: &[&str] = &[
    "match",
    "match_type",
    "match_metric_type",
    "name",
    "labels",
    "help",
    "action",
    "scale",
    "timer_type",
    "observer_type",
    "histogram_options",
    "summary_options",
    "buckets",
    "quantiles",
    "ttl",
    "glob_disable_ordering",
];

/// Whether patterns are regular expressions.
const MATCH_TYPES: [(&str, bool); 2] = [("glob", false), ("regex", true)];
/// Whether metrics are dropped.
const ACTIONS: [(&str, bool); 2] = [("map", false), ("drop", true)];
const OBSERVERS: [(&str, Observer); 2] =
    [("histogram", Observer::Histogram), ("summary", Observer::Summary)];
const KINDS: [(&str, mapper::Kind); 4] = [
    ("counter", mapper::Kind::Counter),
    ("gauge", mapper::Kind::Gauge),
    ("observer", mapper::Kind::Observer),
    ("timer", mapper::Kind::Observer),
];

/// A valid file.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) mapping: Mapping,
    /// Parts without an effect.
    pub(crate) warnings: Vec<Finding>,
}

/// Defaults of rules.
#[derive(Default)]
struct Defaults {
    is_regex: bool,
    times: Times,
    /// Whether the glob with the fewest stars wins, compared from the left, instead of the first.
    most_specific_first: bool,
}

/// The presentation of times, by a rule or by the defaults.
#[derive(Default)]
struct Times {
    observer: Option<Observer>,
    buckets: Vec<f64>,
}

/// Reads a file.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn load(path: &Path) -> io::Result<Result<Loaded, Vec<Finding>>> {
    let mut text = String::new();
    let file = regular_file::open(path)?;
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other("it has more than 1 MiB"));
    }
    Ok(read(&Source {
        name: "PROMETHEUS_MAPPER_YAML".into(),
        path: path.to_string_lossy().into(),
        text: text.into(),
    }))
}

/// Reads a text.
///
/// # Errors
/// All problems of it.
fn read(source: &Source) -> Result<Loaded, Vec<Finding>> {
    let mut findings = Findings::default();
    let mapping = mapping(&mut findings.of(source));
    let (problems, warnings) = findings.into_parts();
    match mapping {
        Some(mapping) if problems.is_empty() => Ok(Loaded { mapping, warnings }),
        _ => Err(problems),
    }
}

fn mapping(findings: &mut SourceFindings<'_>) -> Option<Mapping> {
    let root = findings.read_yaml(FILE_NODES_MAX);
    let root = root.map_err(|error| findings.problem(error)).ok()?;
    let Some(root) = root else {
        return Some(Mapping::default());
    };
    let mut defaults = Defaults::default();
    let mut mappings = None;
    for (key, value) in map(&root, ROOT_KEYS, findings)? {
        match key.text() {
            "defaults" => defaults = Defaults::read(value, &mut findings.at("defaults"))?,
            "mappings" => mappings = Some(value),
            _ => warn_unknown(key, ROOT_KEYS, findings),
        }
    }
    let mut mapping =
        Mapping::new(defaults.times.observer.unwrap_or_default(), defaults.times.buckets.clone());
    let Some(mappings) = mappings else {
        return Some(mapping);
    };
    if let Kind::List(items) = &mappings.kind
        && let Some(first) = items.get(MAPPINGS_MAX)
    {
        let text = format!("there are more than {MAPPINGS_MAX} mappings");
        findings.reject(first.location, text, "write fewer, with globs");
        return None;
    }
    let mut rules = list(mappings, &mut findings.at("mappings"), |item, findings| {
        rule(item, &defaults, findings)
    });
    if defaults.most_specific_first {
        rules.sort_by_key(|(pattern, _)| {
            let parts = pattern.split('.');
            parts.map(|part| part == "*").collect::<Vec<_>>()
        });
    }
    for (_, rule) in rules {
        mapping.add(rule);
    }
    Some(mapping)
}

impl Defaults {
    fn read(node: &Node, findings: &mut SourceFindings<'_>) -> Option<Self> {
        let mut defaults = Self::default();
        for (key, value) in map(node, KEYS, findings)? {
            match key.text() {
                name @ "match_type" => {
                    defaults.is_regex = word(value, name, &MATCH_TYPES, findings)?;
                }
                name @ "glob_disable_ordering" => {
                    defaults.most_specific_first = flag(value, name, findings);
                }
                _ => defaults.times.set(key, value, findings)?,
            }
        }
        Some(defaults)
    }
}

/// A rule, and its pattern as it is written.
fn rule(
    node: &Node,
    defaults: &Defaults,
    findings: &mut SourceFindings<'_>,
) -> Option<(String, Rule)> {
    let mut pattern = None;
    let mut is_regex = defaults.is_regex;
    let mut name = None;
    let (mut kind, mut labels, mut drops, mut scale, mut help) =
        (None, Vec::new(), false, 1.0, None);
    let mut times = Times::default();
    for (key, value) in map(node, KEYS, findings)? {
        match key.text() {
            "match" => pattern = Some((value.location, text(value, findings)?)),
            key @ "match_type" => is_regex = word(value, key, &MATCH_TYPES, findings)?,
            key @ "match_metric_type" => kind = Some(word(value, key, &KINDS, findings)?),
            "name" => name = Some(metric_name(value, findings)?),
            "labels" => labels = label_pairs(value, findings)?,
            "help" => help = Some(text(value, findings)?.to_owned()),
            key @ "action" => drops = word(value, key, &ACTIONS, findings)?,
            "scale" => scale = scale_factor(value, findings)?,
            _ => times.set(key, value, findings)?,
        }
    }
    let (Some((location, pattern)), Some(name)) = (pattern, name) else {
        let key = if pattern.is_none() { "match" } else { "name" };
        let hint = format!("write one, such as {key}: ...");
        findings.reject(node.location, format!("this mapping has no {key}"), hint);
        return None;
    };
    let compiled = if is_regex { Pattern::regex(pattern) } else { Pattern::glob(pattern) };
    let compiled =
        compiled.map_err(|error| findings.problem(Diagnostic::new(location, error))).ok()?;
    let rule = Rule {
        pattern: compiled,
        kind,
        name,
        labels,
        drops,
        scale,
        help,
        observer: times.observer,
        buckets: times.buckets,
    };
    Some((pattern.to_owned(), rule))
}

impl Times {
    fn set(&mut self, key: &Node, value: &Node, findings: &mut SourceFindings<'_>) -> Option<()> {
        match key.text() {
            name @ ("timer_type" | "observer_type") => {
                self.observer = Some(word(value, name, &OBSERVERS, findings)?);
            }
            "buckets" => self.buckets = buckets(value, findings)?,
            "histogram_options" => {
                for (key, value) in map(value, &["buckets"], findings)? {
                    match key.text() {
                        "buckets" => self.buckets = buckets(value, findings)?,
                        _ => warn_unknown(key, &["buckets"], findings),
                    }
                }
            }
            name @ ("summary_options" | "quantiles") => {
                let text = format!("{name} has no effect: a summary here is a sum and a count");
                findings.warning(Diagnostic::new(key.location, text));
            }
            "ttl" => {
                let text = "ttl has no effect: no metric is forgotten";
                findings.warning(Diagnostic::new(key.location, text));
            }
            // No metric comes with labels of its own.
            "honor_labels" => {}
            _ => warn_unknown(key, KEYS, findings),
        }
        Some(())
    }
}

/// A key that is not known is passed over, as statsd_exporter does, but not in silence.
fn warn_unknown(key: &Node, known: &[&str], findings: &mut SourceFindings<'_>) {
    let name = key.text();
    let warning = Diagnostic::new(key.location, format!("{name:?} has no meaning here"));
    findings.warning(match did_you_mean(name, known.iter().copied()) {
        Some(meant) => warning.hint(format!("did you mean `{meant}`?")),
        None => warning,
    });
}

/// A text, which may be left empty.
fn text<'n>(node: &'n Node, findings: &mut SourceFindings<'_>) -> Option<&'n str> {
    if node.scalar().is_none() {
        findings.reject(node.location, "a text belongs here", "write one value");
        return None;
    }
    Some(node.text())
}

/// Above zero: counters only grow.
fn scale_factor(node: &Node, findings: &mut SourceFindings<'_>) -> Option<f64> {
    let given = node.text();
    let number: Option<f64> = given.parse().ok();
    let number = number.filter(|number| number.is_finite() && *number > 0.0);
    if number.is_none() {
        let text = format!("{given:?} is no number above zero");
        findings.reject(node.location, text, "write one, such as 0.001");
    }
    number
}

/// Upper bounds, each above the one before.
fn buckets(node: &Node, findings: &mut SourceFindings<'_>) -> Option<Vec<f64>> {
    let bounds = list(node, findings, |item, findings| {
        let bound: Option<f64> = item.text().parse().ok();
        let bound = bound.filter(|bound| bound.is_finite());
        if bound.is_none() {
            let problem = Diagnostic::new(item.location, "a bucket is a number");
            findings.problem(problem.hint("write its upper bound, such as 0.5"));
        }
        bound
    });
    if bounds.len() > BUCKETS_MAX || !bounds.is_sorted_by(|one, next| one < next) {
        let text = format!("buckets are in order, and at most {BUCKETS_MAX}");
        let hint = "write each bound once, the smallest first";
        findings.reject(node.location, text, hint);
        return None;
    }
    Some(bounds)
}

/// A name for Prometheus, with `$1` anywhere in it.
fn metric_name(node: &Node, findings: &mut SourceFindings<'_>) -> Option<String> {
    let name = node.text();
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "_${}".contains(letter);
    let starts_well = name.starts_with(|letter: char| !letter.is_ascii_digit());
    if starts_well && name.chars().all(is_letter) {
        return Some(name.to_owned());
    }
    let text = format!("{name:?} is no name of a metric");
    let hint = "write letters, digits, _ and $1";
    findings.reject(node.location, text, hint);
    None
}

fn label_pairs(node: &Node, findings: &mut SourceFindings<'_>) -> Option<Vec<(String, String)>> {
    let mut labels = Vec::new();
    for (key, value) in map(node, &["NAME"], findings)? {
        let name = key.text();
        let is_name = mapper::escaped(name) == name
            && !name.is_empty()
            && !["le", "quantile"].contains(&name)
            && !name.starts_with("__");
        if !is_name {
            let text = format!("{name:?} is no name of a label");
            let hint = "write letters, digits and _, and neither le nor quantile";
            findings.reject(key.location, text, hint);
            return None;
        }
        labels.push((name.to_owned(), text(value, findings)?.to_owned()));
    }
    labels.sort_unstable();
    Some(labels)
}

#[cfg(test)]
mod tests;
