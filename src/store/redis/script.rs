//! The script that decides, what it is sent and what it replies.
//!
//! One script decides many checks of any algorithm in one call: a call of its own for each would
//! cost Redis three times as much. It is put together from the twins of all algorithms and a driver
//! that walks the checks. Its words are in `driver.lua`; here is their other side.

use std::cmp::Ordering;
use std::sync::LazyLock;

use redis::{Cmd, Pipeline, RedisError, Value};
use smallvec::SmallVec;

use crate::algorithm::charge::Charge;
use crate::algorithm::counter::{self, Kind};
use crate::algorithm::{Counter, sub_windows};
use crate::check::{Call, Check, Key, Verdict};
use crate::limit::{EXACT_MAX, LOG_ENTRIES_MAX, Months};
use crate::time::{MICROS_PER_SECOND, Span, Time};

/// What walks the checks.
const DRIVER: &str = include_str!("driver.lua");
/// Where in it the twins of all algorithms stand.
const TWINS_GO_HERE: &str = "--@ the twins of all algorithms\n";

/// What every call runs, and the hash that Redis remembers it by.
#[derive(Debug)]
pub struct Script {
    text: String,
    hash: String,
}

/// How the checks of a request are decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Each by itself.
    Independent,
    /// All or nothing.
    Atomic,
    /// Each by itself, and nothing of it is kept: what would be said.
    DryRun,
}

/// One check as Redis gets it.
#[derive(Debug, Clone)]
pub struct EncodedCheck {
    key: Key,
    argument: SmallVec<[u8; 48]>,
    window: Option<Window>,
    route: Route,
    /// The time by which the window was chosen that the key names.
    at: Time,
    hash: u64,
    /// What one hit costs, in the counter's own units.
    price: u64,
}

/// Where in a line's argument its cost begins.
const COST_AT: usize = 3;

/// How a line gets to the node of a cluster that has its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Like any other.
    Normal,
    /// In a call of its own: of its slot, which is on its way to another node, keys are in both
    /// places.
    Isolated,
    /// The same, to the node that the slot is on its way to. That has to be told that this is
    /// known.
    Asking,
}

impl Route {
    /// Whether it travels with no other.
    pub fn is_isolated(self) -> bool {
        self != Self::Normal
    }

    /// Whether ASKING has to come before each of its commands.
    pub fn is_asking(self) -> bool {
        self == Self::Asking
    }
}

/// What Redis says of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckReply {
    /// What is spent after it, as -1 - spent if it was refused.
    number: i64,
    /// What its algorithm needs for a verdict extra.
    extra: Vec<u64>,
}

/// Hits of a fixed window that count whether they pass or not: most of what is out there, and what
/// INCRBY does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Window {
    hits: u64,
    /// How long its key lives, in seconds.
    life: u64,
    form: WindowCommand,
}

/// How such a hit is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowCommand {
    /// By the script, with others.
    Script,
    /// Its key is known to be there: INCRBY.
    Incr,
    /// Its key may not be there: SET NX with its life, and INCRBY. That costs more than the script
    /// in which it travels with others, and less than a script of its own.
    SetNxIncr,
}

/// What INCRBY alone cannot do, and a reply shows to be needed.
#[derive(Debug, Clone)]
pub enum Repair {
    /// Sets the lifetime of a key that INCRBY created.
    Expire {
        /// The key.
        key: Key,
        /// In seconds.
        life: u64,
    },
    /// Replaces a value that no counter has.
    Reset {
        /// The key.
        key: Key,
        /// The new value.
        hits: i64,
        /// In seconds.
        life: u64,
    },
}

/// What Redis said to one call.
#[derive(Debug)]
pub struct Replies {
    /// What time it is there.
    pub now: Time,
    /// For each check in order what is said of it, or what is wrong with it.
    pub told: Vec<Result<CheckReply, String>>,
}

/// How the script is named in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// By its hash. Redis may have forgotten it: after a restart, a failover, a flush.
    Hash,
    /// By its text, which Redis then remembers.
    Text,
}

