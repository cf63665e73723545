//! Sends pending hits to a server that is back: with the pipelines that serve, over a connection of
//! its own.

use std::sync::Arc;

use redis::RedisError;

use crate::check::{Check, Hits, Key};
use crate::limit::Limit;
use crate::store::redis::Redis;
use crate::store::redis::connect::connection::Connection;
use crate::store::redis::fallback::local::{WriteBack, WriteBackOutcome, WriteBackTarget};
use crate::store::redis::script::{EncodedCheck, Mode, Repair, WindowCommand};
use crate::store::redis::topology::node::Node;
use crate::store::redis::topology::pool::NodePool;
use crate::store::redis::topology::snapshot::Topology;
use crate::store::redis::trip::{BatchReply, BatchRequest, ReplyError};
use crate::time::Time;

/// One server of a pool.
pub struct ServerTarget<'r> {
    redis: &'r Redis,
    pool: &'r NodePool,
    node: &'r Node,
    /// Made when it is needed.
    connection: Option<Connection>,
}

impl<'r> ServerTarget<'r> {
    /// Nothing is connected yet.
    pub fn new(redis: &'r Redis, pool: &'r NodePool, node: &'r Node) -> Self {
        Self {
            redis,
            pool,
            node,
            connection: None,
        }
    }

    /// Repairs keys. `false` if the server did not reply.
    pub async fn repair(&mut self, repairs: &[Repair]) -> bool {
        let Some(mut connection) = self.connection().await else {
            return false;
        };
        let has_replied = connection.call(&Repair::commands(repairs)).await.is_ok();
        self.connection = has_replied.then_some(connection);
        has_replied
    }

    async fn connection(&mut self) -> Option<Connection> {
        match self.connection.take() {
            Some(connection) => Some(connection),
            None if !self.node.relocation.may_connect(self.redis.clock.now()) => None,
            None => self.node.connector().connect_background().await.ok(),
        }
    }

    async fn call(
        &self,
        connection: &mut Connection,
        lines: &[EncodedCheck],
        topology: &Topology,
    ) -> Result<BatchReply, RedisError> {
        let clock = &self.redis.clock;
        let trip = BatchRequest::new(
            [(Mode::Independent, lines)].into_iter(),
            topology.has_slots(),
            clock.is_manual().then(|| clock.now()),
        );
        trip.read(trip.send(connection, || {}).await?)
    }

    /// Always by the script: a plain command would overtake the refund of the same counter, and
    /// leave its lifetime to another command.
    fn line(
        &self,
        WriteBack { check, charge }: &WriteBack,
        topology: &Topology,
        now: Time,
    ) -> EncodedCheck {
        let mut line = self
            .redis
            .line_charging(check, *charge, topology, Mode::Independent, now);
        line.set_command(WindowCommand::Script);
        line
    }
}

impl WriteBackTarget for ServerTarget<'_> {
    fn owns(&self, key: &Key, limit: &Limit) -> bool {
        let check = Check::new(key.clone(), *limit, Hits::Peek);
        let pool = self.redis.pool_of(&check);
        std::ptr::eq(pool, self.pool)
            && self
                .redis
                .home(&check)
                .is_some_and(|home| home.id() == self.node.id())
    }

    fn now(&self) -> Time {
        self.node.clock.at(self.redis.clock.now())
    }

    async fn send(&mut self, write_backs: &[WriteBack]) -> Vec<WriteBackOutcome> {
        let Some(mut connection) = self.connection().await else {
            return vec![WriteBackOutcome::NotSent; write_backs.len()];
        };
        let (redis, now) = (self.redis, self.redis.clock.now());
        let topology = Arc::clone(&self.pool.topology());
        let lines: Vec<EncodedCheck> = write_backs
            .iter()
            .map(|write_back| self.line(write_back, &topology, now))
            .collect();
        let Ok(back) = self.call(&mut connection, &lines, &topology).await else {
            return vec![WriteBackOutcome::Unknown; write_backs.len()];
        };
        if back.is_misplaced() {
            self.node.relocation.leaves(connection.id(), now);
        } else if back.told.iter().any(Result::is_ok) {
            self.node.relocation.counted(connection.id());
        }
        self.connection = Some(connection);
        let now = redis.clock.now();
        let outcome = |(line, told): (&EncodedCheck, Result<_, ReplyError>)| match told {
            Ok(said) => {
                redis.last_seen.record(line.hash(), line.used(&said), now);
                WriteBackOutcome::Written
            }
            Err(ReplyError::Elsewhere(_)) => {
                self.pool.request_refresh();
                WriteBackOutcome::Rejected
            }
            Err(ReplyError::Wrong(_)) => WriteBackOutcome::Rejected,
        };
        lines.iter().zip(back.told).map(outcome).collect()
    }
}
