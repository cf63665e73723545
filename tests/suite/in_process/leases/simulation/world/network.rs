//! Requests and replies: their delays and losses, and what they do at both ends.

use tollgate::base::time::{Span, Time};
use tollgate::limits::algorithm::Counter;
use tollgate::limits::algorithm::lease::{GiveBack, Settled, Take, TakeReply};
use tollgate::limits::check::{Effect, Hits};

use super::super::Mistake;
use super::super::laws::Kept;
use super::super::store::{Command, Op, Reply};
use super::{Event, Purpose, Request, World};

impl World<'_> {
    /// Sends a request. The key of a fixed window is that of the time `at`, or of the present.
    pub(super) fn send(
        &mut self,
        replica: usize,
        limit: usize,
        op: Op,
        at: Option<Time>,
        purpose: Purpose,
    ) -> usize {
        let id = self.requests.len();
        let network = &self.history.network;
        let mut is_hit = |rate: u64| rate > 0 && self.rng.u64(0..1_000) < rate;
        let is_unsent = is_hit(network.unsent);
        let is_lost = is_hit(network.lost);
        let is_unanswered = is_hit(network.unanswered);
        let arrives_in = self.delay();
        let returns_in = self.delay();
        let on = self.rng.usize(0..2);
        let connection = &mut self.replicas[replica].connections[on];
        let arrives = self.now.plus(arrives_in).max(connection.to_store);
        let returns = arrives.plus(returns_in).max(connection.from_store);
        let timeout = self.now.plus(network.timeout);
        let is_out = |at| {
            let outage = network.outage;
            outage.is_some_and(|(from, until)| from <= at && at < until)
        };
        let failure = if is_unsent {
            Some(Effect::None)
        } else {
            let fails = is_lost || is_unanswered || is_out(arrives) || is_out(returns);
            (fails || returns > timeout).then_some(Effect::Unknown)
        };
        if !(is_unsent || is_lost || is_out(arrives)) {
            connection.to_store = arrives;
            self.schedule(arrives, Event::Arrives(id));
        }
        let ends = match failure {
            None => {
                self.replicas[replica].connections[on].from_store = returns;
                returns
            }
            Some(Effect::Unknown) => timeout,
            Some(Effect::None) => self.now,
        };
        self.schedule(ends, Event::Ends(id));
        self.note(|| format!("  {id} {replica} sends {op:?}, fails: {failure:?}"));
        let command = Command {
            limit: self.history.limits[limit],
            op,
            at: at.unwrap_or(self.server_time(replica)),
        };
        self.requests.push(Request {
            replica,
            generation: self.replicas[replica].generation,
            limit,
            command,
            purpose,
            sent_at: self.now,
            failure,
            has_ended: false,
            reply: None,
        });
        id
    }

    fn delay(&mut self) -> Span {
        let usual = self.history.network.delay * self.rng.u64(50..200) / 100;
        let times = if self.rng.u8(..) < 4 { 10 } else { 1 };
        Span::from_micros(usual * times)
    }

    /// The store runs a command.
    pub(super) fn arrives(&mut self, id: usize) -> Kept {
        let request = &mut self.requests[id];
        let command = request.command;
        let limit = &command.limit;
        let reply = self.store.run(&command, self.now);
        let replica = &mut self.replicas[request.replica];
        let window = limit.usable(reply.charged_at).0;
        let ledger = (replica.generation == request.generation)
            .then(|| replica.ledger(request.limit, window));
        self.admitted.refund(limit, reply.charged_at, reply.refunded);
        match command.op {
            Op::Call(Hits::Add(hits)) if !reply.over => {
                self.admitted.admit(limit, reply.charged_at, hits, self.now)?;
            }
            Op::Call(_) => {}
            Op::Take { .. } => {
                self.taken += reply.granted;
                self.admitted.charge(limit, reply.charged_at);
                if let Some(ledger) = ledger {
                    ledger.granted += reply.granted;
                    if request.failure.is_some() {
                        ledger.lost += reply.granted;
                    }
                    replica.check_bound(request.limit, window, limit, self.history.replicas)?;
                }
            }
            Op::GiveBack { hits, .. } => {
                if let Some(ledger) = ledger.filter(|_| reply.is_applied) {
                    ledger.given_back += hits;
                    if request.has_ended && matches!(request.purpose, Purpose::GiveBack(_)) {
                        ledger.lost -= hits;
                    }
                    ledger.check()?;
                }
            }
        }
        let text =
            format!("over {}, granted {}, applied {}", reply.over, reply.granted, reply.is_applied);
        request.reply = Some(reply);
        self.note(|| format!("  {id} arrives: {text}"));
        Ok(())
    }

    /// The replica has a reply, or waits no longer.
    pub(super) fn ends(&mut self, id: usize) -> Kept {
        let request = &mut self.requests[id];
        request.has_ended = true;
        let index = request.replica;
        if request.generation != self.replicas[index].generation {
            return Ok(());
        }
        let reply = match request.failure {
            None => Ok(request.reply.clone().expect("it has arrived before")),
            Some(effect) => Err(effect),
        };
        let purpose = match &request.purpose {
            // Kept for when it arrives after all.
            Purpose::GiveBack(give_back) => Purpose::GiveBack(*give_back),
            _ => std::mem::replace(&mut request.purpose, Purpose::None),
        };
        self.note(|| format!("  {id} ends"));
        match purpose {
            Purpose::Call(hits, asked) => {
                let (settled, counter) = match reply {
                    Ok(reply) if reply.over => (Settled::Unused, Some(reply.counter)),
                    Ok(reply) => (Settled::Used, Some(reply.counter)),
                    Err(_) => (Settled::Failed, None),
                };
                let limit = self.requests[id].limit;
                let now = self.core_time(index);
                let replica = &mut self.replicas[index];
                if let Some((counter, entry)) = counter.zip(replica.entry(limit)) {
                    entry.with(|known| known.observe(counter, now))?;
                }
                if settled == Settled::Used {
                    replica.admitted += hits;
                }
                if let Some(asked) = asked {
                    self.settle(id, asked, settled)?;
                }
            }
            Purpose::Other(asked, settled) => self.settle(id, asked, settled)?,
            Purpose::Take(take) => self.take_ends(id, take, reply)?,
            Purpose::GiveBack(give_back) => self.give_back_ends(id, give_back, reply)?,
            Purpose::None => {}
        }
        self.keep_sweeping(index);
        Ok(())
    }

    /// The caller does not wait for the reply.
    pub(super) fn leaves(&mut self, id: usize) -> Kept {
        let request = &mut self.requests[id];
        let is_here = request.generation == self.replicas[request.replica].generation;
        if let Purpose::Call(_, asked) = &mut request.purpose
            && let Some(asked) = asked.take()
            && is_here
        {
            self.settle(id, asked, Settled::Used)?;
        }
        Ok(())
    }

    fn settle(
        &mut self,
        id: usize,
        asked: tollgate::limits::algorithm::lease::Asked,
        settled: Settled,
    ) -> Kept {
        let Request { replica: index, limit, command, .. } = self.requests[id];
        let now = self.core_time(index);
        let reserved = asked.reserved();
        if let Some(entry) = self.replicas[index].entry(limit) {
            entry.with(|counter| counter.settle(asked, settled, now))?;
        }
        match settled {
            Settled::Used => self.use_hits(index, limit, command.at, reserved),
            _ => Ok(()),
        }
    }

    fn take_ends(&mut self, id: usize, take: Take, reply: Result<Reply, Effect>) -> Kept {
        let request = &self.requests[id];
        let index = request.replica;
        let limit = request.limit;
        let command = request.command;
        let sent_at = request.sent_at;
        let now = self.core_time(index);
        let reply = match (reply, self.mistake) {
            (Err(Effect::Unknown), Some(Mistake::UseUnknownTake)) => Ok(Reply {
                over: false,
                granted: take.hits,
                refunded: 0,
                is_applied: true,
                counter: Counter::new(&command.limit),
                charged_at: command.at,
            }),
            (reply, _) => reply,
        };
        let Some(entry) = self.replicas[index].entry(limit) else {
            return Ok(());
        };
        match reply {
            Err(effect) => entry.with(|counter| counter.take_failed(take, effect, now)),
            Ok(reply) => {
                let reply = TakeReply {
                    granted: reply.granted,
                    charged_at: reply.charged_at,
                    counter: reply.counter,
                    round_trip: self.now.since(sent_at),
                };
                entry.with(|counter| counter.taken(take, reply, now))
            }
        }
    }

    fn give_back_ends(
        &mut self,
        id: usize,
        give_back: GiveBack,
        reply: Result<Reply, Effect>,
    ) -> Kept {
        let request = &self.requests[id];
        let index = request.replica;
        let limit = request.limit;
        let command = request.command;
        let was_applied = request.reply.as_ref().is_some_and(|reply| reply.is_applied);
        let now = self.core_time(index);
        let outcome = match reply {
            Ok(reply) if reply.is_applied => Ok(()),
            Ok(_) => Err(Effect::None),
            Err(effect) => Err(effect),
        };
        let replica = &mut self.replicas[index];
        if let Some(entry) = replica.entry(limit) {
            entry.with(|counter| counter.given_back(give_back, outcome, now))?;
        }
        if outcome == Err(Effect::Unknown) {
            if !was_applied {
                let ledger = replica.ledger(limit, give_back.window());
                ledger.lost += give_back.hits();
                ledger.check()?;
            }
            if self.mistake == Some(Mistake::GiveBackAgain) {
                self.send(index, limit, command.op, Some(command.at), Purpose::None);
            }
        }
        Ok(())
    }
}
