//! The twins of the algorithms side by side: a model that counts in Rust, and a Redis that counts
//! by the script.
//!
//! Expiry is played, not waited for. Whatever life the script gives a key is read and noted; then
//! the key is given a mark of a life, so that it does not end by itself and that another life
//! shows; and it is deleted once the time of the game has passed the end of the noted one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use redis::{Cmd, Connection, RedisError, Value};
use smallvec::SmallVec;
use tollgate::base::time::{Span, Time};
use tollgate::limits::algorithm::charge::Charge;
use tollgate::limits::algorithm::{Counter, decide_all_or_nothing};
use tollgate::limits::check::{Check, CheckRequest, Hits, Verdict, runs};
use tollgate::limits::{Algorithm, EXACT_MAX, Limit, Terms, Unit};
use tollgate::store::redis::client::decode::{ReplyError, ScriptReply};
use tollgate::store::redis::client::encode::{EncodedCheck, Mode};
use tollgate::store::redis::client::script::{Form, Script};

use super::kept::{
    LIFE_MAX, SUM_END, compare, is_stale, life, packed, reading, redis_key, unpacked,
};
use super::redis::RedisProcess;

/// The life of a key between two calls, in ms: more than any script gives, and less than Redis
/// takes.
const LIFE_MARK: i64 = 8_000_000_000_000_000;
/// A mark is still one when so much of it is over.
const LIFE_MARK_SLACK: i64 = 3_600_000;

/// The error of a Redis replica. Redis 6.2 has no other condition under which it rejects every
/// write of a script.
const READ_ONLY: &str = "READONLY You can't write against a read only replica.";

/// Both sides.
pub(crate) struct Twins<'s> {
    connection: Connection,
    script: &'s Script,
    model: Model,
    /// How much longer than their windows keys of windows live.
    jitter: Span,
}

/// Checks that are decided together or one by one.
pub(crate) struct Ask {
    pub(crate) mode: Mode,
    pub(crate) request: CheckRequest,
    /// The marks of each check.
    pub(crate) marks: Vec<Marks>,
}

/// What precedes a check in a call.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Marks {
    /// The most hits to take ahead, and the parts of what is left of which they are one.
    pub(crate) ahead: Option<(u64, u64)>,
    pub(crate) until: Option<Time>,
}

/// The verdict of a check, and the hits that were taken ahead.
type Decided = Result<(Verdict, u64), &'static str>;

/// Whether Redis takes what is written to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writes {
    Taken,
    /// As by a Redis replica, or for want of memory.
    Rejected,
}

/// What Redis should have, counted in Rust.
#[derive(Default)]
struct Model {
    states: BTreeMap<Vec<u8>, State>,
    /// The keys that the call under way has given a life, in ms.
    lives: BTreeMap<Vec<u8>, u64>,
    /// All writes of this call fail.
    is_read_only: bool,
}

/// The value at a key.
struct State {
    limit: Limit,
    /// Or why it is none, and is left alone.
    counter: Result<Counter, &'static str>,
    /// When it was written.
    written: Time,
    expires: Time,
    /// A value of another client, until it is replaced.
    found: Option<Found>,
}

/// Values of other clients.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Found {
    /// A text.
    Text(Vec<u8>),
    /// A list with an item that is no entry of a log.
    List(&'static str),
    /// A log of calls of one hit, 1 µs apart, the last 1 µs ago.
    Log(u64),
}

/// What a check finds at its key.
struct Loaded {
    counter: Counter,
    /// The key says so already.
    kept: bool,
    fresh: bool,
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
    pub(crate) fn put(
        &mut self,
        check: &Check,
        found: &Found,
        now: Time,
    ) -> Result<(), RedisError> {
        let key = redis_key(check, now);
        let mut call = redis::pipe();
        match found {
            Found::Text(text) => call.cmd("SET").arg(&key).arg(text),
            Found::List(item) => call.cmd("RPUSH").arg(&key).arg(*item),
            Found::Log(calls) => (1..=*calls).fold(call.cmd("RPUSH").arg(&key), |call, sum| {
                // Some of them after the sums have wrapped.
                call.arg(
                    match packed([
                        now.as_micros() - calls + sum - 1,
                        1,
                        (SUM_END - 3 + sum) % SUM_END,
                    ]) {
                        Value::BulkString(entry) => entry,
                        _ => unreachable!("it is a text"),
                    },
                )
            }),
        };
        let () = call
            .ignore()
            .cmd("PEXPIRE")
            .arg(&key)
            .arg(LIFE_MARK)
            .ignore()
            .query(&mut self.connection)?;
        self.model.states.insert(key, State::found(check.limit, found, now));
        Ok(())
    }

