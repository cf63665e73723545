//! Makes verdicts of the replies of a node, and follows its redirections.

use std::sync::Arc;

use crate::base::time::{Span, Time};
use crate::limits::algorithm::lease::LeasedCounter;
use crate::limits::check::{CheckError, Hits, StoreError, Verdict};
use crate::store::redis::client::decode::{CheckReply, ReplyError};
use crate::store::redis::client::encode::{EncodedCheck, Mode, Route};
use crate::store::redis::client::node_batch::{NodeBatch, batch_of};
use crate::store::redis::client::waiting::NodeReply;
use crate::store::redis::client::{NodeOutcome, RedisClient, Request};
use crate::store::redis::topology::cluster::Endpoint;
use crate::store::redis::topology::node::Node;
use crate::store::redis::topology::pool::NodePool;

impl RedisClient {
    /// Makes verdicts of the replies, and batches of the redirections.
    pub(super) fn read<'s>(
        &self,
        request: &Request<'_>,
        &NodeBatch { pool, ref node, .. }: &NodeBatch<'s>,
        indices: &[usize],
        replied: Result<NodeReply, CheckError>,
        outcome: &mut NodeOutcome<'s>,
    ) {
        let NodeReply { checks: encoded, now, replies } = match replied {
            Ok(reply) => reply,
            Err(error) => {
                let failed = indices.iter().map(|&index| (index, Err(error)));
                return outcome.decided.extend(failed);
            }
        };
        outcome.decided.reserve(indices.len());
        for ((&index, mut encoded), reply) in indices.iter().zip(encoded).zip(replies) {
            let decision = match reply {
                Ok(reply) => Ok(self.verdict(request, index, &encoded, &reply, now, node)),
                Err(error) => match self.redirect(pool, node, &error) {
                    Some((node, route)) => {
                        encoded.route = route;
                        let batch = batch_of(&mut outcome.redirected, pool, &node, indices.len());
                        batch.indices.push(index);
                        batch.checks.push(encoded);
                        continue;
                    }
                    None => {
                        if let ReplyError::Moved(endpoint) | ReplyError::Ask(endpoint) = &error {
                            let text = format!("MOVED to {}:{}", endpoint.host, endpoint.port);
                            node.health.record_error_reply(&text);
                        }
                        Err(StoreError::Rejected.not_counted())
                    }
                },
            };
            outcome.decided.push((index, decision));
        }
    }

    /// The node that a redirection names, and how to send the check to it. `None` for other errors.
    fn redirect(
        &self,
        pool: &NodePool,
        node: &Arc<Node>,
        error: &ReplyError,
    ) -> Option<(Arc<Node>, Route)> {
        let [moved, ask, again] = &self.shared.metrics.redirects;
        let node_at =
            |endpoint: &Endpoint| pool.node_at(&endpoint.resolve_relative_to(node.address()));
        match error {
            ReplyError::Moved(endpoint) => {
                moved.inc();
                pool.request_refresh();
                Some((node_at(endpoint)?, Route::Normal))
            }
            ReplyError::Ask(endpoint) => {
                ask.inc();
                Some((node_at(endpoint)?, Route::Asking))
            }
            ReplyError::Again => {
                again.inc();
                Some((node.clone(), Route::Isolated))
            }
            ReplyError::Rejected(_) => None,
        }
    }

    /// The verdict of a check that was replied to at the node's time `redis_now`. The leases or the
    /// over-limit cache learn from it.
    fn verdict(
        &self,
        request: &Request<'_>,
        index: usize,
        encoded: &EncodedCheck,
        reply: &CheckReply,
        redis_now: Time,
        node: &Node,
    ) -> Verdict {
        let check = &request.checks[index];
        let received = request.received;
        let is_decision = request.mode == Mode::Independent;
        let mut verdict = reply.verdict(encoded, check, redis_now);
        if check.lease.is_some() {
            // Less unused hits of this process.
            let observed = |counter: &mut LeasedCounter| {
                counter.observe(reply.counter(encoded, check, redis_now), redis_now);
                counter.verdict(check.call(), verdict.over, redis_now)
            };
            if is_decision && let Some(leased) = self.shared.leases.with(check, observed) {
                verdict = leased;
            }
        } else if let Some(cache) = &self.shared.over_limit_cache {
            let hit = || reply.verdict_of(encoded, check, Hits::Add(1).into(), true, redis_now);
            cache.learn(check, &verdict, hit, received, self.shared.clock.now());
        }
        let is_full = reply.is_of_full_log(check);
        self.shared.metrics.full_logs.inc_by(is_full.into());
        if verdict.start_after > Span::ZERO {
            // The reply took a while, so a booked slot begins sooner as seen from here.
            let passed = node.clock.at(self.shared.clock.now()).since(redis_now);
            verdict.start_after = verdict.start_after.less(passed);
        }
        verdict
    }
}