/// The text of the script that serves: the driver, and in it what the twins share, and a maker for
/// each of them, so that a call makes only those that it wants.
fn put_together() -> String {
    let makers = counter::LUA.map(|(name, text)| {
        format!("makers[#makers + 1] = function()\n{text}return {name}\nend\n")
    });
    let twins = [counter::LUA_SHARED, &makers.concat()].concat();
    counter::without_comments(&DRIVER.replace(TWINS_GO_HERE, &twins))
}

impl Script {
    /// A script of that text.
    pub fn new(text: String) -> Self {
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }

    /// The one that serves.
    pub fn serving() -> &'static Self {
        static SERVING: LazyLock<Script> = LazyLock::new(|| Script::new(put_together()));
        &SERVING
    }

    /// Its text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// One call for all these checks, but for those that need no script; of each group is said
    /// whether it is decided together. `now` is for Redis to go by, instead of its own clock.
    pub fn command<'l, L>(
        &self,
        groups: impl Iterator<Item = (Mode, L)> + Clone,
        now: Option<Time>,
        form: Form,
    ) -> Cmd
    where
        L: IntoIterator<Item = &'l EncodedCheck>,
    {
        let scripted = |lines: L| lines.into_iter().filter(|line| !line.is_direct());
        let (name, script) = match form {
            Form::Hash => ("EVALSHA", &self.hash),
            Form::Text => ("EVAL", &self.text),
        };
        let mut command = redis::cmd(name);
        command.arg(script);
        command.arg(
            groups
                .clone()
                .flat_map(|(_, lines)| scripted(lines))
                .count(),
        );
        for line in groups.clone().flat_map(|(_, lines)| scripted(lines)) {
            command.arg(line.key.as_bytes());
        }
        match now {
            Some(now) => command.arg(now.as_micros()),
            None => command.arg(""),
        };
        let mut run = Run::default();
        for (mode, lines) in groups {
            let lines: SmallVec<[&EncodedCheck; 8]> = scripted(lines).collect();
            if mode == Mode::Atomic {
                run.end(&mut command);
                command.arg(format!("T{}", lines.len()));
            }
            for line in lines {
                match line.window {
                    Some(window) => run.add(window, &mut command),
                    None => {
                        run.end(&mut command);
                        if mode == Mode::DryRun {
                            command.arg("L");
                        }
                        command.arg(line.argument.as_slice());
                    }
                }
            }
        }
        run.end(&mut command);
        command
    }
}

/// Windows one after the other of the same hits and life: Redis gets one argument for all of them.
#[derive(Default)]
struct Run {
    window: Option<Window>,
    length: usize,
}

impl Run {
    fn add(&mut self, window: Window, command: &mut Cmd) {
        if self.window != Some(window) {
            self.end(command);
            self.window = Some(window);
        }
        self.length += 1;
    }

    fn end(&mut self, command: &mut Cmd) {
        if let Some(Window { hits, life, .. }) = self.window {
            command.arg(format!("i{} {hits} {life}", self.length));
        }
        *self = Self::default();
    }
}

impl EncodedCheck {
    /// A check at that time, whose counter has that hash here. `jitter` is what keys of windows
    /// outlive them by.
    pub fn new(check: &Check, hash: u64, at: Time, mode: Mode, jitter: Span) -> Self {
        Self::charging(
            check,
            Counter::charge(&check.limit, check.call()),
            hash,
            at,
            mode,
            jitter,
        )
    }

