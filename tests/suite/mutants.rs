//! Whoever changes one token of the Lua is found out: each such mutant of the script that serves is
//! played to, and all must die.
//!
//! A mutant is a script of another text, sent through the same words as the one that serves;
//! nothing is compiled anew. It lives if it says and leaves what the Rust twins do in every case of
//! the table and in the same few hundred random histories.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tollgate::algorithm::counter;
use tollgate::limit::Algorithm;
use tollgate::store::redis::script::Script;
use tollgate::time::Clock;

use crate::parity::{History, goes_by_the_servers_clock, histories, table};
use crate::support::redis::RedisProcess;
use crate::support::twins::Twins;

use equivalents::EQUIVALENT;

mod equivalents;

/// How many random histories a mutant has to survive, after the table.
const HISTORIES: usize = 160;
/// Of them, so many come first: most mutants do not get any further.
const HISTORIES_FIRST: usize = 40;
/// How many mutants are tried at a time, each with a server of its own.
const WORKERS: usize = 2;
/// How long to wait for a script that may never end: then the server is still busy with it, or else
/// the machine was, and it is tried again.
const PATIENCE: [Duration; 2] = [LUA_TIME_LIMIT, Duration::from_secs(5)];
const LUA_TIME_LIMIT: Duration = Duration::from_millis(250);

const DRIVER: &str = "driver.lua";
/// Whose counters go by which file; all others by that of the driver.
const ALGORITHMS: [(&str, &[Algorithm]); 7] = [
    (DRIVER, &Algorithm::ALL),
    ("fixed_window.lua", &[Algorithm::FixedWindow]),
    (
        "bucket.lua",
        &[Algorithm::TokenBucket, Algorithm::LeakyBucket],
    ),
    ("sliding_window.lua", &[Algorithm::SlidingWindow]),
    ("sub_windows.lua", &[Algorithm::SlidingWindow]),
    ("sliding_log.lua", &[Algorithm::SlidingLog]),
    ("concurrency.lua", &[Algorithm::Concurrency]),
];

/// Words of one kind: each is tried in the place of each other of the same function.
const KINDS: [&[&str]; 4] = [
    &[
        "spent",
        "cost",
        "full",
        "deepest",
        "now",
        "tick",
        "requests",
        "life",
        "rate",
        "hits",
        "used",
        "number",
        "elapsed",
        "at",
        "after",
        "loaded",
        "count",
        "index",
        "first",
        "arguments",
        "code",
        "key",
        "argument",
    ],
    &[
        "kept",
        "fresh",
        "over",
        "blocked",
        "enforcing",
        "drops",
        "ok",
    ],
    &["text", "key", "packed", "argument"],
    &["slot", "slots", "check", "checks"],
];
/// Words that stand for each other.
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

/// One token, and where it stands.
#[derive(Debug, Clone, Copy)]
struct Token<'t> {
    text: &'t str,
    at: usize,
    /// It is the first of its line, at the left edge.
    is_outermost: bool,
}

/// One change of the script.
struct Mutant {
    text: String,
    file: String,
    line: usize,
    /// The line as it was.
    source: String,
    from: String,
    to: String,
}

/// One that may survive.
#[derive(Debug)]
struct Equivalent {
    file: &'static str,
    /// Its line, as it was.
    source: &'static str,
    /// What was there, and what is there instead.
    changes: &'static [(&'static str, &'static str)],
    /// Why nobody could tell.
    #[expect(
        dead_code,
        reason = "for people, who see it where such a mutant is gone"
    )]
    reason: &'static str,
}

/// What became of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    /// It says or leaves something else.
    Killed,
    /// It runs for ever.
    Endless,
    /// It is no script.
    Stillborn,
    Survived,
}

impl fmt::Display for Mutant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{}:{}: `{}` -> `{}` in `{}`",
            self.file, self.line, self.from, self.to, self.source
        )
    }
}

impl Mutant {
    fn is(&self, known: &Equivalent) -> bool {
        (self.file.as_str(), self.source.as_str()) == (known.file, known.source)
            && known.changes.iter().any(|change| self.is_change(change))
    }

