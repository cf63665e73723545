//! Plays a history: replicas, the network and the store, in the order of time.

mod network;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU32;

use fastrand::Rng;
use tollgate::base::time::{Span, Time};
use tollgate::limits::algorithm::lease::{Answer, Asked, GiveBack, Settled, Take};
use tollgate::limits::check::{Effect, Hits};
use tollgate::limits::{LeaseTerms, Limit};

use super::Mistake;
use super::history::{Act, Caller, History, Step};
use super::laws::{Admitted, Broken, Kept, greatest};
use super::replica::Replica;
use super::store::{Command, Op, Reply, Store};

/// How often leases are swept.
const SWEEP_INTERVAL: u64 = 100_000;
/// The longest that an announcement takes, in microseconds.
const ANNOUNCED_WITHIN: u64 = 1_000_000;
/// Two days: nothing is in flight for as long.
const ENDS_WITHIN: Span = Span::from_secs(172_800);

pub(super) struct World<'h> {
    history: &'h History,
    mistake: Option<Mistake>,
    rng: Rng,
    now: Time,
    queue: BinaryHeap<Reverse<(Time, usize, Event)>>,
    scheduled: usize,
    requests: Vec<Request>,
    store: Store,
    pub(super) replicas: Vec<Replica>,
    pub(super) admitted: Admitted,
    /// Hits taken ahead.
    pub(super) taken: u64,
    /// What happened, if it is for a reader.
    pub(super) trace: Option<Vec<String>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A request is at the store.
    Arrives(usize),
    /// The reply of a request is at the replica, or will never be.
    Ends(usize),
    /// The caller has disconnected.
    Leaves(usize),
    Sweep(usize, u32),
    /// The counter was deleted at this time.
    Announced(usize, Time),
}

/// What a replica waits for.
#[derive(Debug)]
struct Request {
    replica: usize,
    generation: u32,
    limit: usize,
    command: Command,
    purpose: Purpose,
    sent_at: Time,
    /// Why there will be no reply.
    failure: Option<Effect>,
    has_ended: bool,
    reply: Option<Reply>,
}

#[derive(Debug)]
enum Purpose {
    /// All hits of the call, and those that are reserved; none if it was not leased.
    Call(u64, Option<Asked>),
    /// All hits are reserved, and another check decides.
    Other(Asked, Settled),
    Take(Take),
    GiveBack(GiveBack),
    /// No replica waits for it.
    None,
}

impl<'h> World<'h> {
    pub(super) fn new(history: &'h History, mistake: Option<Mistake>) -> Self {
        Self {
            history,
            mistake,
            rng: Rng::with_seed(history.seed),
            now: history.steps.first().map_or(Time::default(), |step| step.at),
            queue: BinaryHeap::new(),
            scheduled: 0,
            requests: Vec::new(),
            store: Store::new(greatest(&history.limits), mistake),
            replicas: (0..history.replicas).map(|_| Replica::default()).collect(),
            admitted: Admitted::new(&history.limits),
            taken: 0,
            trace: None,
        }
    }

    /// Plays everything, until nothing is held or in flight.
    pub(super) fn play(&mut self) -> Kept {
        let history = self.history;
        for step in &history.steps {
            self.play_events(step.at)?;
            self.now = step.at;
            self.note(|| format!("{step:?}"));
            self.step(step)?;
        }
        let last = history.steps.last().map_or(Time::default(), |step| step.at);
        self.play_events(last.plus(ENDS_WITHIN))?;
        let held: u64 = self
            .replicas
            .iter_mut()
            .map(|replica| {
                let entries = replica.entries();
                entries.map(|(_, entry)| entry.counter.held()).sum::<u64>()
            })
            .sum();
        if held > 0 || !self.queue.is_empty() {
            return Err(Broken(format!("end: {held} hits are held for ever")));
        }
        Ok(())
    }

