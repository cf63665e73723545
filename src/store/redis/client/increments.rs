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
//! after the other.

use hashbrown::HashTable;
use redis::{Pipeline, Value};

use crate::store::redis::client::decode::{CheckReply, ReplyError, spent_before};
use crate::store::redis::client::encode::EncodedCheck;
use crate::store::redis::client::repair::{KeyState, Repair};

/// The checks of a batch that are sent as commands.
#[derive(Debug)]
pub(crate) struct Increments<'b> {
    commands: Vec<Increment<'b>>,
    checks: Vec<Hit>,
    /// Indices of commands by the hashes of their counters; empty if there is one check.
    by_hash: HashTable<usize>,
}

/// A command: the hits of all checks on a key.
#[derive(Debug)]
struct Increment<'b> {
    /// The first of the checks.
    check: &'b EncodedCheck,
    hits: u64,
    /// The index of its reply.
    reply: usize,
}

/// The part of a check in a command.
#[derive(Debug)]
struct Hit {
    /// The index of the check in the batch.
    check: usize,
    command: usize,
    /// Hits of the command up to and including this check.
    hits: u64,
}

impl<'b> Increments<'b> {
    pub(crate) fn with_capacity(checks: usize) -> Self {
        let others = if checks > 1 { checks } else { 0 };
        Self {
            commands: Vec::with_capacity(checks),
            checks: Vec::with_capacity(checks),
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
        let all = &mut self.commands[command].hits;
        *all += window.hits;
        self.checks.push(Hit {
            check: index,
            command,
            hits: *all,
        });
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

    /// Reads the replies: that of each check is passed to `set` with its index in the batch.
    /// Returns what the keys need.
    pub(crate) fn read(
        &self,
        mut take: impl FnMut(usize) -> Value,
        mut set: impl FnMut(usize, Result<CheckReply, ReplyError>),
    ) -> Vec<Repair> {
        let mut repairs = Vec::new();
        let before: Vec<_> = self
            .commands
            .iter()
            .map(|Increment { check, hits, reply }| {
                let (before, state) = spent_before(take(*reply), *hits)?;
                let expire = check.reply_to_expire(*reply).map(&mut take);
                let is_set = expire.is_some_and(|reply| Repair::is_confirmed(&reply));
                if !(state == KeyState::New && is_set) {
                    repairs.extend(check.repair(state, *hits));
                }
                Ok(before)
            })
            .collect();
        for hit in &self.checks {
            let before = before[hit.command].clone();
            set(
                hit.check,
                before.map(|before| CheckReply::of_window(before, hit.hits)),
            );
        }
        repairs
    }
}