    /// Asks both sides in one call, and compares what they say and what they leave.
    ///
    /// # Errors
    /// In what they differ.
    pub(crate) fn ask(
        &mut self,
        asks: &[Ask],
        writes: Writes,
        now: Time,
    ) -> Result<Vec<Result<Verdict, &'static str>>, String> {
        let expired = self.model.expire(now)?;
        self.model.is_read_only = writes == Writes::Rejected;
        let full = self.model.full_logs(now);
        let mut keys: BTreeSet<Vec<u8>> =
            self.model.states.keys().chain(&expired).cloned().collect();
        let expected: Vec<Decided> =
            asks.iter().flat_map(|ask| self.model.decide(ask, self.jitter, now)).collect();
        keys.extend(
            asks.iter().flat_map(|ask| &ask.request.checks).map(|check| redis_key(check, now)),
        );

        let lines: Vec<(Mode, SmallVec<[EncodedCheck; 2]>)> =
            asks.iter().map(|ask| (ask.mode, self.lines(ask, now))).collect();
        let groups = lines.iter().map(|(mode, lines)| (*mode, lines.as_slice()));
        let mut call = redis::pipe();
        // In one transaction no time passes for expiry.
        call.atomic();
        for key in &expired {
            call.cmd("DEL").arg(key).ignore();
        }
        // Never connected to: it is a master again before the transaction ends.
        let follow = |master: [&str; 2]| redis::cmd("REPLICAOF").arg(&master).clone();
        if writes == Writes::Rejected {
            call.add_command(follow(["127.0.0.1", "1"])).ignore();
        }
        call.cmd("TIME").add_command(self.script.command(groups, Some(now), Form::Hash));
        if writes == Writes::Rejected {
            call.add_command(follow(["NO", "ONE"])).ignore();
        }
        for key in &keys {
            call.add_command(self.model.reading(key));
            call.cmd("PTTL").arg(key).cmd("PEXPIRE").arg(key).arg(LIFE_MARK);
        }
        call.cmd("TIME");
        let mut values = call
            .query::<Vec<Value>>(&mut self.connection)
            .map_err(|error| error.to_string())?
            .into_iter();

        let mut next = || values.next().ok_or("a reply is missing");
        let before = millis(&next()?)?;
        let replies =
            ScriptReply::read(next()?, expected.len()).map_err(|error| error.to_string())?;
        let found = keys
            .iter()
            .map(|key| Ok((key, next()?, next()?, next()?)))
            .collect::<Result<Vec<_>, &str>>()?;
        let passed = millis(&next()?)?.saturating_sub(before);

