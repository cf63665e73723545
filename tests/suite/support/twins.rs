//! The twins of the algorithms side by side: a model that counts in Rust, and a Redis that counts by the script.
//!
//! Expiry is played, not waited for. Whatever life the script gives a key is read and noted; then the key is given a mark of a life, so
//! that it does not end by itself and that another life shows; and it is deleted once the time of the game has passed the end of the noted
//! one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use redis::{Connection, RedisError, Value};
use smallvec::SmallVec;
use tollgate::algorithm::{Counter, decide_together, fixed_window};
use tollgate::check::{Ask, Check, Hits, Verdict};
use tollgate::limit::{Algorithm, EXACT_MAX, Limit};
use tollgate::store::redis::script::{self, Form, Line, Script};
use tollgate::time::{Span, Time};

use super::redis::RedisProcess;

/// The life of a key between two calls, in ms: more than any script gives, and less than Redis takes.
const LIFE_MARK: i64 = 8_000_000_000_000_000;
/// A mark is still one when so much of it is over.
const LIFE_MARK_SLACK: i64 = 3_600_000;
/// Redis refuses times that are too long for it, so lives end here, in ms.
const LIFE_MAX: u64 = 1 << 52;

/// What Redis says where it takes no writes.
const REFUSED: &str = "NOREPLICAS Not enough good replicas to write.";

/// Both sides.
pub(crate) struct Twins<'s> {
    connection: Connection,
    script: &'s Script,
    model: Model,
    /// How much longer than their windows keys of windows live.
    jitter: Span,
}

/// Whether Redis takes what is written to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writes {
    Taken,
    /// As for want of replicas, or of memory.
    Refused,
}

/// What Redis should have, counted in Rust.
#[derive(Default)]
struct Model {
    states: BTreeMap<Vec<u8>, State>,
    /// The keys that the call under way has given a life, in ms.
    lives: BTreeMap<Vec<u8>, u64>,
    /// All that would be written in the call under way is refused.
    is_read_only: bool,
}

/// What stands at a key.
struct State {
    limit: Limit,
    /// Or why it is none, and is left alone.
    counter: Result<Counter, &'static str>,
    /// When it was written.
    written: Time,
    expires: Time,
    /// What somebody else has put there, as long as it stands.
    found: Option<Found>,
}

/// What somebody else may have put at a key.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Found {
    /// A text.
    Text(Vec<u8>),
    /// Something that is no text.
    List,
}

/// What a check finds at its key.
struct Loaded {
    counter: Counter,
    /// The key says so already.
    kept: bool,
    fresh: bool,
}

/// The key at which Redis has the counter of a check.
pub(crate) fn redis_key(check: &Check, now: Time) -> Vec<u8> {
    let mut key = check.key.clone();
    if check.limit.algorithm() == Algorithm::FixedWindow {
        let start = fixed_window::start(&check.limit, now).as_micros() / 1_000_000;
        key.push(start.to_string().as_bytes());
    }
    key.as_bytes().to_vec()
}

impl<'s> Twins<'s> {
    /// An empty Redis, and the script that it runs.
    ///
    /// # Errors
    /// What Redis has against the script.
    pub(crate) fn new(server: &RedisProcess, script: &'s Script) -> Result<Self, RedisError> {
        let mut connection = server.connection();
        let () = redis::cmd("SCRIPT").arg("LOAD").arg(script.text()).query(&mut connection)?;
        let mut twins = Self { connection, script, model: Model::default(), jitter: Span::ZERO };
        twins.start_over(Span::ZERO)?;
        Ok(twins)
    }

    /// Waits for a reply no longer than this.
    pub(crate) fn with_patience(self, patience: Duration) -> Self {
        self.connection.set_read_timeout(Some(patience)).expect("it is no zero");
        self
    }

    /// Forgets all counters.
    pub(crate) fn start_over(&mut self, jitter: Span) -> Result<(), RedisError> {
        self.model = Model::default();
        self.jitter = jitter;
        redis::cmd("FLUSHALL").query(&mut self.connection)
    }

    /// Puts something at a counter's key, as another program might.
    pub(crate) fn put(&mut self, check: &Check, found: &Found, now: Time) -> Result<(), RedisError> {
        let key = redis_key(check, now);
        let mut call = redis::pipe();
        match found {
            Found::Text(text) => call.cmd("SET").arg(&key).arg(text),
            Found::List => call.cmd("RPUSH").arg(&key).arg("item"),
        };
        let () = call.ignore().cmd("PEXPIRE").arg(&key).arg(LIFE_MARK).ignore().query(&mut self.connection)?;
        self.model.states.insert(key, State::found(check.limit, found, now));
        Ok(())
    }

