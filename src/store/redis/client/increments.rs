//! Hits on windows, which INCR counts: those of a batch on one key are one command, and each check
//! gets the reply that a command of its own would have had.
//!
//! ```text
//!   before the command   reply - (a + b + c)
//!   check a              reply - (b + c)
//!   check b              reply - c
//!   check c              reply
//! ```
//!
//! No other client's command can come between them, so this is what Redis would have replied to one
//! after the other. Hits to take ahead come after all checks of the command. Those that exceed a
//! limit which drops hits are given back afterwards: meanwhile they only let others be over limit.

use bb8_redis::redis::{Pipeline, Value};
use hashbrown::HashTable;

use crate::limits::EXACT_MAX;
use crate::store::redis::client::decode::{CheckReply, ReplyError, spent_before};
use crate::store::redis::client::encode::{EncodedCheck, Mode};
use crate::store::redis::client::repair::{KeyState, Repair};
use crate::store::redis::client::script::{Form, Script};

/// The checks of a batch that are sent as commands.
#[derive(Debug)]
pub(crate) struct Increments<'b> {
    commands: Vec<Increment<'b>>,
    checks: Vec<Hit>,
    takes: Vec<Hit>,
    /// Indices of commands by the hashes of their counters; empty if there is one check.
    by_hash: HashTable<usize>,
}

/// A command: the hits of all checks on a key, and those to take ahead.
#[derive(Debug)]
struct Increment<'b> {
    /// The first of the checks.
    check: &'b EncodedCheck,
    hits: u64,
    /// The index of its reply.
    reply: usize,
}

/// The part of a check, or of the hits to take ahead after it, in a command.
#[derive(Debug)]
struct Hit {
    /// The index of the check in the batch.
    check: usize,
    command: usize,
    hits: u64,
    /// See [`Window::full`](crate::store::redis::client::encode::Window).
    full: u64,
}

/// The hits of a command so far.
struct Spent {
    /// Hits in use.
    spent: u64,
    /// Hits to give back.
    dropped: u64,
}

impl<'b> Increments<'b> {
    pub(crate) fn with_capacity(checks: usize) -> Self {
        let others = if checks > 1 { checks } else { 0 };
        Self {
            commands: Vec::with_capacity(checks),
            checks: Vec::with_capacity(checks),
            takes: Vec::new(),
            by_hash: HashTable::with_capacity(others),
        }
    }

    /// Adds the check with this index in the batch.
    pub(crate) fn push(&mut self, index: usize, check: &'b EncodedCheck) {
        let Some(window) = check.window else { return };
        let commands = &self.commands;
        let is_same = |&at: &usize| commands[at].check.is_same_key(check);
        let command = match self.by_hash.find(check.hash, is_same) {
            Some(&known) => known,
            None => self.push_command(check),
        };
        let hit = |hits| Hit { check: index, command, hits, full: window.full };
        let all = &mut self.commands[command].hits;
        *all += window.hits;
        self.checks.push(hit(window.hits));
        if let Some(ahead) = check.ahead() {
            *all += ahead.hits;
            self.takes.push(hit(ahead.hits));
        }
    }

    fn push_command(&mut self, check: &'b EncodedCheck) -> usize {
        let at = self.commands.len();
        self.commands.push(Increment { check, hits: 0, reply: 0 });
        if self.by_hash.capacity() > 0 {
            let commands = &self.commands;
            let hash = |&at: &usize| commands[at].check.hash;
            self.by_hash.insert_unique(check.hash, at, hash);
        }
        at
    }

    /// Adds the commands.
    pub(crate) fn add_to(&mut self, commands: &mut Pipeline) {
        for command in &mut self.commands {
            command.reply = command.check.increment(command.hits, commands);
        }
    }

