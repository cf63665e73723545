//! Encodes the checks of a request by the clocks of Redis: the start of a window is part of its
//! key.

use std::sync::Arc;

use futures_util::future::join_all;

use crate::base::time::{Span, Time};
use crate::limits::algorithm::Counter;
use crate::limits::algorithm::charge::Charge;
use crate::limits::check::{Call, Check, Hits, StoreError};
use crate::store::redis::client::encode::{EncodedCheck, Mode};
use crate::store::redis::client::node_batch::{NodeBatches, batch_of};
use crate::store::redis::client::{RedisClient, Request};
use crate::store::redis::shared::Redis;
use crate::store::redis::topology::node::Node;

impl RedisClient {
    /// Encodes checks for the nodes that have their keys, by the clocks of Redis. Those without a
    /// node are left out, and all if no clock was ever read. Also returns the nodes whose clocks
    /// are needed, were never read and can be: another node's clock replaces one of a node that is
    /// away.
    pub(super) fn encode(&self, request: &Request<'_>) -> (NodeBatches<'_>, Vec<Arc<Node>>) {
        let mut batches = NodeBatches::new();
        let mut unread = Vec::new();
        for (index, check) in request.checks.iter().enumerate() {
            let pool = self.shared.pool_of(&check.limit);
            let topology = pool.topology();
            let charge = Counter::charge(&check.limit, check.call());
            let mut timer = topology.owner(check.key.as_bytes());
            if timer.is_none_or(|node| !node.clock.is_known()) {
                unread.extend(timer.filter(|node| !node.health.breaker.is_open()).cloned());
                timer = topology.nodes.iter().find(|node| node.clock.is_known());
                if timer.is_none() {
                    continue;
                }
            }
            let mode = request.mode;
            let received = request.received;
            let encoded = self.shared.encode(check, charge, timer, mode, received);
            if let Some(node) = topology.owner(encoded.key.as_bytes()) {
                let batch = batch_of(&mut batches, pool, node, request.checks.len() - index);
                batch.indices.push(index);
                batch.checks.push(encoded);
            }
        }
        (batches, unread)
    }

    /// Encodes a request after reading those clocks, by batches without a check.
    pub(super) async fn encode_by_redis_time(&self, request: &mut Request<'_>) -> NodeBatches<'_> {
        let (batches, mut unread) = self.encode(request);
        if unread.is_empty() {
            return batches;
        }
        unread.sort_by_key(|node| node.id);
        unread.dedup_by_key(|node| node.id);
        let read = unread.iter().map(|node| self.call(node, Vec::new(), request));
        for (node, read) in unread.iter().zip(join_all(read).await) {
            match read {
                Err(error) => request.left_out = error.error,
                Ok(_) if !node.clock.is_known() => request.left_out = StoreError::Rejected,
                Ok(_) => {}
            }
        }
        self.encode(request).0
    }
}

impl Redis {
    /// The node that has a check's counter.
    pub(crate) fn node_of(&self, check: &Check) -> Option<Arc<Node>> {
        let topology = self.pool_of(&check.limit).topology();
        if topology.slots.is_some() {
            // The start of a window is part of the key.
            let charge = Counter::charge(&check.limit, check.call());
            let now = self.clock.now();
            let node = topology.owner(check.key.as_bytes());
            let encoded = self.encode(check, charge, node, Mode::Independent, now);
            return topology.owner(encoded.key.as_bytes()).cloned();
        }
        topology.owner(check.key.as_bytes()).cloned()
    }

    /// Encodes a check by the clock of `node`: the one that would have its key without a window in
    /// it. So all replicas use the same clock, whatever the clocks of other nodes are. Without one,
    /// `now` is the server's time.
    pub(crate) fn encode(
        &self,
        check: &Check,
        charge: Charge,
        node: Option<&Arc<Node>>,
        mode: Mode,
        now: Time,
    ) -> EncodedCheck {
        let redis_time = |time: Time| node.map_or(time, |node| node.clock.at(time));
        let at = redis_time(now);
        let hash = self.usage.hash(&check.key);
        // Any number that changes now and then.
        let any = (at.as_micros() >> 14).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let jitter = Span::from_secs(any % self.expiration_jitter_max.ceil_secs().max(1));
        let mut encoded = EncodedCheck::new(check, charge, hash, at, mode, jitter);
        if let Some(window) = &mut encoded.window {
            window.is_plain = node.is_some_and(|node| node.health.refusals.has_any());
        }
        encoded
    }

