//! The script that decides, what it is sent and what it replies.
//!
//! One script decides many checks of any algorithm in one call: a call of its own for each would cost Redis three times as much. It is
//! put together from the twins of all algorithms and a driver that walks the checks. Its words are in `driver.lua`; here is their
//! other side.

use std::sync::LazyLock;

use redis::{Cmd, RedisError, Value};
use smallvec::SmallVec;

use crate::algorithm::charge::Charge;
use crate::algorithm::{Counter, counter, fixed_window};
use crate::check::{Check, Key, Verdict};
use crate::limit::Algorithm;
use crate::time::{Span, Time};

/// What walks the checks.
const DRIVER: &str = include_str!("driver.lua");
/// Where in it the twins of all algorithms stand.
const TWINS_GO_HERE: &str = "--@ the twins of all algorithms\n";
/// What the argument of a short line begins with: hits of a fixed window that count whether they pass or not.
const SHORT: u8 = b'i';

/// What every call runs, and the hash that Redis remembers it by.
#[derive(Debug)]
pub struct Script {
    text: String,
    hash: String,
}

/// One check as Redis gets it.
#[derive(Debug, Clone)]
pub struct Line {
    key: Key,
    argument: SmallVec<[u8; 48]>,
    /// The time by which the window was chosen that the key names.
    at: Time,
    hash: u64,
    /// What one hit costs, in the counter's own units.
    price: u64,
}

/// What Redis said to one call.
#[derive(Debug)]
pub struct Replies {
    /// What time it is there.
    pub now: Time,
    /// For each check in order what is spent after it, as -1 - spent if it was refused; or what is wrong with it.
    pub told: Vec<Result<i64, String>>,
}

/// How the script is named in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// By its hash. Redis may have forgotten it: after a restart, a failover, a flush.
    Hash,
    /// By its text, which Redis then remembers.
    Text,
}

impl Script {
    /// A script of that text.
    pub fn new(text: String) -> Self {
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }

    /// The one that serves.
    pub fn serving() -> &'static Self {
        static SERVING: LazyLock<Script> = LazyLock::new(|| Script::new(DRIVER.replace(TWINS_GO_HERE, &counter::LUA.concat())));
        &SERVING
    }

    /// Its text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// One call for all these checks; of each group is said whether it is decided together. `now` is for Redis to go by, instead of
    /// its own clock.
    pub fn command<'l>(&self, groups: impl Iterator<Item = (bool, &'l [Line])> + Clone, now: Option<Time>, form: Form) -> Cmd {
        let (name, script) = match form {
            Form::Hash => ("EVALSHA", &self.hash),
            Form::Text => ("EVAL", &self.text),
        };
        let mut command = redis::cmd(name);
        command.arg(script);
        command.arg(groups.clone().map(|(_, lines)| lines.len()).sum::<usize>());
        for line in groups.clone().flat_map(|(_, lines)| lines) {
            command.arg(line.key.as_bytes());
        }
        match now {
            Some(now) => command.arg(now.as_micros()),
            None => command.arg(""),
        };
        let mut run = Run::default();
        for (together, lines) in groups {
            if together {
                run.end(&mut command);
                command.arg(format!("T{}", lines.len()));
            }
            for line in lines {
                if line.is_short() {
                    run.add(&line.argument, &mut command);
                } else {
                    run.end(&mut command);
                    command.arg(line.argument.as_slice());
                }
            }
        }
        run.end(&mut command);
        command
    }
}

/// Short lines one after the other whose arguments are the same: Redis gets one for all of them.
#[derive(Default)]
struct Run<'l> {
    argument: &'l [u8],
    length: usize,
}

impl<'l> Run<'l> {
    fn add(&mut self, argument: &'l [u8], command: &mut Cmd) {
        if self.argument != argument {
            self.end(command);
            self.argument = argument;
        }
        self.length += 1;
    }

    fn end(&mut self, command: &mut Cmd) {
        if self.length > 0 {
            let mut argument: SmallVec<[u8; 48]> = SmallVec::new();
            argument.push(SHORT);
            push_number(self.length as u64, |digits| argument.extend_from_slice(digits));
            argument.extend_from_slice(&self.argument[1..]);
            command.arg(argument.as_slice());
        }
        *self = Self::default();
    }
}

