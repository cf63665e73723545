//! One runtime's way to Redis: each check goes to the server that has its key, all of those are
//! asked at the same time, and what one of them sends elsewhere is followed there.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::check::{Check, CheckError, CheckRequest, Decisions, Hits, StoreError, Verdict};
use crate::limit::OverLimitHits;
use crate::store::redis::Redis;
use crate::store::redis::batch::{BATCH_SIZE_MAX, Batcher, PartReply, SendState, Silence};
use crate::store::redis::script::{EncodedCheck, Mode, Route, WindowCommand};
use crate::store::redis::topology::cluster;
use crate::store::redis::topology::health::FaultKind;
use crate::store::redis::topology::node::{Node, NodeId};
use crate::store::redis::topology::pool::NodePool;
use crate::store::redis::topology::redirect::Redirect;
use crate::time::{Span, Time};

/// How often a check is sent elsewhere, at most. Slots move once in a while; a cluster that sends
/// somebody round and round has no answer.
pub const REDIRECTS_MAX: usize = 5;

/// One runtime's way to Redis.
#[derive(Debug, Clone)]
pub struct RedisClient {
    redis: Arc<Redis>,
    /// For each server that was ever asked and still is one.
    batchers: Arc<Mutex<HashMap<NodeId, Batcher>>>,
}

/// How long the answer may take.
#[derive(Debug, Clone, Copy)]
struct Budget {
    patience: Span,
    /// From when on.
    since: Time,
}

/// Checks that go to one server.
#[derive(Debug)]
struct NodeBatch<'r> {
    pool: &'r NodePool,
    by_slot: bool,
    node: Arc<Node>,
    /// Which of the ask's checks they are.
    indices: SmallVec<[usize; 2]>,
    lines: Vec<EncodedCheck>,
}

/// What goes out for one request. Most often there is one.
type NodeBatches<'r> = SmallVec<[NodeBatch<'r>; 1]>;

/// What became of one server's part.
#[derive(Debug, Default)]
struct NodeReply<'r> {
    decided: SmallVec<[(usize, Result<Verdict, CheckError>); 2]>,
    elsewhere: NodeBatches<'r>,
}

/// What the over-limit cache knows of each check.
type Known = SmallVec<[Option<Verdict>; 2]>;

impl RedisClient {
    /// For the runtime that this is called on. Servers that are known are being connected to, so
    /// that the first caller need not wait for it.
    pub fn new(redis: Arc<Redis>) -> Self {
        let remote = Self {
            redis,
            batchers: Arc::default(),
        };
        for pool in remote.redis.pools() {
            let topology = pool.topology();
            for node in topology.nodes() {
                remote.batcher(node, topology.has_slots());
            }
        }
        remote
    }

    /// The servers.
    pub fn redis(&self) -> &Arc<Redis> {
        &self.redis
    }

    /// Answers every check of an ask, in order, before its deadline and within STORE_TIMEOUT.
    pub async fn decide(&self, request: &CheckRequest, now: Time) -> Decisions {
        let timeout = self.redis.store_timeout;
        let patience = request
            .deadline
            .map_or(timeout, |deadline| deadline.since(now).min(timeout));
        let budget = Budget {
            patience,
            since: now,
        };
        if let Some(cache) = &self.redis.over_limit_cache {
            let known: Known = request
                .checks
                .iter()
                .map(|check| cache.get(check, now))
                .collect();
            let decisions = if known.iter().any(Option::is_some) {
                // On the heap, so that calls to which nothing is known are small.
                Box::pin(self.decide_unknown(request, known, budget)).await
            } else {
                self.send_all(&request.checks, request.all_or_nothing, budget)
                    .await
            };
            // Whatever was replied: the refund may have arrived.
            for check in request
                .checks
                .iter()
                .filter(|check| matches!(check.hits, Hits::Refund(_)))
            {
                cache.refunded(&check.key, self.redis.clock.now());
            }
            return decisions;
        }
        self.send_all(&request.checks, request.all_or_nothing, budget)
            .await
    }