    /// Reads the replies, and sets those of the checks. Returns what the keys need.
    pub(crate) fn read(
        &self,
        mut take: impl FnMut(usize) -> Value,
        replies: &mut [Result<CheckReply, ReplyError>],
    ) -> Vec<Repair> {
        let mut repairs = Vec::new();
        let mut spent: Vec<Result<Spent, ReplyError>> = self
            .commands
            .iter()
            .map(|Increment { check, hits, reply }| {
                let (before, state) = spent_before(take(*reply), *hits)?;
                let expire = check.reply_to_expire(*reply).map(&mut take);
                let is_set = expire.is_some_and(|reply| Repair::is_confirmed(&reply));
                if !(state == KeyState::New && is_set) {
                    repairs.extend(check.repair(state, *hits));
                }
                Ok(Spent { spent: before.min(EXACT_MAX - 1), dropped: 0 })
            })
            .collect();
        for hit in &self.checks {
            let spent = spent[hit.command].as_mut();
            let reply = spent.map(|spent| spent.charge(hit));
            replies[hit.check] = reply.map_err(|error| error.clone());
        }
        for hit in &self.takes {
            if let (Ok(spent), Ok(reply)) = (&mut spent[hit.command], &mut replies[hit.check]) {
                reply.add_granted(spent.take_ahead(hit));
            }
        }
        for (Increment { check, .. }, spent) in self.commands.iter().zip(&spent) {
            let dropped = spent.as_ref().map_or(0, |spent| spent.dropped);
            if dropped > 0 {
                repairs.push(give_back(check, dropped));
            }
        }
        repairs
    }
}

fn give_back(check: &EncodedCheck, hits: u64) -> Repair {
    let script = Script::serving();
    let refund = check.refund(hits);
    let refund = [(Mode::Independent, [&refund])].into_iter();
    Repair::GiveBack {
        refund: script.command(refund, None, Form::Hash),
        script: Some(script.text()),
    }
}

impl Spent {
    fn charge(&mut self, hit: &Hit) -> CheckReply {
        let after = (self.spent + hit.hits).min(EXACT_MAX - 1);
        if after > hit.full {
            self.dropped += hit.hits;
            return CheckReply::from(-1 - self.spent.cast_signed());
        }
        self.spent = after;
        CheckReply::from(after.cast_signed())
    }

