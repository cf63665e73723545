//! Hands back to a server what was counted without it: by the trips that serve, over a connection of its own.

use std::sync::Arc;

use redis::RedisError;

use crate::check::Check;
use crate::store::redis::Redis;
use crate::store::redis::connection::Link;
use crate::store::redis::health::PROBE_TIMEOUT;
use crate::store::redis::node::Node;
use crate::store::redis::script::{Line, Manner};
use crate::store::redis::stand_in::{Creditor, Fate, Parcel};
use crate::store::redis::topology::{Layout, Pool};
use crate::store::redis::trip::{Back, Trip, Untold};
use crate::time::Time;

/// A server that answers again.
pub struct Returned<'r> {
    redis: &'r Redis,
    pool: &'r Pool,
    node: &'r Node,
    /// Made when it is needed.
    link: Option<Link>,
}

impl<'r> Returned<'r> {
    /// A server of that pool.
    pub fn new(redis: &'r Redis, pool: &'r Pool, node: &'r Node) -> Self {
        Self { redis, pool, node, link: None }
    }

    async fn call(&self, link: &mut Link, lines: &[Line], layout: &Layout) -> Result<Back, RedisError> {
        let clock = &self.redis.clock;
        let groups = [(Manner::Apart, lines)].into_iter();
        let trip = Trip::new(groups, layout.has_slots(), clock.is_manual().then(|| clock.now()));
        let back = trip.read(trip.send(link, || {}).await?)?;
        if !back.mends.is_empty() {
            // The replies are here all the same, and the next hit of that counter mends it.
            let _ = link.call(&back.mends).await;
        }
        Ok(back)
    }
}

impl Creditor for Returned<'_> {
    fn owns(&self, check: &Check) -> bool {
        let pool = self.redis.pool_of(check);
        std::ptr::eq(pool, self.pool) && self.redis.home(check).is_some_and(|home| home.id() == self.node.id())
    }

    fn now(&self) -> Time {
        self.node.clock.at(self.redis.clock.now())
    }

    async fn charge(&mut self, parcels: &[Parcel]) -> Vec<Fate> {
        let link = match self.link.take() {
            Some(link) => Some(link),
            None => self.node.manager().link_within(PROBE_TIMEOUT).await.ok(),
        };
        let Some(mut link) = link else { return vec![Fate::Unsent; parcels.len()] };
        let (redis, now) = (self.redis, self.redis.clock.now());
        let layout = Arc::clone(&self.pool.layout());
        let charges = parcels.iter().map(|Parcel { check, charge }| redis.line_charging(check, *charge, &layout, Manner::Apart, now));
        let lines: Vec<Line> = charges.collect();
        // Somebody may have it and somebody may not: nothing is sent twice.
        let Ok(back) = self.call(&mut link, &lines, &layout).await else { return vec![Fate::Lost; parcels.len()] };
        self.link = Some(link);
        let now = redis.clock.now();
        let fate = |(line, told): (&Line, Result<_, Untold>)| match told {
            Ok(said) => {
                redis.last_seen.remember(line.hash(), line.used(&said), now);
                Fate::Charged
            }
            Err(Untold::Elsewhere(_)) => {
                self.pool.doubt();
                Fate::Refused
            }
            Err(Untold::Wrong(_)) => Fate::Refused,
        };
        lines.iter().zip(back.told).map(fate).collect()
    }
}