    /// Asks for what is not known already.
    async fn decide_unknown(
        &self,
        request: &CheckRequest,
        known: Known,
        budget: Budget,
    ) -> Decisions {
        let blocked = request.all_or_nothing
            && request
                .checks
                .iter()
                .zip(&known)
                .any(|(check, known)| check.enforcing && known.is_some());
        let unknown = request
            .checks
            .iter()
            .zip(&known)
            .filter(|(_, known)| known.is_none());
        let unknown: Vec<Check> = unknown
            .map(|(check, _)| {
                if blocked {
                    as_peek(check)
                } else {
                    check.clone()
                }
            })
            .collect();
        let told = self
            .send_all(&unknown, request.all_or_nothing && !blocked, budget)
            .await;
        let mut told = told.into_iter();
        known
            .into_iter()
            .map(|known| {
                known.map_or_else(
                    || {
                        told.next()
                            .unwrap_or(Err(StoreError::Rejected.not_counted()))
                    },
                    Ok,
                )
            })
            .collect()
    }

    async fn send_all(&self, checks: &[Check], all_or_nothing: bool, budget: Budget) -> Decisions {
        if !all_or_nothing || checks.len() < 2 {
            let parts = self.parts(checks, Mode::Independent, budget.since);
            return self
                .send_batches(checks, parts, Mode::Independent, budget)
                .await;
        }
        let parts = self.parts(checks, Mode::Atomic, budget.since);
        if is_one_step(&parts, checks.len()) {
            return self.send_batches(checks, parts, Mode::Atomic, budget).await;
        }
        Box::pin(self.try_and_charge(checks, parts, budget)).await
    }