    /// The same of a check that takes something else than its hits.
    pub fn charging(
        check: &Check,
        charge: Charge,
        hash: u64,
        at: Time,
        mode: Mode,
        jitter: Span,
    ) -> Self {
        let limit = &check.limit;
        let mut key = check.key.clone();
        let mut argument = SmallVec::new();
        let (price, life, rate) = match Kind::of(limit) {
            Kind::FixedWindow => {
                let window = limit.window(at);
                key.push(
                    itoa::Buffer::new()
                        .format(window.start.as_micros() / MICROS_PER_SECOND)
                        .as_bytes(),
                );
                // As in the reference: a whole period from now, but only what is left of a calendar
                // month.
                let life = match limit.months() {
                    Months::ThirtyDays => limit.period(),
                    Months::Calendar => window.end.since(at),
                };
                let life = life.ceil_secs() + jitter.ceil_secs();
                if mode == Mode::Independent && !charge.drops && charge.cost > 0 {
                    let window = Window {
                        hits: charge.cost.unsigned_abs(),
                        life,
                        form: WindowCommand::Script,
                    };
                    return Self {
                        key,
                        argument,
                        window: Some(window),
                        route: Route::Normal,
                        at,
                        hash,
                        price: 1,
                    };
                }
                (1, life, 0)
            }
            Kind::Bucket => (
                limit.period_ticks(),
                limit.tick().span().as_micros(),
                limit.requests().into(),
            ),
            Kind::SlidingWindow => (1, limit.period_ticks(), limit.tick().span().as_micros()),
            Kind::SubWindows => (
                1,
                sub_windows::width(limit).as_micros(),
                limit.buckets().into(),
            ),
            Kind::SlidingLog | Kind::Concurrency => (1, limit.period().as_micros(), 0),
        };
        let code = Kind::of(limit) as u8 + 1;
        let Charge {
            cost,
            drops,
            full,
            deepest,
        } = charge;
        argument.extend_from_slice(&[code, drops.into(), check.enforcing.into()]);
        for number in [cost]
            .into_iter()
            .chain([full, deepest, life, rate].map(u64::cast_signed))
        {
            argument.extend_from_slice(&double(number).to_le_bytes());
        }
        argument.extend_from_slice(check.call().holder);
        Self {
            key,
            argument,
            window: None,
            route: Route::Normal,
            at,
            hash,
            price,
        }
    }

    /// Bytes that it holds extra its own size, at most.
    pub fn heap_bytes(&self) -> usize {
        self.key.len() + self.argument.len()
    }

    /// Where it is counted.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// How it gets there.
    pub fn route(&self) -> Route {
        self.route
    }

    /// Sends it another way.
    pub fn set_route(&mut self, route: Route) {
        self.route = route;
    }

    /// Whether it is one that a command alone can do, if its key is there.
    pub fn is_window(&self) -> bool {
        self.window.is_some()
    }

    /// Says how it is sent, if it is one of those.
    pub fn set_command(&mut self, form: WindowCommand) {
        if let Some(window) = &mut self.window {
            window.form = form;
        }
    }

    /// Whether it goes out as commands of its own.
    pub fn is_direct(&self) -> bool {
        self.window
            .is_some_and(|window| window.form != WindowCommand::Script)
    }

    /// Adds those commands. The reply to the last of them is the one that counts.
    pub fn increment(&self, commands: &mut Pipeline) {
        let key = self.key.as_bytes();
        if let Some(Window {
            life,
            form: WindowCommand::SetNxIncr,
            ..
        }) = self.window
        {
            self.say_asking(commands);
            commands
                .cmd("SET")
                .arg(key)
                .arg(0)
                .arg("EX")
                .arg(life)
                .arg("NX");
        }
        self.say_asking(commands);
        commands.cmd("INCRBY").arg(key).arg(self.hits());
    }

    fn say_asking(&self, commands: &mut Pipeline) {
        if self.route.is_asking() {
            commands.cmd("ASKING");
        }
    }

    /// What sets the lifetime of its key, if it goes out as commands.
    pub fn lifetime(&self) -> Option<Repair> {
        self.window
            .filter(|_| self.is_direct())
            .map(|window| Repair::Expire {
                key: self.key.clone(),
                life: window.life,
            })
    }

    /// The place of the reply to SET, if that is one of the commands whose last reply is at
    /// `reply`.
    pub fn reply_to_set(&self, reply: usize) -> Option<usize> {
        let is_fresh = self
            .window
            .is_some_and(|window| window.form == WindowCommand::SetNxIncr);
        is_fresh.then(|| reply - 1 - usize::from(self.route.is_asking()))
    }

