//! The client of a worker: sends each check to the server that has its key, and follows
//! redirections.
//!
//! ```text
//!   decide -> over-limit cache, leases -> encode -> batcher of each node -> pipeline -> decode
//!          -> verdicts
//! ```
//!
//! A decision is made within the caller's time: a verdict for each check, or why there is none.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;

use crate::base::time::{Span, Time};
use crate::limits::check::{Check, CheckError, CheckRequest, Decisions, Hits, StoreError, Verdict};
use crate::store::redis::client::batchers::Batchers;
use crate::store::redis::client::encode::{EncodedCheck, Mode};
use crate::store::redis::client::node_batch::{
    NodeBatch, NodeBatches, are_in_one_call, checks_of_batch,
};
use crate::store::redis::client::waiting::NodeReply;
use crate::store::redis::shared::Redis;
use crate::store::redis::topology::node::Node;
use crate::telemetry::traces::LiveSpan;

mod ahead;
mod all_or_nothing;
mod batcher;
mod batchers;
pub mod decode;
pub mod encode;
mod encode_request;
mod expiry;
mod increments;
mod node_batch;
pub(crate) mod pipeline;
mod read_replies;
pub(crate) mod repair;
pub mod script;
mod size;
mod trace;
pub mod waiting;

/// Redirections of one check. A cluster that redirects more often has no stable slot map.
// bound redirects_max: fallback, cause `refused`; tollgate_store_fallbacks_total
pub const REDIRECTS_MAX: usize = 5;

/// Decides the checks of one worker in Redis.
#[derive(Debug, Clone)]
pub struct RedisClient {
    pub(crate) shared: Arc<Redis>,
    batchers: Batchers,
}

/// Checks to decide.
#[derive(Debug, Clone, Copy)]
struct Request<'r> {
    checks: &'r [Check],
    mode: Mode,
    received: Time,
    /// When the caller stops waiting.
    deadline: Time,
    /// Why there is no verdict of checks that cannot be encoded.
    left_out: StoreError,
}

/// The outcome of one node's batch.
#[derive(Debug, Default)]
struct NodeOutcome<'s> {
    decided: SmallVec<[(usize, Result<Verdict, CheckError>); 2]>,
    redirected: NodeBatches<'s>,
}

impl<'s> NodeOutcome<'s> {
    /// Sets what was decided. Returns the rest.
    fn decide(self, decisions: &mut Decisions) -> NodeBatches<'s> {
        for (index, decision) in self.decided {
            decisions[index] = decision;
        }
        self.redirected
    }
}

impl RedisClient {
    /// A client for the worker that this is called on. It starts to connect to all known servers.
    pub(crate) fn new(shared: Arc<Redis>) -> Self {
        Self { batchers: Batchers::start(&shared), shared }
    }

    /// Decides every check of a request, in order, before its deadline and within STORE_TIMEOUT.
    /// `parent` is the span of the request, if it is traced.
    pub async fn decide(
        &self,
        request: &CheckRequest,
        now: Time,
        parent: Option<&LiveSpan>,
    ) -> Decisions {
        let span = parent.map(|parent| trace::start(&self.shared, parent, request));
        let timeout = now.plus(self.shared.store_timeout);
        let request = Request {
            checks: &request.checks,
            mode: Mode::Independent,
            received: now,
            deadline: request.deadline.map_or(timeout, |time| time.min(timeout)),
            left_out: StoreError::Unreachable,
        };
        let decisions = match self.prepare(&request) {
            None => self.send(&request).await,
            Some(prepared) if prepared.is_complete() => prepared.decisions(),
            // Boxed to keep the future of other requests small.
            Some(prepared) => Box::pin(self.send_rest(&request, prepared)).await,
        };
        let cache = self.shared.over_limit_cache.as_ref();
        for check in request.checks {
            // Whatever the reply: Redis may have counted the refund.
            if let (Some(cache), Hits::Refund(_)) = (cache, check.hits) {
                cache.refunded(&check.key, self.shared.clock.now());
            }
        }
        if let Some(span) = span {
            trace::end(span, &decisions);
        }
        decisions
    }

    /// Decides checks in a mode of their own, without the cache.
    pub(crate) async fn decide_in(&self, mode: Mode, checks: &[Check], now: Time) -> Decisions {
        let mut request = Request {
            checks,
            mode,
            received: now,
            deadline: now.plus(self.shared.store_timeout),
            left_out: StoreError::Unreachable,
        };
        let mut batches = self.encode_by_redis_time(&mut request).await;
        self.send_batches(&request, &mut batches).await
    }

