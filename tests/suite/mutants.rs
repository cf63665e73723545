//! Mutation test of the Lua scripts: each mutant with one changed token must be killed.
//!
//! A mutant is a script text that is sent in the place of the real one; nothing is compiled. It
//! survives if replies and stored values equal those of the Rust twins in the table of edge cases and
//! in a few hundred random histories. Equivalent mutants are comments in the Lua sources.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tollgate::base::time::Clock;
use tollgate::limits::Algorithm;
use tollgate::limits::algorithm::counter;
use tollgate::store::redis::client::script::Script;

use crate::parity::{History, goes_by_the_servers_clock, histories, table};
use crate::support::redis::RedisProcess;
use crate::support::twins::Twins;

/// The random histories of a mutant, in addition to the table.
const HISTORIES: usize = 160;
/// Those played before the table: they kill most mutants.
const HISTORIES_FIRST: usize = 40;
/// Mutants tested at a time, each with its own server.
const WORKERS: usize = 2;
/// Timeouts for a script that may never end. If the server is idle after the first one, the machine
/// was slow, and the mutant is tested again.
const PATIENCE: [Duration; 2] = [LUA_TIME_LIMIT, Duration::from_secs(5)];
const LUA_TIME_LIMIT: Duration = Duration::from_millis(250);

const DRIVER: &str = "driver.lua";
const DRIVER_TEXT: &str = include_str!("../../src/store/redis/client/driver.lua");
/// The algorithms of each file; the driver's for other files.
const ALGORITHMS: [(&str, &[Algorithm]); 7] = [
    (DRIVER, &Algorithm::ALL),
    ("fixed_window.lua", &[Algorithm::FixedWindow]),
    ("bucket.lua", &[Algorithm::TokenBucket, Algorithm::LeakyBucket]),
    ("sliding_window.lua", &[Algorithm::SlidingWindow]),
    ("sub_windows.lua", &[Algorithm::SlidingWindow]),
    ("sliding_log.lua", &[Algorithm::SlidingLog]),
    ("concurrency.lua", &[Algorithm::Concurrency]),
];

/// Variables of one type: each replaces each other in the same function.
const KINDS: [&str; 4] = [
    "spent cost full deepest now tick requests life rate hits used number elapsed at after loaded \
     count index first arguments code key argument",
    "kept fresh over blocked enforcing drops ok",
    "text key packed argument",
    "slot slots check checks",
];
/// Words that replace each other.
const PAIRS: [(&str, &str); 9] = [
    ("and", "or"),
    ("true", "false"),
    ("min", "max"),
    ("floor", "ceil"),
    ("call", "pcall"),
    ("'EX'", "'PX'"),
    ("fixed_window", "bucket"),
    ("charge", "charged"),
    ("KEYS", "ARGV"),
];
const ARITHMETIC: [&str; 5] = ["+", "-", "*", "/", "^"];
const COMPARISONS: [&str; 6] = ["<", "<=", ">", ">=", "==", "~="];

/// A token and its offset.
#[derive(Debug, Clone, Copy)]
struct Token<'t> {
    text: &'t str,
    at: usize,
    /// In column 1.
    is_outermost: bool,
}

/// A script with one change.
struct Mutant {
    text: String,
    line: usize,
    change: Change,
}

/// A change of a script. A mutant with it may survive if a comment above the line in the Lua source says
/// so: ``-- equivalent: `==` -> `<=`, `>=`; `0` -> `-1`: reason``. It is for every equal line of the
/// file.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    file: String,
    /// The original line, trimmed.
    source: String,
    from: String,
    to: String,
}

/// The result of a mutant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    /// Replies or stored values differ.
    Killed,
    /// It does not end.
    Endless,
    /// It does not compile.
    Stillborn,
    Survived,
}

impl fmt::Display for Mutant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Change { file, source, from, to } = &self.change;
        write!(formatter, "{file}:{}: `{from}` -> `{to}` in `{source}`", self.line)
    }
}