        if replies.now != now {
            return Err(format!("the time sent is {now:?}, the reply has {:?}", replies.now));
        }
        let checks = asks.iter().flat_map(|ask| &ask.request.checks);
        let lines = lines.iter().flat_map(|(_, lines)| lines);
        for (index, ((check, line), (told, expected))) in
            checks.zip(lines).zip(replies.replies.iter().zip(&expected)).enumerate()
        {
            let said = match told {
                Ok(reply) => Ok((reply.verdict(line, check, now), reply.granted(line))),
                Err(ReplyError::Rejected(text)) => Err(text.as_str()),
                Err(redirection) => return Err(format!("{redirection:?}")),
            };
            let same = match (said, expected) {
                (Ok(said), Ok(expected)) => said == *expected,
                (Err(said), Err(expected)) => said.contains(expected),
                _ => false,
            };
            let reports_full = told.as_ref().is_ok_and(|said| said.is_of_full_log(check));
            if reports_full != full.contains(&redis_key(check, now)) {
                return Err(format!(
                    "check {index}, {check:?} at {now:?}: it says of the log that is full: {reports_full}"
                ));
            }
            if !same {
                return Err(format!(
                    "check {index}, {check:?} at {now:?}:\n redis {said:?}\n  rust {expected:?}"
                ));
            }
            self.model.outlives(check, now)?;
        }
        for (key, value, life, _) in found {
            let (Value::Int(life), name) = (life, String::from_utf8_lossy(key)) else {
                return Err("no life".to_owned());
            };
            self.model
                .compare(key, &value, life, passed)
                .map_err(|error| format!("{name} at {now:?}: {error}"))?;
        }
        Ok(expected.into_iter().map(|decided| decided.map(|(verdict, _)| verdict)).collect())
    }

    fn lines(&self, ask: &Ask, now: Time) -> SmallVec<[EncodedCheck; 2]> {
        let checks = ask.request.checks.iter().zip(&ask.marks);
        checks
            .map(|(check, marks)| {
                let charge = Counter::charge(&check.limit, check.call());
                let mut line = EncodedCheck::new(check, charge, 0, now, ask.mode, self.jitter);
                if let Some((hits, parts)) = marks.ahead {
                    line.take_ahead(hits, parts);
                }
                if let Some(until) = marks.until {
                    line.until(until);
                }
                // `redis_batches.rs` tests the commands of windows.
                line.use_script();
                line
            })
            .collect()
    }
}

impl Model {
    /// Forgets what has expired, and gives its keys.
    fn expire(&mut self, now: Time) -> Result<Vec<Vec<u8>>, String> {
        self.lives.clear();
        let expired: Vec<_> = self
            .states
            .iter()
            .filter(|(_, state)| state.expires <= now)
            .map(|(key, _)| key.clone())
            .collect();
        for key in &expired {
            let State { counter, limit, .. } = &self.states[key];
            if counter.as_ref().is_ok_and(|counter| counter.spent_at(limit, now) > 0) {
                return Err(format!(
                    "{} expires before its time: {counter:?}",
                    String::from_utf8_lossy(key)
                ));
            }
            self.states.remove(key);
        }
        Ok(expired)
    }

