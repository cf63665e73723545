//! Maps statsd names to Prometheus names by the rules of a mapping file, as statsd_exporter does.
//!
//! Patterns are tried in the order of the file, all globs before all regular expressions. A glob's
//! `*` matches one part between two dots. `$1` and `${1}` in names and labels refer to matched
//! groups; a group that did not match is empty. A name that no pattern matches is kept, with `_`
//! for characters that Prometheus does not allow.

use regex::{Captures, Regex};

/// Patterns of PROMETHEUS_MAPPER_YAML: each is tried on each name once.
pub const MAPPINGS_MAX: usize = 1_000;

/// The rules of a file.
#[derive(Debug, Clone, Default)]
pub struct Mapping {
    /// Globs before regular expressions.
    rules: Vec<Rule>,
    observer: Observer,
    buckets: Vec<f64>,
}

/// Which names a rule matches, and how they are shown.
#[derive(Debug, Clone)]
pub struct Rule {
    /// The names that it matches.
    pub pattern: Pattern,
    /// Only metrics of this kind.
    pub kind: Option<Kind>,
    /// The new name, with references.
    pub name: String,
    /// Labels, with references in their values.
    pub labels: Vec<(String, String)>,
    /// Whether they are dropped.
    pub drops: bool,
    /// Values are multiplied by this.
    pub scale: f64,
    /// The help text.
    pub help: Option<String>,
    /// The presentation of times; `None` for the default of the file.
    pub observer: Option<Observer>,
    /// Upper bounds of a histogram; empty for the defaults of the file.
    pub buckets: Vec<f64>,
}

/// A glob of whole names, or a regular expression.
#[derive(Debug, Clone)]
pub struct Pattern {
    regex: Regex,
    is_glob: bool,
}

/// The kinds of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Times.
    Observer,
}

/// How times are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Observer {
    /// A sum and a count.
    #[default]
    Summary,
    /// In buckets.
    Histogram,
}

/// How a metric is shown.
#[derive(Debug, Clone, PartialEq)]
pub struct MappedMetric {
    /// The name.
    pub name: String,
    /// The labels.
    pub labels: Vec<(String, String)>,
    /// Factor of its values.
    pub scale: f64,
    /// The help text of the file.
    pub help: Option<String>,
    /// How times are shown.
    pub observer: Observer,
    /// Upper bounds of a histogram, in the unit of scaled values; empty for any.
    pub buckets: Vec<f64>,
    /// Whether a rule matched.
    pub is_matched: bool,
}

impl Mapping {
    /// Without rules; `observer` and `buckets` are the defaults of the file.
    pub fn new(observer: Observer, buckets: Vec<f64>) -> Self {
        Self { observer, buckets, ..Self::default() }
    }

    /// Adds a rule behind those of its kind of pattern.
    pub fn add(&mut self, rule: Rule) {
        let globs = self.rules.partition_point(|known| known.pattern.is_glob);
        let at = if rule.pattern.is_glob { globs } else { self.rules.len() };
        self.rules.insert(at, rule);
    }

    /// Maps a metric of this name and kind; `None` if it is dropped.
    pub fn map(&self, name: &str, kind: Kind) -> Option<MappedMetric> {
        let mut rules = self.rules.iter().filter(|rule| rule.kind.is_none_or(|only| only == kind));
        let Some((rule, captures)) =
            rules.find_map(|rule| Some((rule, rule.pattern.regex.captures(name)?)))
        else {
            return Some(MappedMetric {
                name: escaped(name),
                labels: Vec::new(),
                scale: 1.0,
                help: None,
                observer: self.observer,
                buckets: self.buckets.clone(),
                is_matched: false,
            });
        };
        let name = expanded(&captures, &rule.name);
        if rule.drops || name.is_empty() {
            return None;
        }
        let buckets = if rule.buckets.is_empty() { &self.buckets } else { &rule.buckets };
        Some(MappedMetric {
            name: escaped(&name),
            labels: rule
                .labels
                .iter()
                .map(|(label, value)| (label.clone(), expanded(&captures, value)))
                .collect(),
            scale: rule.scale,
            help: rule.help.clone(),
            observer: rule.observer.unwrap_or(self.observer),
            buckets: buckets.clone(),
            is_matched: true,
        })
    }
}

impl Pattern {
    /// A glob, whose `*` matches one part between dots.
    ///
    /// # Errors
    /// Not a glob.
    pub fn glob(text: &str) -> Result<Self, String> {
        let invalid = || {
            format!(
                "{text:?} is not a glob; write names and * with dots between them, such as a.*.c, or match_type: regex"
            )
        };
        let parts: Vec<&str> = text.split('.').collect();
        if parts.len() < 2 || !parts.iter().all(|part| *part == "*" || is_plain(part)) {
            return Err(invalid());
        }
        let parts: Vec<String> = parts
            .iter()
            .map(|part| if *part == "*" { "([^.]*)".to_owned() } else { regex::escape(part) })
            .collect();
        let regex = Regex::new(&format!("^{}$", parts.join(r"\."))).map_err(|_| invalid())?;
        Ok(Self { regex, is_glob: true })
    }

