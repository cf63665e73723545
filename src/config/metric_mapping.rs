//! Reads a mapping file of statsd_exporter: which of the reference's metrics has which name and
//! labels on the page for Prometheus.
//!
//! What statsd_exporter takes is taken, and means the same, but for what needs every single time
//! (quantiles) or forgets metrics (`ttl`): that is passed over with a warning.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use crate::config::error::did_you_mean;
use crate::config::yaml::{self, Diagnostic, Kind, Location, Node};
use crate::telemetry::mapper::{self, MAPPINGS_MAX, Mapping, Observer, Pattern, Rule};

/// How long a file may be; a ConfigMap cannot hold more.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// How many buckets a histogram may have: each is a series.
const BUCKETS_MAX: usize = 1_000;

const ROOT_KEYS: [&str; 2] = ["defaults", "mappings"];
const RULE_KEYS: [&str; 15] = [
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
];
const DEFAULTS_KEYS: [&str; 9] = [
    "match_type",
    "glob_disable_ordering",
    "timer_type",
    "observer_type",
    "histogram_options",
    "summary_options",
    "buckets",
    "quantiles",
    "ttl",
];
/// Keys that change nothing here: no metric comes with labels of its own.
const SILENT_KEYS: [&str; 1] = ["honor_labels"];

const MATCH_TYPES: [(&str, MatchType); 2] =
    [("glob", MatchType::Glob), ("regex", MatchType::Regex)];
const ACTIONS: [(&str, Action); 2] = [("map", Action::Map), ("drop", Action::Drop)];
const OBSERVERS: [(&str, Observer); 2] = [
    ("histogram", Observer::Histogram),
    ("summary", Observer::Summary),
];
const KINDS: [(&str, mapper::Kind); 4] = [
    ("counter", mapper::Kind::Counter),
    ("gauge", mapper::Kind::Gauge),
    ("observer", mapper::Kind::Observer),
    ("timer", mapper::Kind::Observer),
];
const BOOLS: [(&str, bool); 2] = [("true", true), ("false", false)];

/// A file that can be gone by.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// Its rules.
    pub(crate) mapping: Mapping,
    /// What it says to no effect, a sentence each, with its place.
    pub(crate) warnings: Vec<String>,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MappingError {
    /// No such file. It may be meant so: Envoy Gateway's is optional.
    #[error("it is not there")]
    Absent,
    /// The system gives no text.
    #[error("it cannot be read: {0}")]
    Unreadable(io::Error),
    /// No mapping, and where it stops being one.
    #[error("{0}{hint}", hint = .0.hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default())]
    Wrong(Diagnostic),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum MatchType {
    #[default]
    Glob,
    Regex,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Action {
    #[default]
    Map,
    Drop,
}

/// What holds for rules that do not say.
#[derive(Debug, Default)]
struct Defaults {
    match_type: MatchType,
    observer: Observer,
    buckets: Vec<f64>,
    order: Order,
}

/// Which of several globs wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Order {
    /// The first of the file.
    #[default]
    OfFile,
    /// The one with fewer stars, looked at from the left.
    MostSpecific,
}

/// The keys that say how times are shown, of a rule or of the defaults.
#[derive(Debug, Default)]
struct Times {
    observer: Option<Observer>,
    buckets: Vec<f64>,
}

#[derive(Debug, Default)]
struct Reader {
    warnings: Vec<String>,
}

/// Reads a file.
///
/// # Errors
/// There is none, or what it says is no mapping.
pub(crate) fn load(path: &Path) -> Result<Loaded, MappingError> {
    let mut text = String::new();
    let file = File::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => MappingError::Absent,
        _ => MappingError::Unreadable(error),
    })?;
    file.take(FILE_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(MappingError::Unreadable)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(MappingError::Unreadable(io::Error::other(
            "it has more than 1 MiB",
        )));
    }
    read(&text).map_err(MappingError::Wrong)
}