impl Line {
    /// A check at that time, whose counter has that hash here. `apart` is whether it may be decided without looking at others, `jitter`
    /// what keys of windows outlive them by.
    pub fn new(check: &Check, hash: u64, at: Time, apart: bool, jitter: Span) -> Self {
        let limit = &check.limit;
        let mut key = check.key.clone();
        let mut argument = SmallVec::new();
        let charge = Counter::charge(limit, check.hits);
        let (code, price, life, rate) = match limit.algorithm() {
            Algorithm::FixedWindow => {
                let start = fixed_window::start(limit, at).as_micros() / Span::from_secs(1).as_micros();
                push_number(start, |digits| key.push(digits));
                let life = limit.period().ceil_secs() + jitter.ceil_secs();
                if apart && !charge.drops && charge.cost > 0 {
                    argument.extend_from_slice(&[SHORT, b' ']);
                    push_number(charge.cost.unsigned_abs(), |digits| argument.extend_from_slice(digits));
                    argument.push(b' ');
                    push_number(life, |digits| argument.extend_from_slice(digits));
                    return Self { key, argument, at, hash, price: 1 };
                }
                (1, 1, life, 0)
            }
            Algorithm::TokenBucket => (2, limit.period_ticks(), limit.tick().span().as_micros(), limit.requests().into()),
        };
        let Charge { cost, drops, full, deepest } = charge;
        argument.extend_from_slice(&[code, drops.into(), check.veto.into()]);
        for number in [cost].into_iter().chain([full, deepest, life, rate].map(u64::cast_signed)) {
            argument.extend_from_slice(&double(number).to_le_bytes());
        }
        Self { key, argument, at, hash, price }
    }

    /// Whether it is one of those that go out in runs.
    fn is_short(&self) -> bool {
        self.argument[0] == SHORT
    }

    /// What its counter is known by here.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// How many hits that number means.
    pub fn used(&self, told: i64) -> u64 {
        read(told).0.div_ceil(self.price)
    }

    /// What the number that Redis told of this check means.
    pub fn verdict(&self, check: &Check, now: Time, told: i64) -> Verdict {
        let (spent, refused) = read(told);
        let over = refused || spent > Counter::charge(&check.limit, check.hits).full;
        self.counter(check, now, told).verdict(&check.limit, now, check.hits, over)
    }

    /// The counter that Redis told of, as of `now`.
    pub fn counter(&self, check: &Check, now: Time, told: i64) -> Counter {
        let (spent, _) = read(told);
        let at = match check.limit.algorithm() {
            Algorithm::FixedWindow => self.at,
            Algorithm::TokenBucket => now,
        };
        Counter::spent(&check.limit, at, spent)
    }
}

/// What is spent, and whether the check was refused.
fn read(told: i64) -> (u64, bool) {
    if told < 0 { ((-1 - told).unsigned_abs(), true) } else { (told.unsigned_abs(), false) }
}

/// Reads what came back for `count` checks.
///
/// # Errors
/// Redis' own, and a reply that this script never makes.
pub fn replies(value: Value, count: usize) -> Result<Replies, RedisError> {
    let strange = || RedisError::from((redis::ErrorKind::UnexpectedReturnType, "the script's reply has another shape"));
    let Value::Array(items) = value else { return Err(strange()) };
    let mut items = items.into_iter();
    let Some(Value::Int(now)) = items.next() else { return Err(strange()) };
    let told = items.map(|item| match item {
        Value::Int(number) => Ok(Ok(number)),
        Value::BulkString(text) => Ok(Err(String::from_utf8_lossy(&text).into_owned())),
        _ => Err(strange()),
    });
    let told: Vec<_> = told.collect::<Result<_, _>>()?;
    if told.len() != count {
        return Err(strange());
    }
    Ok(Replies { now: Time::from_micros(now.unsigned_abs()), told })
}

/// Whether Redis does not know the script.
pub fn is_unknown(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(redis::ServerErrorKind::NoScript)
}

fn push_number(number: u64, push: impl FnOnce(&[u8])) {
    let mut digits = itoa::Buffer::new();
    push(digits.format(number).as_bytes());
}

/// Exact: a limit's numbers are whole and below 2^53.
#[expect(clippy::cast_precision_loss, reason = "numbers below 2^53 lose nothing")]
fn double(number: i64) -> f64 {
    number as f64
}