    /// Asks both sides in one call, and compares what they say and what they leave.
    ///
    /// # Errors
    /// In what they differ.
    pub(crate) fn ask(&mut self, asks: &[Ask], writes: Writes, now: Time) -> Result<Vec<Result<Verdict, &'static str>>, String> {
        let expired = self.model.expire(now)?;
        self.model.is_read_only = writes == Writes::Refused;
        let mut keys: BTreeSet<Vec<u8>> = self.model.states.keys().chain(&expired).cloned().collect();
        let expected: Vec<Result<Verdict, &str>> = asks.iter().flat_map(|ask| self.model.decide(ask, self.jitter, now)).collect();
        keys.extend(asks.iter().flat_map(|ask| &ask.checks).map(|check| redis_key(check, now)));

        let lines: Vec<(bool, SmallVec<[Line; 2]>)> = asks.iter().map(|ask| (ask.together, self.lines(ask, now))).collect();
        let groups = lines.iter().map(|(together, lines)| (*together, lines.as_slice()));
        let mut call = redis::pipe();
        // In one transaction no time passes for expiry.
        call.atomic();
        for key in &expired {
            call.cmd("DEL").arg(key).ignore();
        }
        let take = |replicas| redis::cmd("CONFIG").arg("SET").arg("min-replicas-to-write").arg(replicas).clone();
        if writes == Writes::Refused {
            call.add_command(take(1)).ignore();
        }
        call.cmd("TIME").add_command(self.script.command(groups, Some(now), Form::Hash));
        if writes == Writes::Refused {
            call.add_command(take(0)).ignore();
        }
        for key in &keys {
            match self.model.states.get(key).and_then(|state| state.found.as_ref()) {
                Some(Found::List) => call.cmd("LINDEX").arg(key).arg(0),
                _ => call.cmd("GET").arg(key),
            };
            call.cmd("PTTL").arg(key).cmd("PEXPIRE").arg(key).arg(LIFE_MARK);
        }
        call.cmd("TIME");
        let mut values = call.query::<Vec<Value>>(&mut self.connection).map_err(|error| error.to_string())?.into_iter();

        let mut next = || values.next().ok_or("a reply is missing");
        let before = millis(&next()?)?;
        let replies = script::replies(next()?, expected.len()).map_err(|error| error.to_string())?;
        let found = keys.iter().map(|key| Ok((key, next()?, next()?, next()?))).collect::<Result<Vec<_>, &str>>()?;
        let passed = millis(&next()?)?.saturating_sub(before);

        if replies.now != now {
            return Err(format!("it was told that it is {now:?}, and says {:?}", replies.now));
        }
        let checks = asks.iter().flat_map(|ask| &ask.checks);
        let lines = lines.iter().flat_map(|(_, lines)| lines);
        for (index, ((check, line), (told, expected))) in checks.zip(lines).zip(replies.told.iter().zip(&expected)).enumerate() {
            let said = match told {
                Ok(number) => Ok(line.verdict(check, now, *number)),
                Err(text) => Err(text.as_str()),
            };
            let same = match (said, expected) {
                (Ok(said), Ok(expected)) => said == *expected,
                (Err(said), Err(expected)) => said.contains(expected),
                _ => false,
            };
            if !same {
                return Err(format!("check {index}, {check:?} at {now:?}:\n redis {said:?}\n  rust {expected:?}"));
            }
            self.model.outlives(check, now)?;
        }
        for (key, value, life, _) in found {
            let (Value::Int(life), name) = (life, String::from_utf8_lossy(key)) else { return Err("no life".to_owned()) };
            self.model.compare(key, &value, life, passed).map_err(|error| format!("{name} at {now:?}: {error}"))?;
        }
        Ok(expected)
    }

    fn lines(&self, ask: &Ask, now: Time) -> SmallVec<[Line; 2]> {
        ask.checks.iter().map(|check| Line::new(check, 0, now, !ask.together, self.jitter)).collect()
    }
}

impl Model {
    /// Forgets what has expired, and gives its keys.
    fn expire(&mut self, now: Time) -> Result<Vec<Vec<u8>>, String> {
        self.lives.clear();
        let expired: Vec<_> = self.states.iter().filter(|(_, state)| state.expires <= now).map(|(key, _)| key.clone()).collect();
        for key in &expired {
            let State { counter, limit, .. } = &self.states[key];
            if counter.is_ok_and(|counter| counter.spent_at(limit, now) > 0) {
                return Err(format!("{} expires before its time: {counter:?}", String::from_utf8_lossy(key)));
            }
            self.states.remove(key);
        }
        Ok(expired)
    }

