//! The store of the simulation: what Redis does to one counter, with the algorithms of the project.

use tollgate::base::time::Time;
use tollgate::limits::algorithm::Counter;
use tollgate::limits::algorithm::lease::PART_OF_REMAINING;
use tollgate::limits::check::{Call, Hits};
use tollgate::limits::{Algorithm, Limit};

use super::Mistake;

/// A command.
#[derive(Debug, Clone, Copy)]
pub(super) struct Command {
    pub(super) limit: Limit,
    pub(super) op: Op,
    /// The time whose window a fixed window's key names, by the clock of the sender.
    pub(super) at: Time,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Op {
    /// A call: consume or refund.
    Call(Hits),
    /// Hits to take ahead.
    Take { hits: u64, replicas: u64 },
    /// Unused hits to refund, and the end of their window.
    GiveBack { hits: u64, until: Time },
}

#[derive(Debug, Clone)]
pub(super) struct Reply {
    pub(super) over: bool,
    /// Hits that a take has charged.
    pub(super) granted: u64,
    /// Units that a refund gave back, and those by which a lower burst has cut a bucket's debt.
    pub(super) refunded: u64,
    /// Whether the command was applied: a give-back is not after the end of its window.
    pub(super) is_applied: bool,
    pub(super) counter: Counter,
    /// The time whose window was charged.
    pub(super) charged_at: Time,
}

/// A counter, or one for each fixed window.
#[derive(Debug)]
pub(super) struct Store {
    counters: Vec<(Time, Counter)>,
    /// A mistake: it grants what is wanted.
    grants_above_limit: bool,
    /// The greatest of all limits.
    most: Limit,
}

impl Store {
    pub(super) fn new(most: Limit, mistake: Option<Mistake>) -> Self {
        Self {
            most,
            counters: Vec::new(),
            grants_above_limit: mistake == Some(Mistake::GrantAboveLimit),
        }
    }

    pub(super) fn run(&mut self, command: &Command, now: Time) -> Reply {
        let Command { limit, op, at } = *command;
        let charged_at = match limit.algorithm {
            Algorithm::FixedWindow => at,
            _ => now,
        };
        let grants_above_limit = self.grants_above_limit;
        let most = self.most;
        let counter = self.counter(&limit, charged_at);
        let before = counter.spent_at(&limit, charged_at);
        let mut reply = Reply {
            over: false,
            granted: 0,
            refunded: if limit.algorithm.is_bucket() {
                counter.spent_at(&most, now).saturating_sub(before)
            } else {
                0
            },
            is_applied: true,
            counter: Counter::default(),
            charged_at,
        };
        let refund = match op {
            Op::Call(hits) => {
                reply.over = decide(counter, &limit, charged_at, hits);
                hits
            }
            Op::Take { hits, replicas } => {
                let room = if grants_above_limit { hits } else { room(&limit, before, replicas) };
                reply.granted = hits.min(room);
                let charge = Counter::charge(&limit, Hits::Add(reply.granted));
                counter.apply(&limit, charged_at, Call::PEEK, charge);
                Hits::Peek
            }
            Op::GiveBack { hits, until } => {
                reply.is_applied = now < until;
                if reply.is_applied {
                    decide(counter, &limit, charged_at, Hits::Refund(hits));
                }
                Hits::Peek
            }
        };
        if let Hits::Refund(_) = refund {
            reply.refunded += before - counter.spent_at(&limit, charged_at);
        }
        reply.counter.clone_from(counter);
        reply
    }

    /// Deletes the counter of this time. Returns the units that were spent.
    pub(super) fn reset(&mut self, limit: &Limit, now: Time) -> u64 {
        let most = self.most;
        let counter = self.counter(limit, now);
        // A lower burst would hide a part.
        let spent = counter.spent_at(&most, now);
        *counter = Counter::new(limit);
        spent
    }

    fn counter(&mut self, limit: &Limit, at: Time) -> &mut Counter {
        let key = match limit.algorithm {
            Algorithm::FixedWindow => limit.window(at).start,
            _ => Time::default(),
        };
        let known = self.counters.iter().rposition(|(start, _)| *start == key);
        let index = known.unwrap_or_else(|| {
            self.counters.push((key, Counter::new(limit)));
            self.counters.len() - 1
        });
        &mut self.counters[index].1
    }
}

/// Decides a call, and returns whether it was over limit.
pub(super) fn decide(counter: &mut Counter, limit: &Limit, now: Time, hits: Hits) -> bool {
    let (after, verdict) = std::mem::take(counter).decide(limit, now, hits);
    *counter = after;
    verdict.over
}

/// The most hits of a take: of a fixed window what is left, else a part of it.
fn room(limit: &Limit, spent: u64, replicas: u64) -> u64 {
    let one = Counter::charge(limit, Hits::Add(1));
    let left = one.full.saturating_sub(spent) / one.wanted();
    match limit.algorithm {
        Algorithm::FixedWindow => left,
        _ => left / (PART_OF_REMAINING * replicas),
    }
}
