//! One worker's client: sends each check to the server that has its key, and follows redirections.
//!
//! ```text
//!   decide -> over-limit cache -> encode -> batcher of each node -> pipeline -> decode -> verdicts
//! ```
//!
//! A decision is made within the caller's time: a verdict for each check, or why there is none.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;

use crate::check::{Check, CheckError, CheckRequest, Decisions, Hits, StoreError, Verdict};
use crate::limit::OverLimitHits;
use crate::store::redis::client::batcher::{BATCH_SIZE_MAX, NodeReply, SendState};
use crate::store::redis::client::batchers::Batchers;
use crate::store::redis::client::decode::ReplyError;
use crate::store::redis::client::encode::{EncodedCheck, Mode, Route, WindowCommand};
use crate::store::redis::client::node_batch::{
    Budget, NodeBatch, NodeBatches, batch_of, is_one_call,
};
use crate::store::redis::shared::Shared;
use crate::store::redis::topology::cluster::Endpoint;
use crate::store::redis::topology::health::FaultKind;
use crate::store::redis::topology::node::Node;
use crate::store::redis::topology::pool::NodePool;
use crate::store::redis::topology::redirect::Redirect;
use crate::time::{Span, Time};

pub mod batcher;
mod batchers;
pub mod decode;
pub mod encode;
pub(crate) mod lifetimes;
mod node_batch;
pub(crate) mod pipeline;
pub mod script;
pub(crate) mod trace;

/// Redirections of one check. A cluster that redirects more often has no stable slot map.
pub const REDIRECTS_MAX: usize = 5;

/// Decides the checks of one worker in Redis.
#[derive(Debug, Clone)]
pub struct RedisClient {
    shared: Arc<Shared>,
    batchers: Batchers,
}

/// The outcome of one node's batch.
#[derive(Debug, Default)]
struct NodeOutcome<'s> {
    decided: SmallVec<[(usize, Result<Verdict, CheckError>); 2]>,
    redirected: NodeBatches<'s>,
}

/// Verdicts from the over-limit cache.
type Cached = SmallVec<[Option<Verdict>; 2]>;

