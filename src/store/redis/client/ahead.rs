//! Decides checks without a call to Redis: those of counters that are known to be over limit, and
//! those for which hits were taken ahead.
//!
//! ```text
//!   checks -> over-limit cache, leases -> all decided: done
//!                     |                -> the rest: sent, reserved hits settled by the replies
//!                     +-> take: a request of its own, which no caller waits for
//! ```

use std::num::NonZeroU32;

use smallvec::SmallVec;

use crate::base::time::Time;
use crate::limits::algorithm::Counter;
use crate::limits::algorithm::lease::{Asked, PART_OF_REMAINING, Settled, Take, TakeReply};
use crate::limits::check::{
    Blocked, Check, CheckError, Decisions, Effect, Hits, Source, StoreError, Verdict,
};
use crate::store::redis::client::decode::CheckReply;
use crate::store::redis::client::encode::{EncodedCheck, Mode};
use crate::store::redis::client::waiting::NodeReply;
use crate::store::redis::client::{RedisClient, Request};
use crate::store::redis::leases::{Ahead, DueGiveBack};
use crate::store::redis::shared::Redis;

/// A request, of which some checks may be decided or reserved here.
pub(super) struct Prepared<'r> {
    shared: &'r Redis,
    request: Request<'r>,
    /// For each check.
    checks: SmallVec<[Ahead; 2]>,
}

impl RedisClient {
    /// Decides and reserves what can be without a call. `None` if that is nothing.
    pub(super) fn prepare<'r>(&'r self, request: &Request<'r>) -> Option<Prepared<'r>> {
        let shared = &*self.shared;
        let has_leases = request.checks.iter().any(|check| check.lease.is_some());
        if !has_leases && shared.over_limit_cache.is_none() {
            return None;
        }
        let replicas = has_leases.then(|| shared.membership.replicas()).flatten();
        // Only Redis knows whether a check is over limit that is charged all the same.
        let settles = |check: &Check| check.group != 0 && check.settles && check.enforcing;
        let has_settlement = request.checks.iter().any(settles);
        let ahead = |check: &Check| self.ahead(request, check, replicas, has_settlement);
        let mut prepared = Prepared {
            shared,
            request: *request,
            checks: request.checks.iter().map(ahead).collect(),
        };
        let is_local = prepared.checks.iter().any(|ahead| match ahead {
            Ahead::Exact => false,
            Ahead::Ask(asked) => !asked.is_empty(),
            Ahead::Decided(_) | Ahead::Reserved(_) => true,
        });
        if !is_local {
            return None;
        }
        let is_complete = prepared.is_complete();
        let blocked = prepared.blocked();
        prepared.settle_reserved(|check| {
            if blocked.has(check) {
                Some(Settled::Unused)
            } else {
                is_complete.then_some(Settled::Used)
            }
        });
        Some(prepared)
    }

    fn ahead(
        &self,
        request: &Request<'_>,
        check: &Check,
        replicas: Option<NonZeroU32>,
        has_settlement: bool,
    ) -> Ahead {
        let shared = &self.shared;
        let now = request.received;
        let Some(leased) = &check.lease else {
            let cache = shared.over_limit_cache.as_ref();
            let cache = cache.filter(|_| check.group == 0 || !has_settlement);
            let verdict = cache.and_then(|cache| cache.get(check, now));
            return verdict.map_or(Ahead::Exact, Ahead::Decided);
        };
        let Some(server_now) = shared.server_time(check, now) else {
            return Ahead::Exact;
        };
        let (ahead, take) = shared.leases.decide(check, leased, replicas, server_now);
        if let Some((take, replicas)) = take.zip(replicas) {
            let client = self.clone();
            let check = check.with_hits(Hits::Peek);
            // Callers may be gone before the reply.
            let take = async move { client.take(&check, take, replicas).await };
            shared.leases.tasks.spawn(take);
        }
        ahead
    }