    /// What the reply to INCRBY means, as the script would have replied, and what else is to be
    /// done if the key was not as expected. `created` says that the SET before it created the
    /// key, with its lifetime.
    ///
    /// # Errors
    /// Redis' own.
    pub fn told(
        &self,
        reply: Value,
        created: bool,
    ) -> Result<(CheckReply, Option<Repair>), RedisError> {
        let used = match reply {
            Value::Int(used) => used,
            // Beyond anything that could be counted.
            Value::ServerError(error)
                if error
                    .details()
                    .is_some_and(|text| text.contains("overflow")) =>
            {
                i64::MAX
            }
            Value::ServerError(error) => return Err(error.into()),
            _ => return Err(strange()),
        };
        let hits = i64::try_from(self.hits()).unwrap_or(i64::MAX);
        let life = self.window.map_or(0, |window| window.life);
        Ok(match used.cmp(&hits) {
            Ordering::Greater => (used.min(EXACT_MAX.cast_signed() - 1).into(), None),
            Ordering::Equal if created => (hits.into(), None),
            // The key was gone: it expired, it was evicted, or Redis restarted empty.
            Ordering::Equal => (
                hits.into(),
                Some(Repair::Expire {
                    key: self.key.clone(),
                    life,
                }),
            ),
            // Another client wrote a negative value: it counts as 0.
            Ordering::Less => (
                hits.into(),
                Some(Repair::Reset {
                    key: self.key.clone(),
                    hits,
                    life,
                }),
            ),
        })
    }

    fn hits(&self) -> u64 {
        self.window.map_or(0, |window| window.hits)
    }

    /// What its counter is known by here.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Whether a server that says this has written it to its key.
    pub fn is_written(&self, said: &CheckReply) -> bool {
        let has_cost = || {
            self.argument
                .get(COST_AT..)
                .and_then(<[u8]>::first_chunk)
                .is_some_and(|cost| f64::from_le_bytes(*cost) != 0.0)
        };
        self.is_window() || (has_cost() && !said.is_refused())
    }

    /// How many hits are in use after it.
    pub fn used(&self, said: &CheckReply) -> u64 {
        said.spent().div_ceil(self.price)
    }

    /// What Redis said of this check means.
    pub fn verdict(&self, check: &Check, now: Time, said: &CheckReply) -> Verdict {
        // INCRBY does not say so.
        let over =
            said.is_refused() || (self.is_window() && said.spent() > check.limit.requests().into());
        self.verdict_of(check, check.call(), over, now, said)
    }

    /// What the caller of another call would be told of the same counter.
    pub fn verdict_of(
        &self,
        check: &Check,
        call: Call<'_>,
        over: bool,
        now: Time,
        said: &CheckReply,
    ) -> Verdict {
        let at = if Kind::of(&check.limit) == Kind::FixedWindow {
            self.at
        } else {
            now
        };
        Counter::verdict_of_reply(
            &check.limit,
            (at, now),
            call,
            over,
            said.spent(),
            &said.extra,
        )
    }
}

impl Repair {
    /// The commands of several.
    pub fn commands(repairs: &[Self]) -> Pipeline {
        let mut commands = Pipeline::new();
        for repair in repairs {
            match repair {
                Self::Expire { key, life } => commands.cmd("EXPIRE").arg(key.as_bytes()).arg(life),
                Self::Reset { key, hits, life } => commands
                    .cmd("SET")
                    .arg(key.as_bytes())
                    .arg(hits)
                    .arg("EX")
                    .arg(life),
            };
        }
        commands
    }
}

impl CheckReply {
    /// What is spent after it, in the counter's own units.
    fn spent(&self) -> u64 {
        if self.is_refused() {
            (-1 - self.number).unsigned_abs()
        } else {
            self.number.unsigned_abs()
        }
    }