impl RedisClient {
    /// A client for the worker that this is called on. It starts to connect to all known servers.
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            batchers: Batchers::start(&shared),
            shared,
        }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Decides every check of a request, in order, before its deadline and within STORE_TIMEOUT.
    pub async fn decide(&self, request: &CheckRequest, now: Time) -> Decisions {
        let timeout = self.shared.store_timeout;
        let budget = Budget {
            since: now,
            span: request
                .deadline
                .map_or(timeout, |deadline| deadline.since(now).min(timeout)),
        };
        let (checks, mode) = (&request.checks, mode_of(request));
        let Some(cache) = &self.shared.over_limit_cache else {
            return self.send(checks, mode, budget).await;
        };
        let cached: Cached = checks.iter().map(|check| cache.get(check, now)).collect();
        let decisions = if cached.iter().any(Option::is_some) {
            // Boxed to keep the future of other requests small.
            Box::pin(self.send_uncached(request, cached, budget)).await
        } else {
            self.send(checks, mode, budget).await
        };
        for check in checks {
            // Whatever the reply: Redis may have counted the refund.
            if let Hits::Refund(_) = check.hits {
                cache.refunded(&check.key, self.shared.clock.now());
            }
        }
        decisions
    }

    /// Sends the checks that the cache did not decide.
    async fn send_uncached(
        &self,
        request: &CheckRequest,
        cached: Cached,
        budget: Budget,
    ) -> Decisions {
        let known = || request.checks.iter().zip(&cached);
        let blocked = request.all_or_nothing
            && known().any(|(check, verdict)| check.enforcing && verdict.is_some());
        let unknown = known().filter(|(_, verdict)| verdict.is_none());
        let (checks, mode): (Vec<Check>, _) = if blocked {
            let peeks = unknown.map(|(check, _)| as_peek(check)).collect();
            (peeks, Mode::Independent)
        } else {
            let checks = unknown.map(|(check, _)| check.clone()).collect();
            (checks, mode_of(request))
        };
        let mut sent = self.send(&checks, mode, budget).await.into_iter();
        let mut next = || {
            sent.next()
                .unwrap_or(Err(StoreError::Rejected.not_counted()))
        };
        cached
            .into_iter()
            .map(|verdict| verdict.map_or_else(&mut next, Ok))
            .collect()
    }

    async fn send(&self, checks: &[Check], mode: Mode, budget: Budget) -> Decisions {
        let mode = if checks.len() < 2 {
            Mode::Independent
        } else {
            mode
        };
        let batches = self.encode(checks, mode, budget.since);
        if mode == Mode::Atomic && !is_one_call(&batches, checks.len()) {
            return Box::pin(self.try_and_charge(checks, batches, budget)).await;
        }
        self.send_batches(checks, batches, mode, budget).await
    }

    /// All or nothing on several nodes: a dry run, then each check is charged or only read.
    ///
    /// Not atomic: a concurrent request may consume quota between the two phases. Then a check is over
    /// limit in the second phase, and others are charged although the request is over limit. Never
    /// over-admits.
    async fn try_and_charge<'s>(
        &'s self,
        checks: &[Check],
        batches: NodeBatches<'s>,
        budget: Budget,
    ) -> Decisions {
        let mut decisions = self
            .send_batches(checks, batches, Mode::DryRun, budget)
            .await;
        let is_over =
            |decision: &Result<Verdict, CheckError>| decision.is_ok_and(|verdict| verdict.over);
        let mut decided = checks.iter().zip(&decisions);
        let blocked = decided.any(|(check, decision)| check.enforcing && is_over(decision));
        let (mut indices, mut second) = (Vec::new(), Vec::new());
        for (index, (check, decision)) in checks.iter().zip(&decisions).enumerate() {
            let stays_over = blocked
                && is_over(decision)
                && check.limit.over_limit_hits() == OverLimitHits::Drop;
            if decision.is_err() || stays_over {
                continue;
            }
            indices.push(index);
            second.push(if blocked && !is_over(decision) {
                as_peek(check)
            } else {
                check.clone()
            });
        }
        let batches = self.encode(&second, Mode::Independent, budget.since);
        let sent = self
            .send_batches(&second, batches, Mode::Independent, budget)
            .await;
        for (index, decision) in indices.into_iter().zip(sent) {
            decisions[index] = decision;
        }
        decisions
    }

    /// Encodes checks for the nodes that have their keys. Checks without a node are left out.
    fn encode(&self, checks: &[Check], mode: Mode, now: Time) -> NodeBatches<'_> {
        let mut batches = NodeBatches::new();
        for (index, check) in checks.iter().enumerate() {
            let pool = self.shared.pool_of(&check.limit);
            let topology = pool.topology();
            let encoded = self.shared.encode(check, &topology, mode, now);
            if let Some(node) = topology.owner(encoded.key.as_bytes()) {
                let batch = batch_of(&mut batches, pool, node, topology.has_slots());
                batch.indices.push(index);
                batch.checks.push(encoded);
            }
        }
        batches
    }

    /// Sends batches to their nodes at the same time, and follows redirections.
    async fn send_batches<'s>(
        &'s self,
        checks: &[Check],
        mut batches: NodeBatches<'s>,
        mode: Mode,
        budget: Budget,
    ) -> Decisions {
        let unreachable = Err(StoreError::Unreachable.not_counted());
        let mut decisions: Decisions = checks.iter().map(|_| unreachable).collect();
        for _ in 0..=REDIRECTS_MAX {
            let outcomes: SmallVec<[NodeOutcome<'_>; 1]> = match batches.pop() {
                // The usual case, without an allocation.
                Some(only) if batches.is_empty() => {
                    SmallVec::from_iter([self.send_batch(checks, only, mode, budget).await])
                }
                last => {
                    let all = batches.drain(..).chain(last);
                    join_all(all.map(|batch| self.send_batch(checks, batch, mode, budget)))
                        .await
                        .into()
                }
            };
            for outcome in outcomes {
                batches.extend(outcome.redirected);
                for (index, decision) in outcome.decided {
                    decisions[index] = decision;
                }
            }
            if batches.is_empty() {
                return decisions;
            }
            let is_split =
                |batch: &NodeBatch<'_>| batch.checks.iter().any(|check| check.route.is_isolated());
            if mode == Mode::Atomic && batches.iter().any(is_split) {
                // Some of the keys have moved to another node: no one call has all of them.
                let batches = self.encode(checks, Mode::Atomic, budget.since);
                return Box::pin(self.try_and_charge(checks, batches, budget)).await;
            }
        }
        for index in batches.iter().flat_map(|batch| &batch.indices) {
            decisions[*index] = Err(StoreError::Rejected.not_counted());
        }
        decisions
    }

    /// Sends one node's checks. More than [`BATCH_SIZE_MAX`] are sent one batch after the other, since a
    /// later check may be of the same counter.
    async fn send_batch<'s>(
        &'s self,
        checks: &[Check],
        mut batch: NodeBatch<'s>,
        mode: Mode,
        budget: Budget,
    ) -> NodeOutcome<'s> {
        let mut encoded = std::mem::take(&mut batch.checks);
        let mut outcome = NodeOutcome::default();
        let mut indices = &batch.indices[..];
        while !indices.is_empty() {
            let size = match mode {
                Mode::Atomic => indices.len(),
                Mode::Independent | Mode::DryRun => indices.len().min(BATCH_SIZE_MAX),
            };
            let rest = encoded.split_off(size);
            let (now, later) = indices.split_at(size);
            match self.call(&batch, encoded, mode, budget).await {
                Ok(reply) => self.read(checks, &batch, now, reply, budget.since, &mut outcome),
                Err(error) => {
                    let failed = now.iter().map(|&index| (index, Err(error)));
                    outcome.decided.extend(failed);
                }
            }
            (indices, encoded) = (later, rest);
        }
        outcome
    }
}
impl RedisClient {
    /// Calls a node within the rest of the budget.
    async fn call(
        &self,
        batch: &NodeBatch<'_>,
        checks: Vec<EncodedCheck>,
        mode: Mode,
        budget: Budget,
    ) -> Result<NodeReply, CheckError> {
        let node = &batch.node;
        if node.health.breaker.is_open() {
            return Err(StoreError::Unreachable.not_counted());
        }
        let passed = self.shared.clock.now().since(budget.since);
        let left = budget.span.less(passed);
        if left == Span::ZERO {
            return Err(StoreError::TimedOut.not_counted());
        }
        let (batcher, state) = (
            self.batchers.of(&self.shared, node, batch.by_slot),
            SendState::default(),
        );
        let reply = batcher.send(checks, mode, state.clone());
        tokio::time::timeout(Duration::from(left), reply)
            .await
            .unwrap_or_else(|_| {
                let cause = "no reply within the caller's time";
                node.health.record_fault(FaultKind::Slow, cause);
                Err(CheckError {
                    error: StoreError::TimedOut,
                    effect: state.withdraw(),
                })
            })
    }