    fn decide(&mut self, ask: &Ask, jitter: Span, now: Time) -> Vec<Result<Verdict, &'static str>> {
        if ask.together {
            return self.decide_together(ask, jitter, now);
        }
        ask.checks.iter().map(|check| self.decide_one(check, jitter, now)).collect()
    }

    fn decide_one(&mut self, check: &Check, jitter: Span, now: Time) -> Result<Verdict, &'static str> {
        let key = redis_key(check, now);
        let charge = Counter::charge(&check.limit, check.hits);
        // It writes before it reads.
        let adds_only = check.limit.algorithm() == Algorithm::FixedWindow && charge.cost > 0 && !charge.drops;
        if adds_only && self.is_read_only {
            return Err(REFUSED);
        }
        let loaded = self.load(&key, &check.limit, now)?;
        let (after, verdict) = loaded.counter.decide(&check.limit, now, check.hits);
        if self.is_read_only && loaded.differs_from(after, &check.limit, now) {
            return Err(REFUSED);
        }
        // What is added to nothing begins to live, whether nothing stands there or no key.
        let fresh = loaded.fresh || (adds_only && loaded.counter.is_untouched());
        self.keep(key, &check.limit, &Loaded { fresh, ..loaded }, after, jitter, now);
        Ok(verdict)
    }

    /// Trouble with one counter is trouble with all: nobody knows what the others may do.
    fn decide_together(&mut self, ask: &Ask, jitter: Span, now: Time) -> Vec<Result<Verdict, &'static str>> {
        let mut keys: Vec<(Vec<u8>, Limit)> = Vec::new();
        let slots = ask.checks.iter().map(|check| {
            let key = redis_key(check, now);
            keys.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
                keys.push((key, check.limit));
                keys.len() - 1
            })
        });
        let slots: Vec<usize> = slots.collect();
        let loaded = match keys.iter().map(|(key, limit)| self.load(key, limit, now)).collect::<Result<Vec<_>, _>>() {
            Ok(loaded) => loaded,
            Err(trouble) => return vec![Err(trouble); ask.checks.len()],
        };
        let mut counters: Vec<Counter> = loaded.iter().map(|loaded| loaded.counter).collect();
        let verdicts = decide_together(&ask.checks, &slots, &mut counters, now);
        let mut slots = keys.iter().zip(&loaded).zip(&counters);
        if self.is_read_only && slots.any(|(((_, limit), loaded), &after)| loaded.differs_from(after, limit, now)) {
            return vec![Err(REFUSED); ask.checks.len()];
        }
        for (((key, limit), loaded), after) in keys.into_iter().zip(loaded).zip(counters) {
            self.keep(key, &limit, &loaded, after, jitter, now);
        }
        verdicts.into_iter().map(Ok).collect()
    }

    fn load(&self, key: &[u8], limit: &Limit, now: Time) -> Result<Loaded, &'static str> {
        let Some(state) = self.states.get(key) else {
            return Ok(Loaded { counter: Counter::untouched(limit.algorithm()), kept: true, fresh: true });
        };
        let counter = state.counter?;
        Ok(match limit.algorithm() {
            Algorithm::FixedWindow => {
                let kept = state.found.as_ref().is_none_or(|found| *found == Found::Text(state.bytes()));
                Loaded { counter, kept, fresh: false }
            }
            Algorithm::TokenBucket => {
                let from_the_future = limit.tick().since_epoch(state.written) > limit.tick().since_epoch(now);
                let counter = if from_the_future { Counter::spent(limit, now, counter.spent_at(limit, now)) } else { counter };
                Loaded { counter, kept: !from_the_future, fresh: false }
            }
        })
    }

    /// A state is only written when it is another one, so what time alone has changed keeps its date.
    fn keep(&mut self, key: Vec<u8>, limit: &Limit, loaded: &Loaded, after: Counter, jitter: Span, now: Time) {
        if !loaded.differs_from(after, limit, now) {
            return;
        }
        let spent = after.spent_at(limit, now);
        let life = match limit.algorithm() {
            Algorithm::FixedWindow => loaded.fresh.then(|| (limit.period().ceil_secs() + jitter.ceil_secs()) * 1_000),
            Algorithm::TokenBucket if spent == 0 => {
                self.states.remove(&key);
                self.lives.remove(&key);
                return;
            }
            Algorithm::TokenBucket => {
                // Until nothing is spent, and 2 ms: Redis' expiry goes by whole ms.
                let ticks = spent.div_ceil(limit.requests().into());
                let life = (ticks.saturating_mul(limit.tick().span().as_micros())).div_ceil(1_000) + 2;
                Some(life.min(LIFE_MAX))
            }
        };
        let expires = match life {
            Some(life) => now.plus(Span::from_micros(life.saturating_mul(1_000))),
            None => self.states[&key].expires,
        };
        self.lives.extend(life.map(|life| (key.clone(), life)));
        self.states.insert(key, State { limit: *limit, counter: Ok(after), written: now, expires, found: None });
    }

    /// Whoever is told how long something is left of a counter finds it until then.
    fn outlives(&self, check: &Check, now: Time) -> Result<(), String> {
        let Some(state) = self.states.get(&redis_key(check, now)) else { return Ok(()) };
        let Ok(counter) = state.counter else { return Ok(()) };
        let (_, look) = counter.decide(&check.limit, now, Hits::Look);
        let needed = now.plus(look.reset_after).min(state.written.plus(Span::from_micros(LIFE_MAX * 1_000)));
        // After a reload the old rate still decides how long it lives.
        if state.limit == check.limit && state.written <= now && state.expires < needed {
            return Err(format!("{check:?} lives until {:?}, and something is left of it until {needed:?}", state.expires));
        }
        Ok(())
    }

    /// What Redis has at a key, with a life of so many ms, of which `passed` may have passed already.
    fn compare(&self, key: &[u8], value: &Value, life: i64, passed: i64) -> Result<(), String> {
        let Some(state) = self.states.get(key) else {
            return if *value == Value::Nil { Ok(()) } else { Err(format!("{value:?} is there, and nothing should be")) };
        };
        let expected = match &state.found {
            None => state.bytes(),
            Some(Found::Text(text)) => text.clone(),
            Some(Found::List) => b"item".to_vec(),
        };
        if *value != Value::BulkString(expected.clone()) {
            return Err(format!("{value:?} is there, and {:?} should be: {expected:?}", state.counter));
        }
        let (least, most) = match self.lives.get(key) {
            Some(&given) => {
                // In 285 years a double loses count of µs.
                let lost = i64::from(given > EXACT_MAX / 1_000 && given < LIFE_MAX);
                (given.cast_signed() - passed - lost, given.cast_signed() + lost)
            }
            None => (LIFE_MARK - LIFE_MARK_SLACK, LIFE_MARK),
        };
        if (least..=most).contains(&life) { Ok(()) } else { Err(format!("it lives for {life} ms instead of {most}")) }
    }
}