/// Reads a text.
///
/// # Errors
/// The first place where it is no mapping.
pub(crate) fn read(text: &str) -> Result<Loaded, Diagnostic> {
    let document = yaml::read(text)?;
    let mut reader = Reader::default();
    for warning in document.warnings {
        reader.warn(warning.location, &warning.text);
    }
    let Some(root) = document.root else {
        return Ok(Loaded {
            mapping: Mapping::default(),
            warnings: reader.warnings,
        });
    };
    let (mut defaults, mut mappings) = (Defaults::default(), None);
    for (key, value) in map(&root)? {
        match reader.key(key, &ROOT_KEYS) {
            "defaults" => defaults = reader.defaults(value)?,
            "mappings" => mappings = Some(value),
            _ => {}
        }
    }
    let mut mapping = Mapping::new(defaults.observer, defaults.buckets.clone());
    let items = mappings.map(list).transpose()?.unwrap_or_default();
    if items.len() > MAPPINGS_MAX {
        return Err(invalid(
            items[MAPPINGS_MAX].location,
            format!("there are more than {MAPPINGS_MAX} mappings"),
            "write fewer, with globs",
        ));
    }
    let mut rules = items
        .iter()
        .map(|item| reader.rule(item, &defaults))
        .collect::<Result<Vec<_>, _>>()?;
    if defaults.order == Order::MostSpecific {
        rules.sort_by_key(|(pattern, _)| {
            pattern
                .split('.')
                .map(|part| part == "*")
                .collect::<Vec<_>>()
        });
    }
    for (_, rule) in rules {
        mapping.add(rule);
    }
    Ok(Loaded {
        mapping,
        warnings: reader.warnings,
    })
}

impl Reader {
    fn defaults(&mut self, node: &Node) -> Result<Defaults, Diagnostic> {
        let mut defaults = Defaults::default();
        let mut times = Times::default();
        for (key, value) in map(node)? {
            match self.key(key, &DEFAULTS_KEYS) {
                "match_type" => defaults.match_type = word(value, &MATCH_TYPES)?,
                "glob_disable_ordering" => {
                    defaults.order = if word(value, &BOOLS)? {
                        Order::MostSpecific
                    } else {
                        Order::OfFile
                    };
                }
                name => self.times(name, key, value, &mut times)?,
            }
        }
        Ok(Defaults {
            observer: times.observer.unwrap_or_default(),
            buckets: times.buckets,
            ..defaults
        })
    }

    /// A rule, and its pattern as it is written.
    fn rule(&mut self, node: &Node, defaults: &Defaults) -> Result<(String, Rule), Diagnostic> {
        let (mut pattern, mut match_type, mut name) = (None, defaults.match_type, None);
        let (mut kind, mut labels, mut action, mut scale, mut help) =
            (None, Vec::new(), Action::Map, 1.0, None);
        let mut times = Times::default();
        for (key, value) in map(node)? {
            match self.key(key, &RULE_KEYS) {
                "match" => pattern = Some((value.location, text(value)?)),
                "match_type" => match_type = word(value, &MATCH_TYPES)?,
                "match_metric_type" => kind = Some(word(value, &KINDS)?),
                "name" => name = Some(metric_name(value)?),
                "labels" => labels = label_pairs(value)?,
                "help" => help = Some(text(value)?.to_owned()),
                "action" => action = word(value, &ACTIONS)?,
                "scale" => scale = number(value)?,
                name => self.times(name, key, value, &mut times)?,
            }
        }
        let missing = |key: &str| {
            invalid(
                node.location,
                format!("this mapping has no {key}"),
                &format!("write one, such as {key}: ..."),
            )
        };
        let (location, pattern) = pattern.ok_or_else(|| missing("match"))?;
        let name = name.ok_or_else(|| missing("name"))?;
        let compiled = if match_type == MatchType::Glob {
            Pattern::glob(pattern)
        } else {
            Pattern::regex(pattern)
        };
        let compiled = compiled.map_err(|error| Diagnostic {
            location,
            text: error.to_string(),
            hint: None,
        })?;
        let Times { observer, buckets } = times;
        let rule = Rule {
            pattern: compiled,
            kind,
            name,
            labels,
            drops: action == Action::Drop,
            scale,
            help,
            observer,
            buckets,
        };
        Ok((pattern.to_owned(), rule))
    }

    fn times(
        &mut self,
        name: &str,
        key: &Node,
        value: &Node,
        times: &mut Times,
    ) -> Result<(), Diagnostic> {
        match name {
            "timer_type" | "observer_type" => times.observer = Some(word(value, &OBSERVERS)?),
            "buckets" => times.buckets = buckets(value)?,
            "histogram_options" => {
                for (key, value) in map(value)? {
                    if self.key(key, &["buckets"]) == "buckets" {
                        times.buckets = buckets(value)?;
                    }
                }
            }
            "summary_options" | "quantiles" => self.warn(
                key.location,
                &format!("{name} has no effect: a summary here is a sum and a count"),
            ),
            "ttl" => self.warn(key.location, "ttl has no effect: no metric is forgotten"),
            _ => {}
        }
        Ok(())
    }