    /// Makes verdicts of the replies, and batches of the redirections.
    fn read<'s>(
        &self,
        checks: &[Check],
        &NodeBatch { pool, ref node, .. }: &NodeBatch<'s>,
        indices: &[usize],
        reply: NodeReply,
        received: Time,
        outcome: &mut NodeOutcome<'s>,
    ) {
        let NodeReply {
            checks: encoded,
            now,
            replies,
        } = reply;
        for ((&index, mut encoded), reply) in indices.iter().zip(encoded).zip(replies) {
            let rejected = Err(StoreError::Rejected.not_counted());
            let decision = match reply {
                Ok(reply) => {
                    let check = (&checks[index], &encoded);
                    Ok(self.shared.verdict(check, &reply, received, now, node))
                }
                Err(ReplyError::Rejected(_)) => rejected,
                Err(ReplyError::Redirect(redirect)) => match self.redirect(pool, node, &redirect) {
                    Some((node, route)) => {
                        encoded.route = route;
                        if route.is_isolated() {
                            encoded.set_command(WindowCommand::SetNxIncr);
                        }
                        let batch = batch_of(&mut outcome.redirected, pool, &node, true);
                        batch.indices.push(index);
                        batch.checks.push(encoded);
                        continue;
                    }
                    None => rejected,
                },
            };
            outcome.decided.push((index, decision));
        }
    }

    /// The node that a redirection names, and how to send the check to it.
    fn redirect(
        &self,
        pool: &NodePool,
        node: &Arc<Node>,
        redirect: &Redirect,
    ) -> Option<(Arc<Node>, Route)> {
        let [moved, ask, again] = &self.shared.metrics.redirects;
        let node_at =
            |endpoint: &Endpoint| pool.node_at(&endpoint.resolve_relative_to(node.address()));
        match redirect {
            Redirect::Moved(endpoint) => {
                moved.inc();
                pool.request_refresh();
                Some((node_at(endpoint)?, Route::Normal))
            }
            Redirect::Ask(endpoint) => {
                ask.inc();
                Some((node_at(endpoint)?, Route::Asking))
            }
            Redirect::Again => {
                again.inc();
                Some((node.clone(), Route::Isolated))
            }
        }
    }
}

fn mode_of(request: &CheckRequest) -> Mode {
    if request.all_or_nothing {
        Mode::Atomic
    } else {
        Mode::Independent
    }
}

fn as_peek(check: &Check) -> Check {
    Check {
        hits: Hits::Peek,
        ..check.clone()
    }
}
