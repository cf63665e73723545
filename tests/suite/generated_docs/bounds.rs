//! The tables of bounds in `docs/guarantees.md`, generated from the definitions.
//!
//! A bound is a constant or a setting of `src` with a comment between its documentation and it:
//!
//! ```text
//! /// Requests that read rules files at a time. The first sentence is in the table.
//! // bound rules_reads_max: the next one waits; tollgate_admin_rules_texts_full_total
//! const READS_MAX: usize = 2;
//! ```
//!
//! The comment has its name, what happens beyond it, and behind the last semicolon the metrics that
//! count that. A bound is where a client or another peer of the network makes something grow; for
//! what operators write, a constant and an error are enough. What queues, waits or reads without a
//! constant fails a test, unless a comment `// bounded by NAME` directly above says what bounds it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::{assert_current, cell};
use crate::support::{read_sample, sample};

const PAGE: &str = "docs/guarantees.md";
const GENERATED: &str = "<!-- Generated from the definitions by `make generated-docs`. -->\n";

/// Each section of the page, and the folders and files with its bounds. The first that fits counts.
const SECTIONS: [(&str, &[&str]); 7] = [
    ("Control plane (xDS)", &["rules/source/xds"]),
    ("Redis", &["store"]),
    (
        "Admin port",
        &[
            "operator/admin",
            "operator/console",
            "what_if/check",
            "rules/source/edit",
            "operator/observe/top_keys",
            "operator/observe/feed",
            "base/http/response_budget",
        ],
    ),
    ("Requests and connections", &["api", "base/http", "limiter"]),
    ("Trial", &["trial"]),
    ("Metrics, traces, log", &["telemetry", "rules/stats", "base/net/remote"]),
    ("Rules and counters", &[""]),
];
/// The order of the sections on the page.
const ORDER: [usize; 7] = [6, 1, 3, 2, 4, 5, 0];

/// What only commands use: their user waits for them, and has what they read.
const COMMANDS: [&str; 7] = [
    "cli",
    "what_if/cases",
    "what_if/engine",
    "what_if/keys",
    "what_if/replay",
    "what_if/simulate",
    "what_if/traffic",
];

/// What queues, waits or reads: the text in front of its bound.
const BOUNDED: [&str; 8] = [
    "Semaphore::new(",
    "mpsc::channel(",
    "sync_channel(",
    "broadcast::channel(",
    "buffer_unordered(",
    "unbounded_channel(",
    "read_body(",
    "read_to_end(",
];

#[derive(Debug)]
struct Bound {
    file: String,
    name: String,
    value: String,
    what: String,
    beyond: String,
    metrics: Vec<String>,
}

struct Source {
    /// Its path below `src`, without `.rs`.
    file: String,
    /// Without unit tests.
    lines: Vec<String>,
}

#[test]
fn tables_of_bounds_are_current() {
    let bounds = bounds(&sources());
    let known = read_sample("docs/metrics.md");
    let mut names = BTreeSet::new();
    for Bound { file, name, metrics, .. } in &bounds {
        assert!(names.insert(name), "`{name}` is named twice");
        let families = metrics.iter().map(|metric| metric.split('{').next().unwrap_or_default());
        for family in families {
            let is_known = known.contains(&format!("| `{family}` |"));
            assert!(is_known, "{file}: docs/metrics.md has no `{family}` of `{name}`");
        }
    }
    let mut tables = String::new();
    for (title, _) in ORDER.map(|section| SECTIONS[section]) {
        let _ = write!(
            tables,
            "\n### {title}\n\n| bound | value | of | beyond it | metric |\n|---|---|---|---|---|\n"
        );
        for bound in bounds.iter().filter(|bound| section_of(&bound.file) == title) {
            let metrics: Vec<_> = bound.metrics.iter().map(|name| format!("`{name}`")).collect();
            let _ = writeln!(
                tables,
                "| `{}` | {} | {} | {} | {} |",
                bound.name,
                bound.value,
                cell(&bound.what),
                cell(&bound.beyond),
                metrics.join(", ")
            );
        }
    }
    let page = read_sample(PAGE);
    let (written, _) = page.split_once(GENERATED).expect("it has the marker");
    assert_current(PAGE, &format!("{written}{GENERATED}{tables}"));
}