    fn play_events(&mut self, until: Time) -> Kept {
        while let Some(&Reverse((at, _, event))) = self.queue.peek()
            && at <= until
        {
            self.queue.pop();
            self.now = at;
            match event {
                Event::Arrives(id) => self.arrives(id)?,
                Event::Ends(id) => self.ends(id)?,
                Event::Leaves(id) => self.leaves(id)?,
                Event::Sweep(replica, generation) => self.sweep(replica, generation)?,
                Event::Announced(replica, at) => self.announced(replica, at)?,
            }
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Kept {
        let index = step.replica;
        let replica = &mut self.replicas[index];
        match step.act {
            Act::Call(hits, caller) => self.call(index, hits, caller)?,
            Act::Peek => {
                let limit = replica.limit;
                let now = self.server_time(index);
                if let Some(entry) = self.replicas[index].entry(limit) {
                    entry.with(|counter| counter.peek(now))?;
                }
            }
            Act::Refund(hits) => {
                let limit = replica.limit;
                if let Some(entry) = replica.entry(limit) {
                    entry.counter.end_hold();
                }
                self.send(index, limit, Op::Call(Hits::Refund(hits)), None, Purpose::None);
            }
            Act::Crash => replica.crash(),
            Act::Clock(error) => replica.set_clock(error),
            Act::Reload(limit) => replica.limit = limit,
            Act::Reset => {
                let limit = self.history.limits[replica.limit];
                let spent = self.store.reset(&limit, self.now);
                self.admitted.refund(&limit, self.now, spent);
                for replica in 0..self.replicas.len() {
                    let later = Span::from_micros(self.rng.u64(0..ANNOUNCED_WITHIN));
                    let told = Event::Announced(replica, self.now);
                    self.schedule(self.now.plus(later), told);
                }
            }
        }
        Ok(())
    }

    fn call(&mut self, index: usize, hits: u64, caller: Caller) -> Kept {
        let now = self.server_time(index);
        let core_now = self.core_time(index);
        let replicas = u32::try_from(self.replicas.len()).ok().and_then(NonZeroU32::new);
        let replicas = replicas.expect("there are some");
        let replica = &mut self.replicas[index];
        let limit = replica.limit;
        let terms = self.history.limits[limit];
        replica.offered += hits;
        replica.demand.add(hits, core_now, span(&terms));
        let op = Op::Call(Hits::Add(hits));
        let Some(entry) = replica.entry(limit) else {
            replica.warm_up(limit, &terms, hits, core_now);
            self.send(index, limit, op, None, Purpose::Call(hits, None));
            return Ok(());
        };
        let answer = entry.with(|counter| counter.reserve(hits, core_now))?;
        let take = entry.counter.wanted_take(replicas, core_now);
        match answer {
            Answer::Over(_) => {}
            Answer::Reserved(asked) if matches!(caller, Caller::Waits | Caller::Leaves(_)) => {
                entry.with(|counter| counter.settle(asked, Settled::Used, core_now))?;
                replica.admitted += hits;
                self.use_hits(index, limit, now, hits)?;
            }
            Answer::Reserved(asked) | Answer::Ask(asked) if matches!(caller, Caller::Vetoes) => {
                let op = Op::Call(Hits::Peek);
                self.send(index, limit, op, None, Purpose::Other(asked, Settled::Unused));
            }
            Answer::Reserved(asked) => {
                let op = Op::Call(Hits::Peek);
                self.send(index, limit, op, None, Purpose::Other(asked, Settled::Used));
            }
            Answer::Ask(asked) => {
                let op = Op::Call(Hits::Add(hits - asked.reserved()));
                let id = self.send(index, limit, op, None, Purpose::Call(hits, Some(asked)));
                if let Caller::Leaves(after) = caller {
                    let at = self.now.plus(Span::from_micros(after.into()));
                    self.schedule(at, Event::Leaves(id));
                }
            }
        }
        if let Some(take) = take {
            self.take(index, limit, take);
        }
        self.keep_sweeping(index);
        Ok(())
    }

    fn take(&mut self, index: usize, limit: usize, take: Take) {
        let hits = match self.mistake {
            Some(Mistake::LargeTakes) => take.hits * 8,
            _ => take.hits,
        };
        let replicas = self.replicas.len() as u64;
        let op = Op::Take { hits, replicas };
        self.send(index, limit, op, take.next_window, Purpose::Take(take));
    }

    fn sweep(&mut self, index: usize, generation: u32) -> Kept {
        let core_now = self.core_time(index);
        let replica = &mut self.replicas[index];
        if replica.generation != generation {
            return Ok(());
        }
        replica.is_sweeping = false;
        let mut due = Vec::new();
        for (limit, entry) in replica.entries() {
            let lifetime = entry.counter.lifetime();
            let of_entry = entry.with(|counter| counter.give_back(lifetime, core_now))?;
            due.extend(of_entry.into_iter().map(|due| (limit, due)));
        }
        replica.remove_idle(core_now);
        for (limit, give_back) in due {
            let op = Op::GiveBack { hits: give_back.hits(), until: give_back.until() };
            let at = Some(give_back.window());
            self.send(index, limit, op, at, Purpose::GiveBack(give_back));
        }
        self.keep_sweeping(index);
        Ok(())
    }

    /// Sweeps again, if something is held.
    fn keep_sweeping(&mut self, index: usize) {
        let replica = &mut self.replicas[index];
        let held = replica.entries().filter(|(_, entry)| entry.counter.held() > 0);
        let Some(lifetime) = held.map(|(_, entry)| entry.counter.lifetime()).min() else {
            return;
        };
        if !std::mem::replace(&mut replica.is_sweeping, true) {
            let sweep = Event::Sweep(index, replica.generation);
            let later = Span::from_micros(SWEEP_INTERVAL.max(lifetime.as_micros() / 8));
            self.schedule(self.now.plus(later), sweep);
        }
    }

    fn announced(&mut self, index: usize, deleted_at: Time) -> Kept {
        let now = self.server_time(index);
        let limits = &self.history.limits;
        let replica = &mut self.replicas[index];
        let mut dropped = Vec::new();
        for (limit, entry) in replica.entries() {
            // Hits of a window that is over are stranded before, and in another ledger.
            entry.with(|counter| counter.peek(now))?;
            dropped.push((limit, entry.drop_taken_before(deleted_at)?));
        }
        for (limit, hits) in dropped {
            let ledger = replica.ledger(limit, limits[limit].usable(now).0);
            ledger.lost += hits.min(ledger.outstanding());
        }
        Ok(())
    }

    /// Hits of a lease were handed out at this time of the server.
    fn use_hits(&mut self, index: usize, limit: usize, at: Time, hits: u64) -> Kept {
        let terms = &self.history.limits[limit];
        let ledger = self.replicas[index].ledger(limit, terms.usable(at).0);
        ledger.used += hits;
        ledger.check()?;
        self.admitted.admit(terms, at, hits, self.now)
    }

    /// The store's clock, as a replica estimates it.
    fn server_time(&self, index: usize) -> Time {
        let error = self.replicas[index].clock_error;
        Time::from_micros(self.now.as_micros().saturating_add_signed(error))
    }

    /// The time that the leases of a replica are told.
    fn core_time(&self, index: usize) -> Time {
        let now = self.server_time(index).as_micros();
        let late = match self.mistake {
            Some(Mistake::OutliveWindow) => self.history.limits[0].sub_window().as_micros() / 4,
            _ => 0,
        };
        Time::from_micros(now - late)
    }

    fn schedule(&mut self, at: Time, event: Event) {
        self.scheduled += 1;
        self.queue.push(Reverse((at, self.scheduled, event)));
    }

    fn note(&mut self, what: impl FnOnce() -> String) {
        let now = self.now.as_micros();
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{now} {}", what()));
        }
    }
}

/// The time whose demand one take covers.
fn span(limit: &Limit) -> Span {
    let terms = LeaseTerms::new(limit, None).expect("it can have leases");
    terms.span()
}