    /// Sends the checks that are not decided here.
    pub(super) async fn send_rest(
        &self,
        request: &Request<'_>,
        mut prepared: Prepared<'_>,
    ) -> Decisions {
        let blocked = prepared.blocked();
        let mut indices = Vec::new();
        let mut checks = Vec::new();
        for (index, (check, ahead)) in request.checks.iter().zip(&prepared.checks).enumerate() {
            let rest = match ahead {
                Ahead::Decided(_) | Ahead::Reserved(_) => continue,
                _ if blocked.has(check) => check.as_peek_alone(),
                Ahead::Ask(asked) => check.with_hits(match check.hits {
                    Hits::Add(hits) => Hits::Add(hits - asked.reserved()),
                    other => other,
                }),
                Ahead::Exact => check.clone(),
            };
            indices.push(index);
            checks.push(rest);
        }
        let rest = Request { checks: &checks, ..*request };
        let sent = self.send(&rest).await;
        let vetoed = Blocked::of_decided(&checks, &sent);
        let settled = |check: &Check| {
            if blocked.has(check) || vetoed.has(check) { Settled::Unused } else { Settled::Used }
        };
        prepared.settle_reserved(|check| Some(settled(check)));
        let mut decisions: Decisions = prepared
            .checks
            .iter()
            .map(|ahead| match ahead {
                Ahead::Decided(verdict) => Ok(*verdict),
                _ => Err(StoreError::Rejected.not_counted()),
            })
            .collect();
        for (index, decision) in indices.into_iter().zip(sent) {
            let settled = settled(&request.checks[index]);
            decisions[index] = prepared.settle_asked(index, decision, settled);
        }
        decisions
    }

    /// Takes hits ahead.
    async fn take(&self, check: &Check, take: Take, replicas: NonZeroU32) {
        let (shared, sent_at) = (&self.shared, self.shared.clock.now());
        let server_now = shared.server_now(check);
        let at = take.next_window.unwrap_or(server_now);
        let mut encoded = shared.encode_take(check, at, server_now);
        encoded.take_ahead(take.hits, PART_OF_REMAINING * u64::from(replicas.get()));
        let replied = self.send_alone(check, encoded).await;
        let reply = replied.map(|(encoded, reply, replied_at)| TakeReply {
            granted: reply.granted(&encoded),
            charged_at: encoded.charged_at(check, replied_at),
            counter: reply.counter(&encoded, check, replied_at),
            round_trip: shared.clock.now().since(sent_at),
        });
        shared.leases.end_take(check, take, reply, shared.server_now(check));
    }

    /// Refunds unused hits, each at most once.
    pub(crate) async fn give_back(&self, due: DueGiveBack) {
        let shared = &self.shared;
        let check = &due.check;
        let charge = Counter::charge(&check.limit, check.call());
        let at = due.give_back.window();
        let mut encoded = shared.encode(check, charge, None, Mode::Independent, at);
        encoded.until(due.give_back.until());
        let outcome = match self.send_alone(check, encoded).await {
            Ok((encoded, _, now)) if encoded.applies_at(now) => Ok(()),
            // Its window is over: put back, it is stranded.
            Ok(_) => Err(Effect::None),
            Err(failed) => Err(failed.effect),
        };
        let server_now = shared.server_now(check);
        shared.leases.with(check, |counter| {
            counter.given_back(due.give_back, outcome, server_now);
        });
    }

    /// Sends a check that no caller waits for. A redirection fails it.
    async fn send_alone(
        &self,
        check: &Check,
        encoded: EncodedCheck,
    ) -> Result<(EncodedCheck, CheckReply, Time), CheckError> {
        let pool = self.shared.pool_of(&check.limit);
        let node = pool.topology().owner(encoded.key.as_bytes()).cloned();
        let node = node.ok_or(StoreError::Unreachable.not_counted())?;
        let batcher = self.batchers.of(&self.shared, &node);
        let within = self.shared.store_timeout.into();
        let sent = batcher.send(vec![encoded], Mode::Independent, within);
        let NodeReply { mut checks, now, mut replies } = sent.await?;
        let reply = checks.pop().zip(replies.pop());
        match reply.ok_or(StoreError::Rejected.not_counted())? {
            (encoded, Ok(reply)) => Ok((encoded, reply, now)),
            (_, Err(error)) => Err(error.give_up(pool)),
        }
    }
}