    /// A regular expression, found anywhere in a name.
    ///
    /// # Errors
    /// Invalid or too large.
    pub fn regex(text: &str) -> Result<Self, String> {
        let regex = Regex::new(text).map_err(|error| {
            let error = one_line(&error.to_string());
            format!("{text:?} is not a regular expression: {error}")
        })?;
        Ok(Self { regex, is_glob: false })
    }
}

/// A valid Prometheus name: letters, digits and `_`, and no digit first.
pub fn escaped(name: &str) -> String {
    let digit_first = name.starts_with(|letter: char| letter.is_ascii_digit());
    let letters =
        name.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' });
    digit_first.then_some('_').into_iter().chain(letters).collect()
}

/// A part of a glob without `*`.
fn is_plain(part: &str) -> bool {
    let first = part.chars().next();
    first.is_some_and(|letter| letter.is_ascii_alphabetic() || letter == '_')
        && part
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-')
}

/// A template with its references replaced.
pub fn expanded(captures: &Captures<'_>, template: &str) -> String {
    let mut text = String::new();
    captures.expand(template, &mut text);
    text
}

/// The last line of an error of the library, which has a drawing before it.
pub fn one_line(message: &str) -> String {
    message.lines().last().unwrap_or_default().trim_start_matches("error: ").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(pattern: Pattern, name: &str, labels: &[(&str, &str)]) -> Rule {
        let labels = labels
            .iter()
            .map(|(label, value)| ((*label).to_owned(), (*value).to_owned()))
            .collect();
        Rule {
            pattern,
            kind: None,
            name: name.to_owned(),
            labels,
            drops: false,
            scale: 1.0,
            help: None,
            observer: None,
            buckets: Vec::new(),
        }
    }

    fn glob(text: &str, name: &str) -> Rule {
        rule(Pattern::glob(text).expect("a glob"), name, &[])
    }

    fn name_of(mapping: &Mapping, statsd: &str) -> Option<String> {
        mapping.map(statsd, Kind::Counter).map(|shown| shown.name)
    }

    #[test]
    fn the_first_glob_of_the_file_wins_and_regular_expressions_come_last() {
        let mut mapping = Mapping::default();
        mapping.add(rule(Pattern::regex("specific").expect("a regex"), "by_regex", &[]));
        mapping.add(glob("a.*.*", "general"));
        mapping.add(glob("a.specific.*", "specific"));
        assert_eq!(name_of(&mapping, "a.specific.x").as_deref(), Some("general"));
        assert_eq!(
            name_of(&mapping, "a.specific").as_deref(),
            Some("by_regex"),
            "three parts are not two"
        );
        assert_eq!(name_of(&mapping, "9.b c/d").as_deref(), Some("_9_b_c_d"), "its own name");
    }

    #[test]
    fn references_stand_for_what_was_found_and_others_for_nothing() {
        let mut mapping = Mapping::default();
        let labels = [("braces", "${1}_x-$2.$9"), ("longer_name", "$1_x"), ("plain", "p")];
        mapping.add(rule(Pattern::glob("a.*.*").expect("a glob"), "m_${2}", &labels));
        mapping.add(rule(
            Pattern::regex(r"b\.(?P<dom>[^.]+)\.([a-z]+)$").expect("a regex"),
            "r_$2",
            &[("dom", "${dom}")],
        ));
        let Some(shown) = mapping.map("a.one.t-w", Kind::Gauge) else {
            panic!("it is not dropped")
        };
        assert_eq!(shown.name, "m_t_w");
        let values: Vec<&str> = shown.labels.iter().map(|(_, value)| &**value).collect();
        assert_eq!(values, ["one_x-t-w.", "", "p"]);
        let Some(shown) = mapping.map("x.b.shop.hits", Kind::Gauge) else {
            panic!("it is not dropped")
        };
        assert_eq!(
            (shown.name, shown.labels),
            ("r_hits".to_owned(), vec![("dom".to_owned(), "shop".to_owned())])
        );
    }

    #[test]
    fn a_rule_for_another_kind_or_that_drops_is_what_it_says() {
        let mut mapping = Mapping::default();
        mapping.add(Rule { kind: Some(Kind::Gauge), ..glob("a.b", "gauges") });
        mapping.add(Rule { drops: true, ..glob("a.b", "dropped") });
        mapping.add(glob("a.*", "$9"));
        assert_eq!(name_of(&mapping, "a.b"), None);
        assert_eq!(name_of(&mapping, "a.c"), None, "a name of nothing");
        assert!(matches!(mapping.map("a.b", Kind::Gauge), Some(shown) if shown.name == "gauges"));
    }

    #[test]
    fn what_is_no_pattern_is_refused_in_one_line() {
        for text in ["", "a", "*", "a..b", "a.b*", "a.(.*)", "a.9b"] {
            let error = Pattern::glob(text).expect_err("it is no glob");
            assert!(error.starts_with(&format!("{text:?} is not a glob; ")), "{error}");
        }
        let error = Pattern::regex("a(b").expect_err("it is open");
        assert_eq!(error, "\"a(b\" is not a regular expression: unclosed group");
        assert!(Pattern::regex(r"(?i)\w+\.b").is_ok(), "what Go takes");
    }
}