    /// Returns the number of hits that fit.
    fn take_ahead(&mut self, hit: &Hit) -> u64 {
        let granted = hit.hits.min(hit.full.saturating_sub(self.spent));
        self.spent += granted;
        self.dropped += hit.hits - granted;
        granted
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use bb8_redis::redis::Arg;
    use proptest::prelude::*;

    use super::*;
    use crate::base::time::{Span, Time};
    use crate::limits::algorithm::Counter;
    use crate::limits::check::{Check, Hits, Key};
    use crate::limits::{Algorithm, Limit, OverLimitHits, Terms, Unit};

    const NOW: Time = Time::from_micros(1_700_000_000_123_456);

    /// A check of a batch.
    #[derive(Debug, Clone, Copy)]
    struct Part {
        key: usize,
        limit: u32,
        over_limit_hits: OverLimitHits,
        hits: u64,
        ahead: Option<u64>,
    }

    impl Part {
        fn check(self) -> Check {
            let limit = Limit::new(&Terms {
                over_limit_hits: Some(self.over_limit_hits),
                ..Terms::new(self.limit.into(), Unit::Hour, Algorithm::FixedWindow)
            });
            let hits = match self.hits {
                0 => Hits::Peek,
                hits => Hits::Add(hits),
            };
            let key = Key::from(format!("key{}:", self.key).as_str());
            let is_leased = self.over_limit_hits == OverLimitHits::Drop;
            Check {
                lease: is_leased.then(Default::default),
                ..Check::new(key, limit.expect("a limit"), hits)
            }
        }

        fn encoded(self) -> EncodedCheck {
            let check = self.check();
            let charge = Counter::charge(&check.limit, check.call());
            let hash = self.key as u64;
            let mode = Mode::Independent;
            let mut encoded = EncodedCheck::new(&check, charge, hash, NOW, mode, Span::ZERO);
            if let Some(hits) = self.ahead {
                encoded.take_ahead(hits, 60);
            }
            encoded
        }
    }

    fn parts() -> impl Strategy<Value = Part> {
        let leased = (0..12_u64, prop::option::of(1..12_u64));
        let leased = leased.prop_map(|(hits, ahead)| (OverLimitHits::Drop, hits, ahead));
        let counting = (1..12_u64).prop_map(|hits| (OverLimitHits::Count, hits, None));
        (0..2_usize, 8..12_u32, prop_oneof![4 => leased, 1 => counting]).prop_map(
            |(key, limit, (over_limit_hits, hits, ahead))| Part {
                key,
                limit,
                over_limit_hits,
                hits,
                ahead,
            },
        )
    }

    /// The hits of a give-back, and its key.
    fn given_back(repair: &Repair) -> Option<(Vec<u8>, u64)> {
        let Repair::GiveBack { refund, .. } = repair else {
            return None;
        };
        let arguments = refund.args_iter().map(|argument| match argument {
            Arg::Simple(bytes) => bytes.to_vec(),
            _ => Vec::new(),
        });
        let arguments: Vec<Vec<u8>> = arguments.collect();
        let cost = arguments.last()?[3..11].try_into().expect("a double");
        let hits = -f64::from_le_bytes(cost);
        Some((arguments[3].clone(), format!("{hits}").parse().ok()?))
    }

    proptest! {
        /// Checks as one after the other, then what is taken ahead, at most the limit; and what
        /// remains charged is what was admitted or granted.
        #[test]
        fn leased_windows_are_charged_as_by_the_algorithm(
            parts in prop::collection::vec(parts(), 1..8),
            before in prop::array::uniform2(0..14_i64),
        ) {
            let direct = |part: &Part| part.encoded().is_direct();
            let parts: Vec<Part> = parts.into_iter().filter(direct).collect();
            let encoded: Vec<EncodedCheck> = parts.iter().map(|part| part.encoded()).collect();
            let mut increments = Increments::with_capacity(parts.len());
            for (index, check) in encoded.iter().enumerate() {
                increments.push(index, check);
            }
            increments.add_to(&mut Pipeline::new());
            let mut stored: HashMap<Vec<u8>, i64> = HashMap::new();
            let mut values: HashMap<usize, Value> = HashMap::new();
            for Increment { check, hits, reply } in &increments.commands {
                let value = before[usize::try_from(check.hash)?] + hits.cast_signed();
                stored.insert(check.key.as_bytes().to_vec(), value);
                values.insert(*reply, Value::Int(value));
            }
            let missing = || Err(ReplyError::Again);
            let mut replies: Vec<_> = parts.iter().map(|_| missing()).collect();
            let take = |index| values.remove(&index).unwrap_or(Value::Nil);
            let repairs = increments.read(take, &mut replies);
            for (key, hits) in repairs.iter().filter_map(given_back) {
                *stored.get_mut(&key).expect("it was counted") -= hits.cast_signed();
            }

            let mut spent = before.map(i64::cast_unsigned);
            for (part, (encoded, reply)) in parts.iter().zip(encoded.iter().zip(&replies)) {
                let check = part.check();
                let spent = &mut spent[part.key];
                let counter = Counter::of(&check.limit, NOW, *spent);
                let (counter, verdict) = counter.decide(&check.limit, NOW, check.call());
                let reply = reply.as_ref().expect("Redis has replied");
                prop_assert_eq!(reply.verdict(encoded, &check, NOW), verdict);
                *spent = counter.spent_at(&check.limit, NOW);
            }
            for (part, (encoded, reply)) in parts.iter().zip(encoded.iter().zip(&replies)) {
                let spent = &mut spent[part.key];
                let left = u64::from(part.limit).saturating_sub(*spent);
                let granted = part.ahead.unwrap_or(0).min(left);
                let reply = reply.as_ref().expect("Redis has replied");
                prop_assert_eq!(reply.granted(encoded), granted);
                *spent += granted;
            }
            for check in &encoded {
                let spent = spent[usize::try_from(check.hash)?].cast_signed();
                prop_assert_eq!(stored[check.key.as_bytes()], spent);
            }
        }
    }

    #[test]
    fn hits_that_redis_rejects_are_not_given_back() {
        let part = Part {
            key: 0,
            limit: 10,
            over_limit_hits: OverLimitHits::Drop,
            hits: 5,
            ahead: Some(5),
        };
        let encoded = part.encoded();
        let mut increments = Increments::with_capacity(1);
        increments.push(0, &encoded);
        increments.add_to(&mut Pipeline::new());
        let mut replies = [Err(ReplyError::Again)];
        let repairs = increments.read(|_| Value::Nil, &mut replies);
        assert!(repairs.is_empty() && replies[0].is_err(), "{replies:?}");
    }
}