impl Prepared<'_> {
    /// Whether every check is decided or reserved.
    pub(super) fn is_complete(&self) -> bool {
        let mut checks = self.checks.iter();
        checks.all(|ahead| matches!(ahead, Ahead::Decided(_) | Ahead::Reserved(_)))
    }

    /// The decisions of a request that is complete.
    pub(super) fn decisions(&self) -> Decisions {
        let decided = self.checks.iter().filter_map(|ahead| match ahead {
            Ahead::Decided(verdict) => Some(Ok(*verdict)),
            _ => None,
        });
        decided.collect()
    }

    /// The groups that are over limit by what is decided here.
    fn blocked(&self) -> Blocked {
        let over = self
            .checks
            .iter()
            .map(|ahead| matches!(ahead, Ahead::Decided(verdict) if verdict.over));
        Blocked::of(self.request.checks.iter().zip(over))
    }

    /// Decides the checks of which all hits are reserved, unless that has to wait.
    fn settle_reserved(&mut self, settled: impl Fn(&Check) -> Option<Settled>) {
        for (check, ahead) in self.request.checks.iter().zip(&mut self.checks) {
            if let Ahead::Reserved(_) = ahead
                && let Some(settled) = settled(check)
                && let Ahead::Reserved(asked) = std::mem::replace(ahead, Ahead::Exact)
            {
                let verdict = self.shared.settle(check, asked, settled, false);
                *ahead = Ahead::Decided(Verdict {
                    source: Source::Lease,
                    ..verdict.unwrap_or_default()
                });
            }
        }
    }

    /// Ends the reservation of a check that was sent. `admitted` is for what is not over limit.
    fn settle_asked(
        &mut self,
        index: usize,
        decision: Result<Verdict, CheckError>,
        admitted: Settled,
    ) -> Result<Verdict, CheckError> {
        let check = &self.request.checks[index];
        let is_blocked = self.blocked().has(check);
        let Ahead::Ask(asked) = std::mem::replace(&mut self.checks[index], Ahead::Exact) else {
            return decision;
        };
        let sent = check.hits.count() - asked.reserved();
        // A blocked check was sent as a peek, which does not say whether its hits are over limit.
        let over =
            decision.is_ok_and(|verdict| verdict.over || is_blocked && verdict.remaining < sent);
        let settled = match &decision {
            Ok(_) if over => Settled::Unused,
            Ok(_) => admitted,
            Err(_) => Settled::Failed,
        };
        let verdict = self.shared.settle(check, asked, settled, over);
        decision.map(|sent| verdict.unwrap_or(sent))
    }
}

/// A request whose caller is gone uses what it has reserved: it may have been admitted.
impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        for (check, ahead) in self.request.checks.iter().zip(&mut self.checks) {
            if let Ahead::Ask(asked) | Ahead::Reserved(asked) =
                std::mem::replace(ahead, Ahead::Exact)
                && !asked.is_empty()
            {
                self.shared.settle(check, asked, Settled::Used, false);
            }
        }
    }
}

impl Redis {
    /// The time of the server that cuts the windows of a counter; `None` while it is unknown or
    /// unreachable.
    fn server_time(&self, check: &Check, now: Time) -> Option<Time> {
        let topology = self.pool_of(&check.limit).topology();
        let node = topology.owner(check.key.as_bytes())?;
        node.clock.is_known().then(|| node.clock.at(now))
    }

    /// That time now; this process' own if it is unknown.
    pub(crate) fn server_now(&self, check: &Check) -> Time {
        let now = self.clock.now();
        self.server_time(check, now).unwrap_or(now)
    }

    /// Ends a reservation. Returns the verdict of the whole check.
    fn settle(&self, check: &Check, asked: Asked, settled: Settled, over: bool) -> Option<Verdict> {
        let now = self.server_now(check);
        self.leases.with(check, |counter| {
            counter.settle(asked, settled, now);
            counter.verdict(check.call(), over, now)
        })
    }
}