impl Mutant {
    /// Tests it on a server, which it may make unusable.
    fn try_on(&self, server: &RedisProcess, histories: &[History]) -> Fate {
        let script = Script::new(self.text.clone());
        let clock = Clock::system();
        for patience in PATIENCE {
            let Ok(twins) = Twins::new(server, &script) else {
                return Fate::Stillborn;
            };
            let mut twins = twins.with_patience(patience);
            let mut begun = clock.now();
            let trial = histories.iter().try_for_each(|history| {
                begun = clock.now();
                history.play(&mut twins)
            });
            if trial.and_then(|()| goes_by_the_servers_clock(&script, server)).is_ok() {
                return Fate::Survived;
            }
            if !server.answers() {
                return Fate::Endless;
            }
            if clock.now().since(begun) < patience.into() {
                return Fate::Killed;
            }
        }
        Fate::Killed
    }
}

/// All mutants of the real script.
fn mutants() -> Vec<Mutant> {
    let text = Script::serving().text();
    let tokens = tokens(text);
    let mut changes = BTreeSet::new();
    for (index, token) in tokens.iter().enumerate() {
        for to in replacements(&tokens, index) {
            changes.insert((token.at, token.text.len(), to));
        }
    }
    for (at, len) in statements(text) {
        changes.insert((at, len, String::new()));
    }
    changes.into_iter().map(|(at, len, to)| mutant(text, at, len, to)).collect()
}

/// The Lua sources by file name.
fn sources() -> Vec<(String, &'static str)> {
    let twins = counter::LUA.map(|(name, text)| (format!("{name}.lua"), text));
    [(DRIVER.to_owned(), DRIVER_TEXT), ("charge.lua".to_owned(), counter::LUA_SHARED)]
        .into_iter()
        .chain(twins)
        .collect()
}

fn equivalents() -> Vec<Change> {
    let mut found = Vec::new();
    for (file, text) in sources() {
        let mut changes = Vec::new();
        for line in text.lines().map(str::trim) {
            if let Some(comment) = line.strip_prefix("-- equivalent: ") {
                let (listed, _reason) = comment.split_once("`: ").expect("a list and a reason");
                for change in listed.split("; ") {
                    let (from, to) = change.split_once(" -> ").expect("a change");
                    let unquoted = |text: &str| text.trim_matches('`').to_owned();
                    changes.extend(to.split(", ").map(|to| (unquoted(from), unquoted(to))));
                }
            } else if !line.starts_with("--") {
                let (file, source) = (&file, line);
                found.extend(changes.drain(..).map(|(from, to)| Change {
                    file: file.clone(),
                    source: source.to_owned(),
                    from,
                    to,
                }));
            }
        }
    }
    found
}

fn mutant(text: &str, at: usize, len: usize, to: String) -> Mutant {
    // The twins are inside the driver.
    let parts = sources().into_iter().skip(1).map(|(name, part)| {
        let part = counter::without_comments(part);
        let start = text.find(&part).expect("it is a part of the script");
        (name, start, part.len())
    });
    let mut around = parts.filter(|(_, start, len)| (*start..start + len).contains(&at));
    let (file, start, _) = around.next().unwrap_or((DRIVER.to_owned(), 0, 0));
    let line = 1 + text[start..at].matches('\n').count();
    let source = text[..at].rfind('\n').map_or(0, |end| end + 1);
    let source = text[source..].lines().next().unwrap_or_default().trim().to_owned();
    let (before, from, after) = (&text[..at], &text[at..at + len], &text[at + len..]);
    let text = [before, &to, after].concat();
    Mutant { text, line, change: Change { file, source, from: from.to_owned(), to } }
}

/// Lines that can be removed: assignments and calls that open no block.
fn statements(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let statement = line.trim();
        let assigns = statement.contains(" = ");
        let opens = ["local ", "if ", "for ", "while ", "function ", "elseif ", "--", "return "]
            .iter()
            .any(|word| statement.starts_with(word));
        let calls = statement.starts_with("redis.call(") || statement.starts_with("error(");
        if !opens && (assigns || calls) {
            let indent = line.len() - line.trim_start().len();
            found.push((at + indent, statement.len()));
        }
        at += line.len();
    }
    found
}