    fn decide(&mut self, ask: &Ask, jitter: Span, now: Time) -> Vec<Decided> {
        let mut decided = Vec::new();
        for group in runs(&ask.request.checks, |check| check.group) {
            if let [check] = group {
                let marks = ask.marks[decided.len()];
                decided.push(self.decide_one(ask.mode, check, marks, jitter, now));
            } else {
                let verdicts = self.decide_atomically(group, jitter, now).into_iter();
                decided.extend(verdicts.map(|verdict| verdict.map(|verdict| (verdict, 0))));
            }
        }
        decided
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), &'static str> {
        if self.is_read_only {
            return Err(READ_ONLY);
        }
        self.states.remove(key);
        self.lives.remove(key);
        Ok(())
    }

    /// A dry run keeps nothing, so it does not matter whether Redis takes what is written.
    fn decide_one(
        &mut self,
        mode: Mode,
        check: &Check,
        marks: Marks,
        jitter: Span,
        now: Time,
    ) -> Decided {
        let key = redis_key(check, now);
        if mode == Mode::Reset {
            self.delete(&key)?;
        }
        let loaded = self.load(&key, &check.limit, now)?;
        let counter = loaded.counter.clone();
        let (after, verdict) = match (mode, check.hits) {
            // Only a refund is a grant.
            (Mode::Grant, Hits::Refund(_)) => counter.grant(&check.limit, now, check.call()),
            _ => counter.decide(&check.limit, now, check.call()),
        };
        let (after, granted) = take_ahead(after, check, marks, now);
        let is_written = loaded.differs_from(&after, &check.limit, now) || renews(check, &verdict);
        let is_dry = mode == Mode::DryRun || marks.until.is_some_and(|until| now >= until);
        if is_written && !is_dry {
            if self.is_read_only {
                return Err(READ_ONLY);
            }
            self.keep(key, &check.limit, loaded.fresh, after, jitter, now);
        }
        Ok((verdict, granted))
    }

    /// An error of one counter is an error of all.
    fn decide_atomically(
        &mut self,
        checks: &[Check],
        jitter: Span,
        now: Time,
    ) -> Vec<Result<Verdict, &'static str>> {
        let mut keys: Vec<(Vec<u8>, Limit)> = Vec::new();
        let slots = checks.iter().map(|check| {
            let key = redis_key(check, now);
            keys.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
                keys.push((key, check.limit));
                keys.len() - 1
            })
        });
        let slots: Vec<usize> = slots.collect();
        let loaded = match keys
            .iter()
            .map(|(key, limit)| self.load(key, limit, now))
            .collect::<Result<Vec<_>, _>>()
        {
            Ok(loaded) => loaded,
            Err(error) => return vec![Err(error); checks.len()],
        };
        let mut counters: Vec<Counter> =
            loaded.iter().map(|loaded| loaded.counter.clone()).collect();
        let changed = changed(checks, &slots, &counters, now);
        let verdicts = decide_all_or_nothing(checks, &slots, &mut counters, now);
        let is_written = keys.iter().zip(&loaded).zip(&counters).enumerate();
        let is_written = is_written.map(|(slot, (((_, limit), loaded), after))| {
            loaded.differs_from(after, limit, now) || changed.contains(&slot)
        });
        let is_written: Vec<bool> = is_written.collect();
        if self.is_read_only && is_written.contains(&true) {
            return vec![Err(READ_ONLY); checks.len()];
        }
        let slots = keys.into_iter().zip(loaded).zip(counters).zip(is_written);
        for ((((key, limit), loaded), after), _) in slots.filter(|(_, is_written)| *is_written) {
            self.keep(key, &limit, loaded.fresh, after, jitter, now);
        }
        verdicts.into_iter().map(Ok).collect()
    }

    fn load(&self, key: &[u8], limit: &Limit, now: Time) -> Result<Loaded, &'static str> {
        let Some(state) = self.states.get(key) else {
            return Ok(Loaded { counter: Counter::new(limit), kept: true, fresh: true });
        };
        let counter = state.counter.clone()?;
        let is_found = |found: &Found| matches!((&counter, found), (Counter::FixedWindow(_), Found::Text(text)) if *text != state.text());
        let kept = !state.found.as_ref().is_some_and(is_found)
            && !is_stale(&counter, limit, state.written, now);
        // A bucket from the future is one of now: the longer it is ago, the more has come back.
        let counter = if kept { counter } else { counter.decide(limit, now, Hits::Peek).0 };
        Ok(Loaded { counter, kept, fresh: false })
    }

    /// A state is only written when it is another one, so what time alone has changed keeps its
    /// date.
    fn keep(
        &mut self,
        key: Vec<u8>,
        limit: &Limit,
        fresh: bool,
        after: Counter,
        jitter: Span,
        now: Time,
    ) {
        let Some(life) = life(&after, limit, now, jitter) else {
            self.states.remove(&key);
            self.lives.remove(&key);
            return;
        };
        let life = Some(life).filter(|_| fresh || !matches!(after, Counter::FixedWindow(_)));
        let expires = match life {
            Some(life) => now.plus(Span::from_micros(life.saturating_mul(1_000))),
            None => self.states[&key].expires,
        };
        self.lives.extend(life.map(|life| (key.clone(), life)));
        self.states.insert(
            key,
            State { limit: *limit, counter: Ok(after), written: now, expires, found: None },
        );
    }

    /// The keys of logs with as many entries as there may be.
    fn full_logs(&self, now: Time) -> BTreeSet<Vec<u8>> {
        let is_full = |state: &State| {
            state
                .counter
                .clone()
                .is_ok_and(|counter| counter.decide(&state.limit, now, Hits::Peek).0.is_full())
        };
        self.states.iter().filter(|(_, state)| is_full(state)).map(|(key, _)| key.clone()).collect()
    }

    /// What reads the whole of what should be there.
    fn reading(&self, key: &[u8]) -> Cmd {
        let Some(state) = self.states.get(key) else {
            return redis::cmd("GET").arg(key).take();
        };
        match (&state.found, &state.counter) {
            (Some(Found::List(_)), _) => redis::cmd("LINDEX").arg(key).arg(0).take(),
            (Some(Found::Text(_)), _) | (None, Err(_)) => redis::cmd("GET").arg(key).take(),
            (_, Ok(counter)) => reading(counter, key),
            (Some(Found::Log(_)), Err(_)) => unreachable!("a log is a counter"),
        }
    }

    /// A counter exists as long as its verdict says that something is left.
    fn outlives(&self, check: &Check, now: Time) -> Result<(), String> {
        let Some(state) = self.states.get(&redis_key(check, now)) else {
            return Ok(());
        };
        let Ok(counter) = state.counter.clone() else {
            return Ok(());
        };
        let (counter, look) = counter.decide(&check.limit, now, Hits::Peek);
        if counter.is_new() {
            return Ok(());
        }
        let needed =
            now.plus(look.reset_after).min(state.written.plus(Span::from_micros(LIFE_MAX * 1_000)));
        // After a reload the old rate still decides how long it lives.
        if state.limit == check.limit && state.written <= now && state.expires < needed {
            return Err(format!(
                "{check:?} lives until {:?}, and something is left of it until {needed:?}",
                state.expires
            ));
        }
        Ok(())
    }

    /// What Redis has at a key, with a life of so many ms, of which `passed` may have passed
    /// already.
    fn compare(&self, key: &[u8], value: &Value, life: i64, passed: i64) -> Result<(), String> {
        let Some(state) = self.states.get(key) else {
            return if *value == Value::Nil {
                Ok(())
            } else {
                Err(format!("found {value:?}, expected none"))
            };
        };
        match (&state.found, &state.counter) {
            (Some(Found::Text(text)), _) if *value == Value::BulkString(text.clone()) => {}
            (Some(Found::List(item)), _)
                if *value == Value::BulkString(item.as_bytes().to_vec()) => {}
            (None | Some(Found::Log(_)), Ok(counter)) => {
                compare(counter, &state.limit, state.written, value)?;
            }
            (found, counter) => {
                return Err(format!("found {value:?}, expected {found:?}: {counter:?}"));
            }
        }
        let (least, most) = match self.lives.get(key) {
            Some(&given) => {
                // In 285 years a double loses count of µs.
                let lost = i64::from(given > EXACT_MAX / 1_000 && given < LIFE_MAX);
                (given.cast_signed() - passed - lost, given.cast_signed() + lost)
            }
            None => (LIFE_MARK - LIFE_MARK_SLACK, LIFE_MARK),
        };
        if (least..=most).contains(&life) {
            Ok(())
        } else {
            Err(format!("it lives for {life} ms instead of {most}"))
        }
    }
}