    async fn send(&self, request: &Request<'_>) -> Decisions {
        let request = &mut { *request };
        let (mut batches, unread) = self.encode(request);
        if !unread.is_empty() {
            // Boxed to keep the future of other requests small.
            batches = Box::pin(self.encode_by_redis_time(request)).await;
        }
        if !are_in_one_call(&batches, request.checks) {
            return Box::pin(self.try_and_charge(request)).await;
        }
        self.send_batches(request, &mut batches).await
    }

    /// Sends batches, whose checks it takes, and follows redirections.
    async fn send_batches<'s>(
        &'s self,
        request: &Request<'_>,
        batches: &mut NodeBatches<'s>,
    ) -> Decisions {
        let undecided = || -> Decisions {
            let left_out = Err(request.left_out.not_counted());
            request.checks.iter().map(|_| left_out).collect()
        };
        // The usual case: one call. All others are boxed to keep the future of this one small.
        let (decisions, batches, sends_max) = match &mut batches[..] {
            [only] if checks_of_batch(&only.checks) == only.checks.len() => {
                let checks = std::mem::take(&mut only.checks);
                let replied = self.call(&only.node, checks, request).await;
                let mut decisions = undecided();
                let mut outcome = NodeOutcome::default();
                self.read(request, only, &only.indices, replied, &mut outcome);
                let redirected = outcome.decide(&mut decisions);
                if redirected.is_empty() {
                    return decisions;
                }
                (decisions, redirected, REDIRECTS_MAX)
            }
            _ => (undecided(), std::mem::take(batches), REDIRECTS_MAX + 1),
        };
        Box::pin(self.send_to_all(request, decisions, batches, sends_max)).await
    }

    /// Sends batches to their nodes concurrently, and follows redirections. Sends at most
    /// `sends_max` times.
    async fn send_to_all<'s>(
        &'s self,
        request: &Request<'_>,
        mut decisions: Decisions,
        mut batches: NodeBatches<'s>,
        sends_max: usize,
    ) -> Decisions {
        let is_split = |batch: &NodeBatch<'_>| {
            let mut checks = batch.checks.iter();
            checks.any(|check| check.group > 0 && check.route.is_isolated())
        };
        let mut sends = 0;
        while !batches.is_empty() {
            if batches.iter().any(is_split) {
                // Some of the keys have moved to another node: no one call has all of a group.
                let left: Vec<usize> =
                    batches.iter().flat_map(|batch| &batch.indices[..]).copied().collect();
                let checks: Vec<Check> =
                    left.iter().map(|&index| request.checks[index].clone()).collect();
                let rest = Request { checks: &checks, ..*request };
                let decided = Box::pin(self.try_and_charge(&rest)).await;
                for (index, decision) in left.into_iter().zip(decided) {
                    decisions[index] = decision;
                }
                return decisions;
            }
            if sends == sends_max {
                for index in batches.iter().flat_map(|batch| &batch.indices) {
                    decisions[*index] = Err(StoreError::Rejected.not_counted());
                }
                return decisions;
            }
            let sent = batches.drain(..);
            let sent = sent.map(|batch| self.send_batch(request, batch));
            for outcome in join_all(sent).await {
                batches.extend(outcome.decide(&mut decisions));
            }
            sends += 1;
        }
        decisions
    }

    /// Sends one node's checks. Those that do not fit in one batch are sent one batch after the
    /// other, since a later check may be of the same counter.
    async fn send_batch<'s>(
        &'s self,
        request: &Request<'_>,
        mut batch: NodeBatch<'s>,
    ) -> NodeOutcome<'s> {
        let mut encoded = std::mem::take(&mut batch.checks);
        let mut outcome = NodeOutcome::default();
        let mut indices = &batch.indices[..];
        while !indices.is_empty() {
            let size = checks_of_batch(&encoded);
            let rest = encoded.split_off(size);
            let (now, later) = indices.split_at(size);
            let replied = self.call(&batch.node, encoded, request).await;
            self.read(request, &batch, now, replied, &mut outcome);
            (indices, encoded) = (later, rest);
        }
        outcome
    }

    /// Calls a node before the deadline.
    async fn call(
        &self,
        node: &Arc<Node>,
        checks: Vec<EncodedCheck>,
        request: &Request<'_>,
    ) -> Result<NodeReply, CheckError> {
        if node.health.breaker.is_open() {
            return Err(StoreError::Unreachable.not_counted());
        }
        let left = request.deadline.since(self.shared.clock.now());
        let late = || {
            let lateness = &self.shared.lateness;
            lateness.cause(request.received, request.deadline)
        };
        if left == Span::ZERO {
            return Err(late().not_counted());
        }
        let batcher = self.batchers.of(&self.shared, node);
        let left = Duration::from(left);
        let sent = batcher.send(checks, request.mode, left).await;
        sent.map_err(|failed| match failed.error {
            StoreError::TimedOut => CheckError { error: late(), ..failed },
            _ => failed,
        })
    }
}