#[test]
fn all_that_queues_waits_or_reads_has_a_bound() {
    let sources = sources();
    let bounds = bounds(&sources);
    let names: BTreeSet<_> = bounds.iter().map(|bound| &*bound.name).collect();
    let mut wrong = Vec::new();
    for source in sources.iter().filter(|source| serves(&source.file)) {
        for (number, line) in source.lines.iter().enumerate() {
            let place = format!("src/{}.rs:{}", source.file, number + 1);
            let code = line.trim_start();
            if code.starts_with("//") || code.starts_with("use ") || code.contains("fn ") {
                continue;
            }
            for start in BOUNDED.iter().filter(|start| line.contains(*start)) {
                let statement: String = source.lines[number..].iter().take(6).cloned().collect();
                let statement = statement.split(';').next().unwrap_or_default();
                let has_constant =
                    words(statement).any(|word| word.ends_with("_MAX") || word.ends_with("_max"));
                let above = source.lines[..number].iter().rev().take(3);
                let is_named = above
                    .filter_map(|line| line.trim().strip_prefix("// bounded by "))
                    .any(|name| names.contains(name));
                if !has_constant && !is_named {
                    wrong.push(format!("{place}: `{start}` has no bound of the table"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn serves(file: &str) -> bool {
    !file.ends_with("/tests") && !COMMANDS.iter().any(|command| is_below(file, command))
}

fn section_of(file: &str) -> &'static str {
    let (title, _) = SECTIONS
        .iter()
        .find(|(_, places)| places.iter().any(|place| is_below(file, place)))
        .expect("the last one has all");
    title
}

fn is_below(file: &str, place: &str) -> bool {
    let rest = file.strip_prefix(place);
    place.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// All bounds of the service, by file and line.
fn bounds(sources: &[Source]) -> Vec<Bound> {
    let mut bounds = Vec::new();
    for source in sources.iter().filter(|source| serves(&source.file)) {
        for (number, line) in source.lines.iter().enumerate() {
            if let Some(head) = line.trim_start().strip_prefix("// bound ") {
                bounds.push(bound(sources, source, number, head));
            }
        }
    }
    bounds
}

/// The bound whose comment begins at a line, with the text behind its keyword.
fn bound(sources: &[Source], source: &Source, number: usize, head: &str) -> Bound {
    let file = &source.file;
    let mut text = head.to_owned();
    let mut lines = source.lines[number + 1..].iter().peekable();
    while let Some(more) = lines.next_if(|line| line.trim_start().starts_with("//")) {
        text = format!("{text} {}", more.trim_start().trim_start_matches("//").trim());
    }
    let parts = text.split_once(": ").and_then(|(name, rest)| {
        let (beyond, metrics) = rest.rsplit_once(';')?;
        Some((name, beyond, metrics))
    });
    let (name, beyond, metrics) =
        parts.unwrap_or_else(|| panic!("src/{file}.rs: `{text}` is not NAME: BEYOND; METRICS"));
    let metrics = metrics.split(", ").map(str::trim).filter(|name| *name != "-");
    let definition: Vec<_> = lines.take(3).map(String::as_str).collect();
    let value = match constant(definition[0]) {
        Some((_, expression)) => evaluate(sources, file, expression),
        None => {
            let default = definition.concat();
            let default = default.split_once("default_value = \"");
            let (_, default) =
                default.unwrap_or_else(|| panic!("src/{file}.rs: {name} has no value"));
            literal(default.split('"').next().unwrap_or_default())
        }
    };
    let above = source.lines[..number].iter().rev();
    let mut doc: Vec<_> = above.map_while(|line| line.trim_start().strip_prefix("///")).collect();
    doc.reverse();
    assert!(!doc.is_empty(), "src/{file}.rs: {name} has no documentation");
    Bound {
        file: file.clone(),
        name: name.to_owned(),
        value: value.shown(name),
        what: first_sentence(&doc.concat()),
        beyond: beyond.to_owned(),
        metrics: metrics.map(str::to_owned).collect(),
    }
}

fn first_sentence(text: &str) -> String {
    let text = text.trim();
    let end = text.find(". ").unwrap_or(text.len());
    text[..end].trim_end_matches('.').to_owned()
}

/// The name of the constant that a line defines, and its value.
fn constant(line: &str) -> Option<(&str, &str)> {
    let (before, rest) = line.trim_start().split_once("const ")?;
    let is_item = before.is_empty() || before.starts_with("pub");
    let (name, rest) = rest.split_once(": ").filter(|_| is_item)?;
    let (_, value) = rest.split_once(" = ")?;
    Some((name, value.trim_end_matches(';')))
}

#[derive(Debug, Clone, Copy)]
enum Value {
    Number(u64),
    Micros(u64),
}

impl Value {
    fn number(self) -> u64 {
        let (Self::Number(number) | Self::Micros(number)) = self;
        number
    }

    /// As in the table: bytes and times with their units.
    fn shown(self, name: &str) -> String {
        let name = name.to_lowercase();
        let scaled = |number: u64, units: &[(u64, &str)]| {
            let fits = |(size, _): &&(u64, &str)| number >= *size && number.is_multiple_of(*size);
            match units.iter().find(fits) {
                Some((size, unit)) => format!("{} {unit}", grouped(number / size)),
                None => grouped(number),
            }
        };
        match self {
            Self::Micros(micros) => {
                let day = 86_400_000_000;
                let units =
                    [(365 * day, "years"), (3_600_000_000, "h"), (1_000_000, "s"), (1_000, "ms")];
                scaled(micros, &units)
            }
            Self::Number(number) if name.contains("bytes") => scaled(
                number,
                &[(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes")],
            ),
            Self::Number(number) => grouped(number),
        }
    }
}

/// With a comma for each thousand.
fn grouped(number: u64) -> String {
    if number < 1_000 {
        return number.to_string();
    }
    format!("{},{:03}", grouped(number / 1_000), number % 1_000)
}

/// The value of the default of a setting: a number, or a duration such as `100ms`.
fn literal(text: &str) -> Value {
    let digits = text.trim_end_matches(char::is_alphabetic);
    let number: u64 = digits.parse().unwrap_or_else(|_| panic!("`{text}` is no number"));
    match &text[digits.len()..] {
        "" => Value::Number(number),
        "ms" => Value::Micros(number * 1_000),
        "s" => Value::Micros(number * 1_000_000),
        "h" => Value::Micros(number * 3_600_000_000),
        unit => panic!("`{unit}` of `{text}` is unknown"),
    }
}

/// The value of an expression of numbers, shifts, durations and other constants, of the same file or
/// of a name that is unique.
fn evaluate(sources: &[Source], file: &str, expression: &str) -> Value {
    let evaluated = |text: &str| evaluate(sources, file, text.trim());
    if let Some((kind, argument)) =
        expression.strip_suffix(')').and_then(|call| call.split_once('('))
    {
        let number = evaluated(argument).number();
        return match kind.rsplit("::").next().unwrap_or_default() {
            "from_secs" => Value::Micros(number * 1_000_000),
            "from_millis" => Value::Micros(number * 1_000),
            "from_micros" => Value::Micros(number),
            other => panic!("src/{file}.rs: `{other}` is no unit of time"),
        };
    }
    if let Some((left, right)) = expression.split_once(" << ") {
        return Value::Number(evaluated(left).number() << evaluated(right).number());
    }
    if let Ok(number) = expression.replace('_', "").parse() {
        return Value::Number(number);
    }
    if let Some(text) = expression.strip_prefix('"') {
        return literal(text.trim_end_matches('"'));
    }
    let defined = |source: &Source| {
        let definition = source
            .lines
            .iter()
            .find_map(|line| constant(line).filter(|(name, _)| *name == expression));
        definition.map(|(_, value)| evaluate(sources, &source.file, value))
    };
    let own = sources.iter().filter(|source| source.file == file);
    let value = own.chain(sources).find_map(defined);
    value.unwrap_or_else(|| panic!("src/{file}.rs: `{expression}` has no known value"))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
}

/// The files of `src` without their unit tests.
fn sources() -> Vec<Source> {
    let src = sample("src");
    let files = walkdir::WalkDir::new(&src).sort_by_file_name();
    let files = files.into_iter().map(|entry| entry.expect("src can be read"));
    let rust = files.filter(|entry| entry.path().extension().is_some_and(|end| end == "rs"));
    let read = |path: &Path| {
        let text = fs::read_to_string(path).expect("it is text");
        let file = path.strip_prefix(&src).expect("it is below").with_extension("");
        let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        Source {
            file: file.display().to_string(),
            lines: code.lines().map(str::to_owned).collect(),
        }
    };
    rust.map(|entry| read(entry.path())).collect()
}