impl Loaded {
    /// Whether something else has to be written.
    fn differs_from(&self, after: &Counter, limit: &Limit, now: Time) -> bool {
        let as_of_now = |counter: &Counter| counter.clone().decide(limit, now, Hits::Peek).0;
        !self.kept || as_of_now(&self.counter) != as_of_now(after)
    }
}

/// Charges as many of the hits as fit into one part of what is left.
fn take_ahead(mut counter: Counter, check: &Check, marks: Marks, now: Time) -> (Counter, u64) {
    let Some((hits, parts)) = marks.ahead else {
        return (counter, 0);
    };
    let limit = &check.limit;
    let call = check.call();
    let charge = Counter::charge(limit, call);
    let price = match limit.algorithm {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => limit.period_ticks(),
        _ => 1,
    };
    let left = charge.full.saturating_sub(counter.spent_at(limit, now)) / price;
    let hits = hits.min(left / parts);
    let cost = (hits * price).cast_signed();
    counter.apply(limit, now, call, Charge { cost, ..charge });
    (counter, hits)
}

/// Which of the counters of an ask a check has changed that has more than a number, even if a later
/// one has changed it back.
fn changed(checks: &[Check], slots: &[usize], counters: &[Counter], now: Time) -> BTreeSet<usize> {
    let play = |does_something: &dyn Fn(usize) -> bool| {
        let (mut counters, mut changed, mut over) =
            (counters.to_vec(), BTreeSet::new(), Vec::new());
        for (index, (check, &slot)) in
            checks.iter().zip(slots).enumerate().filter(|(index, _)| does_something(*index))
        {
            let before = counters[slot].clone().decide(&check.limit, now, Hits::Peek).0;
            let (after, verdict) = counters[slot].clone().decide(&check.limit, now, check.call());
            let is_another = match (&before, &after) {
                // What is spent says all of it, but for hits of the window before that weigh
                // nothing.
                (Counter::FixedWindow(_) | Counter::Bucket(_), _) => false,
                (Counter::SlidingWindow(before), Counter::SlidingWindow(after)) => {
                    before.parts().2 != after.parts().2
                }
                _ => before != after || renews(check, &verdict),
            };
            if is_another {
                changed.insert(slot);
            }
            over.extend(verdict.over.then_some(index));
            counters[slot] = after;
        }
        (changed, over)
    };
    let (changed, over) = play(&|_| true);
    if !over.iter().any(|&index| checks[index].enforcing) {
        return changed;
    }
    // Of those that are over, those count that do not drop their hits: refunds, and hits on limits
    // that enforce.
    let counts = |index: usize| {
        let check = &checks[index];
        let is_refund = matches!(check.hits, Hits::Refund(_));
        let drops = Counter::charge(&check.limit, check.call()).drops;
        over.contains(&index) && !drops && (check.enforcing || is_refund)
    };
    play(&counts).0
}