impl Loaded {
    /// Whether something else has to be written.
    fn differs_from(&self, after: Counter, limit: &Limit, now: Time) -> bool {
        after.spent_at(limit, now) != self.counter.spent_at(limit, now) || !self.kept
    }
}

impl State {
    /// What somebody else's value means: what is no counter is an error, and a counter that says what none of ours could counts as the
    /// nearest that one could.
    fn found(limit: Limit, found: &Found, now: Time) -> Self {
        let state = |counter, written| Self { limit, counter, written, expires: Time::from_micros(u64::MAX), found: Some(found.clone()) };
        let Found::Text(text) = found else { return state(Err("WRONGTYPE Operation against a key holding the wrong kind of value"), now) };
        match limit.algorithm() {
            Algorithm::FixedWindow => {
                let number = std::str::from_utf8(text).ok().filter(|text| !text.starts_with('+')).and_then(|text| text.parse::<i64>().ok());
                let used = number.map(|number| u64::try_from(number).unwrap_or(0).min(EXACT_MAX - 1));
                let counter = used.map(|used| Counter::spent(&limit, now, used));
                state(counter.ok_or("ERR value is not an integer or out of range"), now)
            }
            Algorithm::TokenBucket => match bucket(text) {
                Some((spent, at)) => {
                    let written = limit.tick().begins(at).min(Time::from_micros(EXACT_MAX));
                    state(Ok(Counter::spent(&limit, written, spent.min(2 * EXACT_MAX))), written)
                }
                None => state(Err("ERR value is not a bucket"), now),
            },
        }
    }

    /// How it is written.
    #[expect(clippy::cast_precision_loss, reason = "numbers below 2^53 lose nothing")]
    fn bytes(&self) -> Vec<u8> {
        let Ok(counter) = self.counter else { return Vec::new() };
        let spent = counter.spent_at(&self.limit, self.written);
        match self.limit.algorithm() {
            Algorithm::FixedWindow => spent.to_string().into_bytes(),
            Algorithm::TokenBucket => {
                let at = self.limit.tick().since_epoch(self.written);
                [(spent as f64).to_le_bytes(), (at as f64).to_le_bytes()].concat()
            }
        }
    }
}

/// What is spent, and at which tick, if it is a bucket.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "only numbers above 0 are cast, and the largest saturate")]
fn bucket(text: &[u8]) -> Option<(u64, u64)> {
    let numbers: [u8; 16] = text.try_into().ok()?;
    let number = |at: usize| f64::from_le_bytes(std::array::from_fn(|byte| numbers[at + byte]));
    let (spent, at) = (number(0), number(8));
    (spent >= 0.0 && at >= 0.0).then_some((spent as u64, at as u64))
}

/// What TIME replied, in whole ms.
fn millis(value: &Value) -> Result<i64, String> {
    let (seconds, micros): (i64, i64) = redis::from_redis_value(value.clone()).map_err(|error| error.to_string())?;
    Ok(seconds * 1_000 + micros / 1_000)
}