    fn is_change(&self, change: &(&str, &str)) -> bool {
        (self.from.as_str(), self.to.as_str()) == *change
    }

    /// Tries it on a server, which it may spoil.
    fn try_on(&self, server: &RedisProcess, histories: &[History]) -> Fate {
        let (script, clock) = (Script::new(self.text.clone()), Clock::system());
        for patience in PATIENCE {
            let Ok(twins) = Twins::new(server, &script) else {
                return Fate::Stillborn;
            };
            let (mut twins, mut begun) = (twins.with_patience(patience), clock.now());
            let trial = histories.iter().try_for_each(|history| {
                begun = clock.now();
                history.play(&mut twins)
            });
            if trial
                .and_then(|()| goes_by_the_servers_clock(&script, server))
                .is_ok()
            {
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

/// Every mutant of the script that serves.
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
    changes
        .into_iter()
        .map(|(at, len, to)| mutant(text, at, len, to))
        .collect()
}

fn mutant(text: &str, at: usize, len: usize, to: String) -> Mutant {
    // The twins stand inside of the driver.
    let twins = counter::LUA.map(|(name, part)| (format!("{name}.lua"), part));
    let parts = [("charge.lua".to_owned(), counter::LUA_SHARED)]
        .into_iter()
        .chain(twins);
    let parts = parts.map(|(name, part)| {
        (
            name,
            text.find(part).expect("it is a part of the script"),
            part.len(),
        )
    });
    let (file, start) = parts
        .filter(|(_, start, len)| (*start..start + len).contains(&at))
        .map(|(name, start, _)| (name, start))
        .next()
        .unwrap_or((DRIVER.to_owned(), 0));
    let line = 1 + text[start..at].matches('\n').count();
    let source = text[..at].rfind('\n').map_or(0, |end| end + 1);
    let source = text[source..]
        .lines()
        .next()
        .unwrap_or_default()
        .trim()
        .to_owned();
    Mutant {
        text: [&text[..at], &to, &text[at + len..]].concat(),
        file,
        line,
        source,
        from: text[at..at + len].to_owned(),
        to,
    }
}

/// Whole lines that could be left out: those that do something and open nothing.
fn statements(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let statement = line.trim();
        let assigns = statement.contains(" = ");
        let opens = [
            "local ",
            "if ",
            "for ",
            "while ",
            "function ",
            "elseif ",
            "--",
            "return ",
        ]
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

/// What is tried in a token's place.
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
        // Patterns and formats say something with every letter. Which order bytes have is seen by
        // no test if it is the machine's own.
        if text.contains('%') || text.contains("dd") {
            let letters = (1..text.len() - 1).filter(|&letter| text.as_bytes()[letter] != b'<');
            others.extend(letters.map(|letter| [&text[..letter], &text[letter + 1..]].concat()));
            others.insert(text.replace('<', ">"));
        }
    }
    if !is_declared(tokens, index) {
        let around: BTreeSet<&str> = tokens[function(tokens, index)]
            .iter()
            .map(|token| token.text)
            .collect();
        for kind in KINDS.into_iter().filter(|kind| kind.contains(&text)) {
            others.extend(
                kind.iter()
                    .filter(|word| around.contains(*word))
                    .map(|&word| word.to_owned()),
            );
        }
    }
    others.remove(text);
    others
}

/// The tokens of the function that a token is in, or else between two of them.
fn function(tokens: &[Token<'_>], index: usize) -> Range<usize> {
    let is_edge = |token: &Token<'_>| {
        token.is_outermost && ["function", "local", "end"].contains(&token.text)
    };
    let is_function = |at: usize| {
        tokens[at..]
            .iter()
            .take(2)
            .any(|token| token.text == "function")
    };
    let start = (0..=index)
        .rev()
        .find(|&at| is_edge(&tokens[at]) && (is_function(at) || tokens[at].text == "end"))
        .unwrap_or(0);
    let end = (index + 1..tokens.len())
        .find(|&at| is_edge(&tokens[at]) && (is_function(at) || tokens[at].text == "end"));
    start..end.unwrap_or(tokens.len())
}

/// Whether a token is a name that is only just given: by `local`, `for`, or as a parameter.
fn is_declared(tokens: &[Token<'_>], index: usize) -> bool {
    let is_name = |token: &Token<'_>| {
        is_word(token.text)
            && !["local", "for", "function", "return", "in", "if", "not"].contains(&token.text)
    };
    let before = |index: usize, joints: &[&str]| {
        (0..index)
            .rev()
            .find(|&at| !is_name(&tokens[at]) && !joints.contains(&tokens[at].text))
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

/// The tokens of a Lua text that has no long strings and no escapes.
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

/// What mutants are tried on, by the file that they change: an algorithm has to do with nobody's
/// counters but its own. The same histories every time.
struct Trials(HashMap<&'static str, Vec<History>>);

impl Trials {
    fn new() -> Self {
        let mut runner = TestRunner::new_with_rng(
            Config::default(),
            TestRng::deterministic_rng(RngAlgorithm::ChaCha),
        );
        let mut random = |algorithms| {
            histories(algorithms)
                .new_tree(&mut runner)
                .expect("there are histories")
                .current()
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
        self.0.get(mutant.file.as_str()).unwrap_or(&self.0[DRIVER])
    }
}

#[test]
#[ignore = "it takes minutes: `make mutants` runs it"]
fn every_mutant_of_the_lua_is_found_out() {
    // Of one file, for whoever works on it.
    let of_file = std::env::var("MUTANTS_OF").ok();
    // Those that are listed live through everything that is played, which takes longer than all
    // others together.
    let tries_listed = std::env::var_os("MUTANTS_LISTED").is_some();
    let is_wanted = |file: &str| {
        of_file
            .as_deref()
            .is_none_or(|wanted| wanted.contains(file))
    };
    let all: Vec<Mutant> = mutants()
        .into_iter()
        .filter(|mutant| is_wanted(&mutant.file))
        .collect();
    for known in EQUIVALENT.iter().filter(|known| is_wanted(known.file)) {
        for change in known.changes {
            assert!(
                all.iter()
                    .any(|mutant| mutant.is(known) && mutant.is_change(change)),
                "nothing is {change:?} any more of {known:?}"
            );
        }
    }
    let is_listed = |mutant: &Mutant| EQUIVALENT.iter().any(|known| mutant.is(known));
    let mutants: Vec<&Mutant> = all
        .iter()
        .filter(|mutant| tries_listed || !is_listed(mutant))
        .collect();
    let (trials, next) = (Trials::new(), AtomicUsize::new(0));
    let work = || {
        let limit = LUA_TIME_LIMIT.as_millis().to_string();
        let start = || {
            RedisProcess::builder()
                .with_arguments(&["--lua-time-limit", &limit])
                .start()
        };
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
                    println!("found out after all, so it need not be listed: {mutant}")
                }
                _ => {}
            }
            fates.push((fate, mutant));
        }
        fates
    };
    let fates: Vec<(Fate, &Mutant)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().expect("no panic"))
            .collect()
    });

    let count = |wanted| fates.iter().filter(|(fate, _)| *fate == wanted).count();
    println!(
        "{} mutants: {} found out, {} of them by never ending; {} survive, {} are listed and were not tried (MUTANTS_LISTED=1 tries them)",
        all.len() - count(Fate::Stillborn),
        count(Fate::Killed) + count(Fate::Endless),
        count(Fate::Endless),
        count(Fate::Survived),
        all.len() - mutants.len()
    );
    let survivors = fates
        .iter()
        .filter(|(fate, mutant)| *fate == Fate::Survived && !is_listed(mutant));
    let unknown: Vec<String> = survivors.map(|(_, mutant)| mutant.to_string()).collect();
    assert!(
        unknown.is_empty(),
        "{} make a difference that no test sees:\n{}",
        unknown.len(),
        unknown.join("\n")
    );
}
