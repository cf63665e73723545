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

use hashbrown::HashTable;
use redis::{Pipeline, Value};

use crate::limit::EXACT_MAX;
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
        let hit = |hits| Hit {
            check: index,
            command,
            hits,
            full: window.full,
        };
        let all = &mut self.commands[command].hits;
        *all += window.hits;
        self.checks.push(hit(window.hits));
        if let Some(ahead) = check.ahead {
            *all += ahead.hits;
            self.takes.push(hit(ahead.hits));
        }
    }

    fn push_command(&mut self, check: &'b EncodedCheck) -> usize {
        let at = self.commands.len();
        self.commands.push(Increment {
            check,
            hits: 0,
            reply: 0,
        });
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
                Ok(Spent {
                    spent: before.min(EXACT_MAX - 1),
                    dropped: 0,
                })
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
    let (script, refund) = (Script::serving(), check.refund(hits));
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