/// The replacements of a token.
fn replacements(tokens: &[Token<'_>], index: usize) -> BTreeSet<String> {
    let text = tokens[index].text;
    let mut others = BTreeSet::new();
    for operators in [&ARITHMETIC[..], &COMPARISONS[..]] {
        if operators.contains(&text) {
            others.extend(operators.iter().map(|&operator| operator.to_owned()));
        }
    }
    if ["not", "-", "return", "local"].contains(&text) {
        others.insert(String::new());
    }
    for (one, other) in PAIRS {
        others.extend((text == one).then(|| other.to_owned()));
        others.extend((text == other).then(|| one.to_owned()));
    }
    if let Ok(number) = text.parse::<f64>() {
        let numbers = [number + 1.0, number - 1.0, 0.0]
            .into_iter()
            .filter(|&other| (other - number).abs() > 0.5);
        others.extend(numbers.map(|number| number.to_string()));
    }
    if text.starts_with('\'') {
        others.insert("''".to_owned());
        // In patterns and formats every letter matters, except a byte order that is the machine's.
        if text.contains('%') || text.contains("dd") {
            let letters = (1..text.len() - 1).filter(|&letter| text.as_bytes()[letter] != b'<');
            others.extend(letters.map(|letter| [&text[..letter], &text[letter + 1..]].concat()));
            others.insert(text.replace('<', ">"));
        }
    }
    if !is_declared(tokens, index) {
        let around: BTreeSet<&str> =
            tokens[function(tokens, index)].iter().map(|token| token.text).collect();
        let kinds = KINDS.map(|kind| kind.split_whitespace().collect::<Vec<_>>());
        for kind in kinds.iter().filter(|kind| kind.contains(&text)) {
            others.extend(
                kind.iter().filter(|word| around.contains(*word)).map(|&word| word.to_owned()),
            );
        }
    }
    others.remove(text);
    others
}

/// The tokens of the function around a token, or those between two functions.
fn function(tokens: &[Token<'_>], index: usize) -> Range<usize> {
    let is_edge = |token: &Token<'_>| {
        token.is_outermost && ["function", "local", "end"].contains(&token.text)
    };
    let is_function = |at: usize| tokens[at..].iter().take(2).any(|token| token.text == "function");
    let start = (0..=index)
        .rev()
        .find(|&at| is_edge(&tokens[at]) && (is_function(at) || tokens[at].text == "end"))
        .unwrap_or(0);
    let end = (index + 1..tokens.len())
        .find(|&at| is_edge(&tokens[at]) && (is_function(at) || tokens[at].text == "end"));
    start..end.unwrap_or(tokens.len())
}

/// Whether a token declares a name: after `local`, `for`, or as a parameter.
fn is_declared(tokens: &[Token<'_>], index: usize) -> bool {
    let is_name = |token: &Token<'_>| {
        is_word(token.text)
            && !["local", "for", "function", "return", "in", "if", "not"].contains(&token.text)
    };
    let before = |index: usize, joints: &[&str]| {
        (0..index).rev().find(|&at| !is_name(&tokens[at]) && !joints.contains(&tokens[at].text))
    };
    let Some(at) = before(index, &[","]) else {
        return false;
    };
    match tokens[at].text {
        "local" | "for" => true,
        "(" => before(at, &["."]).is_some_and(|at| tokens[at].text == "function"),
        _ => false,
    }
}

fn is_word(text: &str) -> bool {
    text.starts_with(|letter: char| letter.is_alphabetic() || letter == '_')
}

/// The tokens of a Lua text without long strings and escapes.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let run =
            |is_part: fn(char) -> bool| rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
        let len = match first {
            _ if first.is_whitespace() => run(char::is_whitespace),
            _ if rest.starts_with("--") => rest.find('\n').unwrap_or(rest.len()),
            '\'' => rest[1..].find('\'').map_or(rest.len(), |end| end + 2),
            _ if first.is_alphanumeric() || first == '_' => {
                run(|letter| letter.is_alphanumeric() || letter == '_')
            }
            _ if COMPARISONS
                .iter()
                .any(|operator| operator.len() == 2 && rest.starts_with(operator)) =>
            {
                2
            }
            _ => first.len_utf8(),
        };
        if !first.is_whitespace() && !rest.starts_with("--") {
            tokens.push(Token {
                text: &rest[..len],
                at,
                is_outermost: at == 0 || text[..at].ends_with('\n'),
            });
        }
        at += len;
    }
    tokens
}

