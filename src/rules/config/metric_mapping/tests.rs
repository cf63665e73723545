use super::*;
use crate::telemetry::mapper::MappedMetric;

fn shown(mapping: &Mapping, name: &str, kind: mapper::Kind) -> MappedMetric {
    mapping.map(name, kind).expect("it is not dropped")
}

fn read(text: &str) -> Result<Loaded, Vec<Finding>> {
    super::read(&Source { name: "mapping".into(), path: "mapping.yaml".into(), text: text.into() })
}

#[test]
fn a_file_says_names_labels_buckets_and_scale() {
    let text = "\
defaults: {timer_type: histogram, buckets: [1, 2], ttl: 1h}
mappings:
  - match: a.*.b
    name: m_$1
    labels: {two: '${1}', one: x}
    scale: 0.5
  - {match: a.*.time, name: t, histogram_options: {buckets: [0.5, 5]}}
  - {match: a.*.other, name: o, timer_type: summary, quantiles: [{quantile: 0.5, error: 0.1}], honor_labels: true}
  - {match: '^gone', match_type: regex, action: drop, name: dropped}
";
    let Loaded { mapping, warnings } = read(text).expect("it is a mapping");
    let counter = shown(&mapping, "a.x.b", mapper::Kind::Counter);
    assert_eq!((&*counter.name, counter.scale), ("m_x", 0.5));
    assert_eq!(
        counter.labels,
        [("one", "x"), ("two", "x")].map(|(name, value)| (name.to_owned(), value.to_owned()))
    );
    let time = shown(&mapping, "a.x.time", mapper::Kind::Observer);
    assert_eq!((time.observer, time.buckets), (Observer::Histogram, vec![0.5, 5.0]));
    assert_eq!(shown(&mapping, "a.x.other", mapper::Kind::Observer).observer, Observer::Summary);
    assert_eq!(shown(&mapping, "none", mapper::Kind::Observer).buckets, [1.0, 2.0]);
    assert_eq!(mapping.map("gone.away", mapper::Kind::Gauge), None);
    assert_eq!(warnings.len(), 2, "ttl and quantiles: {warnings:?}");
}

#[test]
fn without_the_order_of_the_file_the_most_specific_glob_wins() {
    let text = "mappings:\n  - {match: a.*.*, name: general}\n  - {match: a.*.c, name: last}\n  - {match: a.b.*, name: middle}\n";
    let name = |text: &str| {
        shown(&read(text).expect("it is a mapping").mapping, "a.b.c", mapper::Kind::Counter).name
    };
    assert_eq!(name(text), "general");
    assert_eq!(name(&format!("defaults: {{glob_disable_ordering: true}}\n{text}")), "middle");
}

/// Invalid mappings, each with the location of the problem and a part of the message.
const WRONG: &[(&str, (u32, u32), &str)] = &[
    ("mappings: x", (1, 11), "expected a list"),
    ("mappings:\n  - match: a.*\n", (2, 5), "no name"),
    ("mappings:\n  - name: m\n", (2, 5), "no match"),
    ("mappings:\n  - {match: a, name: m}\n", (2, 13), "not a glob"),
    ("mappings:\n  - {match: 'a(', match_type: regex, name: m}\n", (2, 13), "unclosed group"),
    ("mappings:\n  - {match: a.b, match_type: wild, name: m}\n", (2, 30), "one of glob, regex"),
    ("mappings:\n  - {match: a.b, name: 1m}\n", (2, 24), "no name of a metric"),
    ("mappings:\n  - {match: a.b, name: m, labels: {a-b: c}}\n", (2, 36), "no name of a label"),
    ("mappings:\n  - {match: a.b, name: m, scale: -1}\n", (2, 34), "above zero"),
    ("mappings:\n  - {match: a.b, name: m, buckets: [2, 1]}\n", (2, 36), "in order"),
    ("mappings: [\n", (1, 11), ""),
];

#[test]
fn what_is_wrong_is_told_with_its_place() {
    for (text, (line, column), expected) in WRONG {
        let problems = read(text).map(|_| ()).expect_err(text);
        assert_eq!(problems.len(), 1, "{problems:?}");
        let location = problems[0].location.expect("a place in the file");
        let shown = problems[0].to_string();
        assert!(shown.contains(expected), "{text}: {shown}");
        assert_eq!((location.line, location.column), (*line, *column), "{text}: {shown}");
    }
}

#[test]
fn a_key_that_nobody_knows_is_passed_over_and_told() {
    let warnings = read("mappings:\n  - {match: a.b, name: m, lables: {a: b}}\nrest: 1\n")
        .expect("it is a mapping")
        .warnings;
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    let unknown = warnings
        .iter()
        .find(|warning| warning.text == "\"lables\" has no meaning here")
        .expect("a warning about the key");
    assert_eq!(unknown.hint.as_deref(), Some("did you mean `labels`?"));
    assert!(read("").expect("nothing is no rule").warnings.is_empty());
}