/// Whether a holder has a new lease, even if it ends as the old one did.
fn renews(check: &Check, verdict: &Verdict) -> bool {
    check.limit.algorithm == Algorithm::Concurrency
        && matches!(check.hits, Hits::Add(_))
        && !verdict.over
}

impl State {
    /// The meaning of another client's value: what is no counter is an error, and a counter that says
    /// what none of ours could counts as the nearest that one could.
    fn found(limit: Limit, found: &Found, now: Time) -> Self {
        let state = |counter, written| Self {
            limit,
            counter,
            written,
            expires: Time::from_micros(u64::MAX),
            found: Some(found.clone()),
        };
        let untouched = Counter::new(&limit);
        let text = match (found, &untouched) {
            (
                Found::Text(text),
                Counter::FixedWindow(_)
                | Counter::Bucket(_)
                | Counter::SlidingWindow(_)
                | Counter::SubWindows(_),
            ) => text,
            (Found::List(_), Counter::SlidingLog(_)) => {
                return state(Err("ERR value is not a log"), now);
            }
            (Found::Log(calls), Counter::SlidingLog(_)) => {
                let times =
                    (1..=*calls).map(|back| Time::from_micros(now.as_micros() - back)).rev();
                // A limit that takes them all.
                let roomy =
                    Limit::new(&Terms::new(u32::MAX.into(), Unit::Year, Algorithm::SlidingLog))
                        .expect("a limit");
                let log = times.fold(untouched, |log, at| log.decide(&roomy, at, Hits::Add(1)).0);
                return state(Ok(log), now);
            }
            _ => {
                return state(
                    Err("WRONGTYPE Operation against a key holding the wrong kind of value"),
                    now,
                );
            }
        };
        match untouched {
            Counter::FixedWindow(_) => {
                let number = std::str::from_utf8(text)
                    .ok()
                    .filter(|text| !text.starts_with('+'))
                    .and_then(|text| text.parse::<i64>().ok());
                let used =
                    number.map(|number| u64::try_from(number).unwrap_or(0).min(EXACT_MAX - 1));
                let counter = used.map(|used| Counter::of(&limit, now, used));
                state(counter.ok_or("ERR value is not an integer or out of range"), now)
            }
            Counter::Bucket(_) => match unpacked(text) {
                Some([spent, at]) => {
                    let written = limit.tick.begins(at).min(Time::from_micros(EXACT_MAX));
                    state(Ok(Counter::of(&limit, written, spent.min(2 * EXACT_MAX))), written)
                }
                None => state(Err("ERR value is not a bucket"), now),
            },
            _ => state(Err("ERR value is not a sliding window"), now),
        }
    }

    /// How a window is written.
    fn text(&self) -> Vec<u8> {
        self.counter
            .as_ref()
            .map(|counter| counter.spent_at(&self.limit, self.written).to_string().into_bytes())
            .unwrap_or_default()
    }
}

/// What TIME replied, in whole ms.
fn millis(value: &Value) -> Result<i64, String> {
    let (seconds, micros): (i64, i64) =
        redis::from_redis_value(value.clone()).map_err(|error| error.to_string())?;
    Ok(seconds * 1_000 + micros / 1_000)
}