    /// Whether it is of a log with as many entries as there may be.
    pub fn is_of_full_log(&self, check: &Check) -> bool {
        let entries = || {
            self.extra
                .get(3)
                .is_some_and(|&entries| entries >= LOG_ENTRIES_MAX.into())
        };
        Kind::of(&check.limit) == Kind::SlidingLog && entries()
    }

    fn is_refused(&self) -> bool {
        self.number < 0
    }

    /// Reads what the script replies for one check.
    fn read(value: Value) -> Result<Result<Self, String>, RedisError> {
        match value {
            Value::Int(number) => Ok(Ok(Self::from(number))),
            Value::BulkString(text) => Ok(Err(String::from_utf8_lossy(&text).into_owned())),
            Value::Array(numbers) => {
                let mut numbers = numbers.into_iter().map(|number| {
                    if let Value::Int(number) = number {
                        Ok(number)
                    } else {
                        Err(strange())
                    }
                });
                let number = numbers.next().ok_or_else(strange)??;
                let extra = numbers
                    .map(|number| Ok(u64::try_from(number?).unwrap_or(0)))
                    .collect::<Result<_, RedisError>>()?;
                Ok(Ok(Self { number, extra }))
            }
            _ => Err(strange()),
        }
    }
}

impl From<i64> for CheckReply {
    fn from(number: i64) -> Self {
        Self {
            number,
            extra: Vec::new(),
        }
    }
}

fn strange() -> RedisError {
    RedisError::from((
        redis::ErrorKind::UnexpectedReturnType,
        "a reply has another shape than it ever has",
    ))
}

/// What time TIME told.
pub fn time(reply: &Value) -> Option<Time> {
    let Value::Array(parts) = reply else {
        return None;
    };
    let number = |part: &Value| {
        let Value::BulkString(digits) = part else {
            return None;
        };
        std::str::from_utf8(digits).ok()?.parse::<u64>().ok()
    };
    let [seconds, micros] = parts.as_slice() else {
        return None;
    };
    number(seconds)?
        .checked_mul(MICROS_PER_SECOND)?
        .checked_add(number(micros)?)
        .map(Time::from_micros)
}

/// Reads what came back for `count` checks.
///
/// # Errors
/// Redis' own, and a reply that this script never makes.
pub fn replies(value: Value, count: usize) -> Result<Replies, RedisError> {
    let Value::Array(items) = value else {
        return Err(strange());
    };
    let mut items = items.into_iter();
    let Some(Value::Int(now)) = items.next() else {
        return Err(strange());
    };
    let told: Vec<_> = items.map(CheckReply::read).collect::<Result<_, _>>()?;
    if told.len() != count {
        return Err(strange());
    }
    Ok(Replies {
        now: Time::from_micros(now.unsigned_abs()),
        told,
    })
}

/// Exact: a limit's numbers are whole and below 2^53.
#[expect(
    clippy::cast_precision_loss,
    reason = "numbers below 2^53 lose nothing"
)]
fn double(number: i64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Hits;
    use crate::limit::{Limit, Terms, Unit};

    #[test]
    fn the_lifetime_of_a_key_that_set_found_and_incrby_created_is_set() {
        let limit = Limit::new(&Terms::new(
            9,
            Unit::Minute,
            crate::limit::Algorithm::FixedWindow,
        ))
        .expect("a limit");
        let check = Check::new(Key::from("k"), limit, Hits::Add(2));
        let mut line = EncodedCheck::new(
            &check,
            0,
            Time::from_micros(0),
            Mode::Independent,
            Span::ZERO,
        );
        line.set_command(WindowCommand::SetNxIncr);
        let repair =
            |reply: i64, created: bool| line.told(Value::Int(reply), created).expect("a reply").1;
        assert!(repair(2, true).is_none());
        assert!(repair(3, false).is_none());
        assert!(
            matches!(repair(2, false), Some(Repair::Expire { life: 60, .. })),
            "it expired between SET and INCRBY"
        );
        assert!(matches!(
            repair(-1, false),
            Some(Repair::Reset {
                hits: 2,
                life: 60,
                ..
            })
        ));
    }
}