    /// Encodes a take, whose hits are set afterwards, for the window of this time of the server.
    pub(crate) fn encode_take(&self, check: &Check, at: Time, server_now: Time) -> EncodedCheck {
        let peek = Call { hits: Hits::Peek, ..check.call() };
        let charge = Counter::charge(&check.limit, peek);
        let mut encoded = self.encode(check, charge, None, Mode::Independent, at);
        if let Some(window) = &mut encoded.window {
            // The key of the next window is created early.
            window.lifetime_secs += at.since(server_now).ceil_secs();
        }
        encoded
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::time::Clock;
    use crate::limits::check::Key;
    use crate::limits::{Algorithm, Limit, Terms, Unit};
    use crate::store::redis::connect::dialer::Dialer;
    use crate::store::redis::connect::parse;
    use crate::store::redis::shared::Options;
    use crate::store::redis::topology::deployment::{Deployment, PoolOptions};
    use crate::telemetry::metric::Metrics;

    fn redis() -> Redis {
        let server = parse::address(parse::SERVER_PORT, "127.0.0.1:6379").expect("an address");
        let options = Options {
            main: PoolOptions {
                deployment: Deployment::Single(server.address),
                connect_timeout: Span::from_secs(1),
            },
            per_second: None,
            store_timeout: Span::from_secs(1),
            required: false,
            expiration_jitter_max: Span::ZERO,
            over_limit_cache_bytes: 0,
            replicas: None,
            key_prefix: Box::default(),
            dialer: Dialer::default(),
        };
        let clock = Clock::manual(Time::from_micros(0)).0;
        Redis::new(options, clock, &Metrics::new())
    }

    #[test]
    fn a_take_of_the_next_window_lives_as_long_as_it() {
        let terms = Terms::new(100, Unit::Minute, Algorithm::FixedWindow);
        let check = Check {
            lease: Some(Arc::default()),
            ..Check::new(Key::from("key:"), Limit::new(&terms).expect("a limit"), Hits::Add(1))
        };
        let begins = Time::from_micros(0).plus(Span::from_secs(3 * 60));
        for (early, lifetime) in [(1, 61), (1_000_000, 61), (1_000_001, 62), (60_000_000, 120)] {
            let now = Time::from_micros(begins.as_micros() - early);
            let mut take = redis().encode_take(&check, begins, now);
            assert!(!take.is_direct(), "nothing to take");
            take.take_ahead(5, 4);
            let window = take.window.expect("a window");
            assert_eq!((window.start, window.hits), (begins, 0));
            assert_eq!(take.key, Key::from("key:180"));
            let lifetime = Some(lifetime);
            assert_eq!(take.lifetime().map(|lifetime| lifetime.secs), lifetime);
            assert!(!take.has_usage_of(now) && take.has_usage_of(begins));
        }
    }

    #[test]
    fn a_check_with_an_end_applies_before_it() {
        let terms = Terms::new(100, Unit::Minute, Algorithm::SlidingWindow);
        let limit = Limit::new(&terms).expect("a limit");
        let refund = Check::new(Key::from("key"), limit, Hits::Refund(1));
        let charge = Counter::charge(&limit, refund.call());
        let [before, end] = [9, 10].map(Time::from_micros);
        let mut encoded = redis().encode(&refund, charge, None, Mode::Independent, before);
        assert!(encoded.applies_at(end) && encoded.is_written(false));
        encoded.until(end);
        let applies = [before, end].map(|now| (encoded.applies_at(now), encoded.has_usage_of(now)));
        assert_eq!(applies, [(true, true), (false, false)]);
        assert!(!encoded.is_written(false), "it may have been too late");
    }
}