    /// All or nothing where no one server can decide it: what would be said of each check is asked
    /// first, and then each is charged or only looked at. Whoever comes in between may take
    /// what is left: then a check is refused in the second step, and others are charged
    /// although the request does not pass. Never does more pass than may.
    async fn try_and_charge<'r>(
        &'r self,
        checks: &[Check],
        parts: NodeBatches<'r>,
        budget: Budget,
    ) -> Decisions {
        let mut decisions = self.send_batches(checks, parts, Mode::DryRun, budget).await;
        let is_over =
            |decision: &Result<Verdict, CheckError>| decision.is_ok_and(|verdict| verdict.over);
        let blocked = checks
            .iter()
            .zip(&decisions)
            .any(|(check, decision)| check.enforcing && is_over(decision));
        let second = |(check, decision): (&Check, &Result<Verdict, CheckError>)| match (
            blocked,
            is_over(decision),
        ) {
            (true, false) => as_peek(check),
            _ => check.clone(),
        };
        let is_asked_again = |check: &Check, decision: &Result<Verdict, CheckError>| {
            let stays_refused = blocked
                && is_over(decision)
                && check.limit.over_limit_hits() == OverLimitHits::Drop;
            decision.is_ok() && !stays_refused
        };
        let asked: Vec<usize> = (0..checks.len())
            .filter(|&index| is_asked_again(&checks[index], &decisions[index]))
            .collect();
        let again: Vec<Check> = asked
            .iter()
            .map(|&index| second((&checks[index], &decisions[index])))
            .collect();
        let parts = self.parts(&again, Mode::Independent, budget.since);
        let told = self
            .send_batches(&again, parts, Mode::Independent, budget)
            .await;
        for (index, decision) in asked.into_iter().zip(told) {
            decisions[index] = decision;
        }
        decisions
    }

    /// Who is asked for what. Checks that nobody can be asked for are in none.
    fn parts(&self, checks: &[Check], mode: Mode, now: Time) -> NodeBatches<'_> {
        let mut parts = NodeBatches::new();
        for (index, check) in checks.iter().enumerate() {
            let pool = self.redis.pool_of(check);
            let topology = pool.topology();
            let line = self.redis.line(check, &topology, mode, now);
            if let Some(node) = topology.owner(line.key().as_bytes()) {
                let part = part_of(&mut parts, pool, node, topology.has_slots());
                part.indices.push(index);
                part.lines.push(line);
            }
        }
        parts
    }

    async fn send_batches<'r>(
        &'r self,
        checks: &[Check],
        mut parts: NodeBatches<'r>,
        mode: Mode,
        budget: Budget,
    ) -> Decisions {
        let mut decisions: Decisions = checks
            .iter()
            .map(|_| Err(StoreError::Unreachable.not_counted()))
            .collect();
        for _ in 0..=REDIRECTS_MAX {
            let mut elsewhere = NodeBatches::new();
            let reply: SmallVec<[NodeReply<'_>; 1]> = match parts.pop() {
                // As it is most often, and then it needs no place on the heap.
                Some(alone) if parts.is_empty() => {
                    SmallVec::from_iter([self.send_batch(checks, alone, mode, budget).await])
                }
                last => join_all(
                    parts
                        .drain(..)
                        .chain(last)
                        .map(|part| self.send_batch(checks, part, mode, budget)),
                )
                .await
                .into(),
            };
            for NodeReply {
                decided,
                elsewhere: sent_on,
            } in reply
            {
                elsewhere.extend(sent_on);
                for (index, decision) in decided {
                    decisions[index] = decision;
                }
            }
            if elsewhere.is_empty() {
                return decisions;
            }
            let is_parted =
                |part: &NodeBatch<'_>| part.lines.iter().any(|line| line.route().is_isolated());
            if mode == Mode::Atomic && elsewhere.iter().any(is_parted) {
                // Of these keys some have gone to another node: no one call can decide over all of
                // them any more.
                let parts = self.parts(checks, Mode::Atomic, budget.since);
                return Box::pin(self.try_and_charge(checks, parts, budget)).await;
            }
            parts = elsewhere;
        }
        for index in parts.iter().flat_map(|part| &part.indices) {
            decisions[*index] = Err(StoreError::Rejected.not_counted());
        }
        decisions
    }

    /// Asks one server.
    async fn send_batch<'r>(
        &'r self,
        checks: &[Check],
        part: NodeBatch<'r>,
        mode: Mode,
        budget: Budget,
    ) -> NodeReply<'r> {
        let NodeBatch {
            pool,
            by_slot,
            node,
            indices,
            mut lines,
        } = part;
        let mut reply = NodeReply::default();
        let mut asked = 0;
        while asked < indices.len() {
            // One after the other: the same key may come again, and is to see what it did before.
            let rest = if mode == Mode::Atomic {
                Vec::new()
            } else {
                lines.split_off(lines.len().min(BATCH_SIZE_MAX))
            };
            let indices = &indices[asked..asked + lines.len()];
            asked += lines.len();
            match self.told(&node, by_slot, lines, mode, budget).await {
                Ok(told) => {
                    for ((&index, line), said) in indices.iter().zip(told.lines).zip(&told.said) {
                        match said {
                            Ok(said) => {
                                let verdict = self.redis.conclude(
                                    (&checks[index], &line),
                                    said,
                                    budget.since,
                                    told.now,
                                    &node,
                                );
                                reply.decided.push((index, Ok(verdict)));
                            }
                            Err(Silence::None(failure)) => {
                                reply.decided.push((index, Err(*failure)))
                            }
                            Err(Silence::Elsewhere(redirect)) => {
                                match self.follow(pool, &node, redirect) {
                                    Some((node, route)) => {
                                        reply.redirect(pool, &node, index, line, route)
                                    }
                                    None => reply
                                        .decided
                                        .push((index, Err(StoreError::Rejected.not_counted()))),
                                }
                            }
                        }
                    }
                }
                Err(failure) => reply
                    .decided
                    .extend(indices.iter().map(|&index| (index, Err(failure)))),
            }
            lines = rest;
        }
        reply
    }

    async fn told(
        &self,
        node: &Arc<Node>,
        by_slot: bool,
        lines: Vec<EncodedCheck>,
        mode: Mode,
        budget: Budget,
    ) -> Result<PartReply, CheckError> {
        if node.health.breaker.is_open() {
            return Err(StoreError::Unreachable.not_counted());
        }
        let gone = self.redis.clock.now().since(budget.since);
        let patience = budget.patience.less(gone);
        if patience == Span::ZERO {
            return Err(StoreError::TimedOut.not_counted());
        }
        let (batcher, send_state) = (self.batcher(node, by_slot), SendState::default());
        let asking = batcher.ask(lines, mode, send_state.clone());
        tokio::time::timeout(Duration::from(patience), asking)
            .await
            .unwrap_or_else(|_| {
                node.health
                    .record_fault(FaultKind::Slow, "no reply within the caller's time");
                Err(CheckError {
                    error: StoreError::TimedOut,
                    effect: send_state.withdraw(),
                })
            })
    }

    /// Where a node sends somebody.
    fn follow(
        &self,
        pool: &NodePool,
        node: &Arc<Node>,
        redirect: &Redirect,
    ) -> Option<(Arc<Node>, Route)> {
        let [moved, ask, again] = &self.redis.metrics.redirects;
        let at = |endpoint: &cluster::Endpoint| {
            pool.node_at(&endpoint.resolve_relative_to(node.address()))
        };
        match redirect {
            Redirect::Moved(place) => {
                moved.inc();
                pool.request_refresh();
                Some((at(place)?, Route::Normal))
            }
            Redirect::Ask(place) => {
                ask.inc();
                Some((at(place)?, Route::Asking))
            }
            Redirect::Again => {
                again.inc();
                Some((node.clone(), Route::Isolated))
            }
        }
    }

    /// The way to a server, opened when it is first asked.
    fn batcher(&self, node: &Arc<Node>, by_slot: bool) -> Batcher {
        let mut batchers = self.batchers.lock();
        match batchers.get(&node.id()) {
            Some(batcher) if !batcher.has_ended() => return batcher.clone(),
            Some(_) => {
                tracing::error!(address = %node.address(), "a batcher ended unexpectedly; starting another one")
            }
            None => {}
        }
        // Those of servers that are gone end when nobody waits for them any more.
        let is_known = |id: &NodeId| {
            self.redis
                .pools()
                .any(|pool| pool.topology().nodes().iter().any(|node| node.id() == *id))
        };
        batchers.retain(|id, _| is_known(id));
        let batcher = Batcher::start(self.redis.clone(), node.clone(), by_slot);
        batchers.insert(node.id(), batcher.clone());
        batcher
    }
}