/// The histories for the mutants of each file, of its own algorithms only, with a fixed seed.
struct Trials(HashMap<&'static str, Vec<History>>);

impl Trials {
    fn new() -> Self {
        let mut runner = TestRunner::new_with_rng(
            Config::default(),
            TestRng::deterministic_rng(RngAlgorithm::ChaCha),
        );
        let mut random = |algorithms| {
            histories(algorithms).new_tree(&mut runner).expect("there are histories").current()
        };
        let trials = ALGORITHMS.into_iter().map(|(file, algorithms)| {
            let first: Vec<History> = (0..HISTORIES_FIRST).map(|_| random(algorithms)).collect();
            let all = first
                .into_iter()
                .chain(table(algorithms))
                .chain((HISTORIES_FIRST..HISTORIES).map(|_| random(algorithms)));
            (file, all.collect())
        });
        Self(trials.collect())
    }

    fn of(&self, mutant: &Mutant) -> &[History] {
        self.0.get(mutant.change.file.as_str()).unwrap_or(&self.0[DRIVER])
    }
}

#[test]
#[ignore = "it takes minutes: `make mutants` runs it"]
fn every_mutant_of_the_lua_is_killed_or_listed_as_equivalent() {
    // Only these files, to work on one.
    let of_file = std::env::var("MUTANTS_OF").ok();
    // Equivalent mutants play all histories, which takes longer than all others together.
    let tries_listed = std::env::var_os("MUTANTS_LISTED").is_some();
    let is_wanted = |file: &str| of_file.as_deref().is_none_or(|wanted| wanted.contains(file));
    let all = mutants().into_iter().filter(|mutant| is_wanted(&mutant.change.file));
    let all: Vec<Mutant> = all.collect();
    let equivalents = equivalents();
    let is_mutant = |known: &Change| all.iter().any(|mutant| mutant.change == *known);
    let listed = equivalents.iter().filter(|known| is_wanted(&known.file));
    let gone: Vec<&Change> = listed.filter(|known| !is_mutant(known)).collect();
    assert!(gone.is_empty(), "there are no such mutants: {gone:#?}");
    let is_listed = |mutant: &Mutant| equivalents.contains(&mutant.change);
    let mutants: Vec<&Mutant> =
        all.iter().filter(|mutant| tries_listed || !is_listed(mutant)).collect();
    let trials = Trials::new();
    let next = AtomicUsize::new(0);
    let work = || {
        let limit = LUA_TIME_LIMIT.as_millis().to_string();
        let start =
            || RedisProcess::builder().with_arguments(&["--lua-time-limit", &limit]).start();
        let mut server = start();
        let mut fates = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(&mutant) = mutants.get(number) else {
                break;
            };
            if number.is_multiple_of(500) {
                println!("{number} of {} tried", mutants.len());
            }
            let fate = mutant.try_on(&server, trials.of(mutant));
            if fate == Fate::Endless {
                server = start();
            }
            match (fate == Fate::Survived, is_listed(mutant)) {
                (true, false) => println!("survives: {mutant}"),
                (false, true) => {
                    println!("killed although listed as equivalent: {mutant}");
                }
                _ => {}
            }
            fates.push((fate, mutant));
        }
        fates
    };
    let fates: Vec<(Fate, &Mutant)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no panic")).collect()
    });

    let count = |wanted| fates.iter().filter(|(fate, _)| *fate == wanted).count();
    println!(
        "{} mutants: {} killed, {} of them by not ending; {} survive, {} are listed as equivalent and were not tested (MUTANTS_LISTED=1 tests them)",
        all.len() - count(Fate::Stillborn),
        count(Fate::Killed) + count(Fate::Endless),
        count(Fate::Endless),
        count(Fate::Survived),
        all.len() - mutants.len()
    );
    let survivors =
        fates.iter().filter(|(fate, mutant)| *fate == Fate::Survived && !is_listed(mutant));
    let unknown: Vec<String> = survivors.map(|(_, mutant)| mutant.to_string()).collect();
    assert!(
        unknown.is_empty(),
        "{} make a difference that no test sees:\n{}",
        unknown.len(),
        unknown.join("\n")
    );
}