    /// The name of a key. One that is not known is passed over, as statsd_exporter does, but not in
    /// silence.
    fn key<'n>(&mut self, node: &'n Node, known: &[&str]) -> &'n str {
        let name = if let Kind::Scalar(scalar) = &node.kind {
            &*scalar.text
        } else {
            ""
        };
        if !known.contains(&name) && !SILENT_KEYS.contains(&name) {
            let meant = did_you_mean(name, known.iter().copied())
                .map(|meant| format!("; did you mean {meant}?"))
                .unwrap_or_default();
            self.warn(
                node.location,
                &format!("{name:?} has no meaning here{meant}"),
            );
        }
        name
    }

    fn warn(&mut self, location: Location, text: &str) {
        // A thousand rules with the same key are one mistake.
        if self.warnings.len() < 20 {
            self.warnings.push(format!(
                "line {}, column {}: {text}",
                location.line, location.column
            ));
        }
    }
}

fn map(node: &Node) -> Result<&[(Node, Node)], Diagnostic> {
    match &node.kind {
        Kind::Map(pairs) => Ok(pairs),
        _ => Err(invalid(
            node.location,
            "a map of keys and values belongs here".to_owned(),
            "write key: value",
        )),
    }
}

fn list(node: &Node) -> Result<&[Node], Diagnostic> {
    match &node.kind {
        Kind::List(items) => Ok(items),
        // `mappings:` with nothing behind it.
        Kind::Scalar(scalar) if scalar.value() == yaml::Value::Null => Ok(&[]),
        _ => Err(invalid(
            node.location,
            "a list belongs here".to_owned(),
            "begin each item with -",
        )),
    }
}

fn text(node: &Node) -> Result<&str, Diagnostic> {
    match &node.kind {
        Kind::Scalar(scalar) => Ok(&scalar.text),
        _ => Err(invalid(
            node.location,
            "a text belongs here".to_owned(),
            "write one value",
        )),
    }
}

fn word<T: Copy>(node: &Node, words: &[(&str, T)]) -> Result<T, Diagnostic> {
    let given = text(node)?;
    let found = words
        .iter()
        .find(|(word, _)| *word == given)
        .map(|(_, value)| *value);
    let all: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    found.ok_or_else(|| {
        invalid(
            node.location,
            format!("{given:?} is not one of its words"),
            &format!("write {}", all.join(" or ")),
        )
    })
}

/// Above zero: counters only grow.
fn number(node: &Node) -> Result<f64, Diagnostic> {
    let given = text(node)?;
    let number = given
        .parse()
        .ok()
        .filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| {
        invalid(
            node.location,
            format!("{given:?} is no number above zero"),
            "write one, such as 0.001",
        )
    })
}

/// Upper bounds, each above the one before.
fn buckets(node: &Node) -> Result<Vec<f64>, Diagnostic> {
    let mut bounds: Vec<f64> = Vec::new();
    for item in list(node)? {
        let bound = text(item)?
            .parse()
            .ok()
            .filter(|bound: &f64| bound.is_finite());
        let bound = bound.ok_or_else(|| {
            invalid(
                item.location,
                "a bucket is a number".to_owned(),
                "write its upper bound, such as 0.5",
            )
        })?;
        if bounds.last().is_some_and(|last| *last >= bound) || bounds.len() >= BUCKETS_MAX {
            return Err(invalid(
                item.location,
                "buckets are in order, and at most 1,000".to_owned(),
                "write each bound once, the smallest first",
            ));
        }
        bounds.push(bound);
    }
    Ok(bounds)
}

/// A name for Prometheus, in which `$1` may stand anywhere.
fn metric_name(node: &Node) -> Result<String, Diagnostic> {
    let name = text(node)?;
    let is_name = !name.is_empty()
        && !name.starts_with(|letter: char| letter.is_ascii_digit())
        && name
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || "_${}".contains(letter));
    if is_name {
        return Ok(name.to_owned());
    }
    Err(invalid(
        node.location,
        format!("{name:?} is no name of a metric"),
        "write letters, digits, _ and $1",
    ))
}

fn label_pairs(node: &Node) -> Result<Vec<(String, String)>, Diagnostic> {
    let mut labels = Vec::new();
    for (key, value) in map(node)? {
        let name = text(key)?;
        let is_name = mapper::escaped(name) == name
            && !name.is_empty()
            && !["le", "quantile"].contains(&name)
            && !name.starts_with("__");
        if !is_name {
            return Err(invalid(
                key.location,
                format!("{name:?} is no name of a label"),
                "write letters, digits and _, and neither le nor quantile",
            ));
        }
        labels.push((name.to_owned(), text(value)?.to_owned()));
    }
    labels.sort_unstable();
    Ok(labels)
}

fn invalid(location: Location, text: String, hint: &str) -> Diagnostic {
    Diagnostic {
        location,
        text,
        hint: Some(hint.to_owned()),
    }
}

#[cfg(test)]
mod tests;