impl<'r> NodeReply<'r> {
    fn redirect(
        &mut self,
        pool: &'r NodePool,
        node: &Arc<Node>,
        index: usize,
        mut line: EncodedCheck,
        route: Route,
    ) {
        line.set_route(route);
        if route.is_isolated() {
            line.set_command(WindowCommand::SetNxIncr);
        }
        let part = part_of(&mut self.elsewhere, pool, node, true);
        part.indices.push(index);
        part.lines.push(line);
    }
}

/// The part of a server, which may be new.
fn part_of<'p, 'r>(
    parts: &'p mut NodeBatches<'r>,
    pool: &'r NodePool,
    node: &Arc<Node>,
    by_slot: bool,
) -> &'p mut NodeBatch<'r> {
    let at = parts
        .iter()
        .position(|part| part.node.id() == node.id())
        .unwrap_or(parts.len());
    if at == parts.len() {
        parts.push(NodeBatch {
            pool,
            by_slot,
            node: node.clone(),
            indices: SmallVec::new(),
            lines: Vec::new(),
        });
    }
    &mut parts[at]
}

/// Whether one call of the script can decide all of them.
fn is_one_step(parts: &[NodeBatch<'_>], checks: usize) -> bool {
    let [part] = parts else { return false };
    let slot = |line: &EncodedCheck| cluster::slot(line.key().as_bytes());
    part.lines.len() == checks
        && (!part.by_slot
            || part
                .lines
                .iter()
                .all(|line| slot(line) == slot(&part.lines[0])))
}

fn as_peek(check: &Check) -> Check {
    Check {
        hits: Hits::Peek,
        ..check.clone()
    }
}
