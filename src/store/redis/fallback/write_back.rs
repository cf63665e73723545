//! Sends pending hits to a server that is back: with the pipelines that serve, over a connection of
//! its own.

use std::sync::Arc;

use bb8_redis::redis::Pipeline;

use crate::base::time::Time;
use crate::limits::Limit;
use crate::limits::check::{Check, CheckError, Hits, Key, StoreError};
use crate::store::redis::client::decode::{CheckReply, ReplyError};
use crate::store::redis::client::encode::{EncodedCheck, Mode};
use crate::store::redis::client::pipeline::BatchRequest;
use crate::store::redis::client::repair::Repair;
use crate::store::redis::connect::connection::Connection;
use crate::store::redis::fallback::local::{WriteBack, WriteBackTarget};
use crate::store::redis::shared::Redis;
use crate::store::redis::topology::lifetimes::DueLifetime;
use crate::store::redis::topology::node::Node;
use crate::store::redis::topology::pool::NodePool;
use crate::store::redis::topology::snapshot::Topology;

/// Lifetimes to set in one call: error replies to all of them have less than `REPLY_BYTES_MAX`.
const LIFETIMES_PER_CALL_MAX: usize = 4_096;

/// A server of a pool.
pub(crate) struct ServerTarget<'r> {
    shared: &'r Redis,
    pool: &'r NodePool,
    node: &'r Node,
    /// Made by `connect`.
    connection: Option<Connection>,
}

impl<'r> ServerTarget<'r> {
    /// Nothing is connected yet.
    pub(crate) fn new(shared: &'r Redis, pool: &'r NodePool, node: &'r Node) -> Self {
        Self { shared, pool, node, connection: None }
    }

    /// Sets the unconfirmed lifetimes of the keys that the server has. `false` if it did not reply.
    pub(crate) async fn set_lifetimes(&mut self) -> bool {
        let lifetimes = &self.node.lifetimes;
        let clock = &self.shared.clock;
        let topology = Arc::clone(&self.pool.topology());
        let owner = |key: &Key| topology.owner(key.as_bytes()).map(|node| node.id);
        let due = lifetimes.due(clock.now(), |key| owner(key) == Some(self.node.id));
        if due.is_empty() {
            return true;
        }
        self.connect().await;
        let Some(mut connection) = self.connection.take() else {
            return false;
        };
        for due in due.chunks(LIFETIMES_PER_CALL_MAX) {
            let mut commands = Pipeline::with_capacity(due.len());
            for DueLifetime { lifetime, .. } in due {
                commands.add_command(Repair::expire(lifetime));
            }
            let Ok(replies) = connection.call(&commands).await else {
                return false;
            };
            let is_confirmed = replies.iter().any(Repair::is_confirmed);
            if is_confirmed {
                self.node.relocation.record_write(connection.id);
            }
            self.node.relocation.record_background(is_confirmed);
            lifetimes.record(due.iter().zip(&replies), clock.now());
        }
        self.connection = Some(connection);
        true
    }

    /// By the script where the server allows it: a plain command would overtake the refund of the
    /// same counter, and leave its lifetime to another command.
    fn encode(
        &self,
        WriteBack { check, charge }: &WriteBack,
        topology: &Topology,
        now: Time,
    ) -> EncodedCheck {
        let node = topology.owner(check.key.as_bytes());
        let mut encoded = self.shared.encode(check, *charge, node, Mode::Independent, now);
        if self.node.health.refusals.has_any() && encoded.is_direct() {
            encoded.expire_at_once();
        } else {
            encoded.use_script();
        }
        encoded
    }
}

impl WriteBackTarget for ServerTarget<'_> {
    fn owns(&self, key: &Key, limit: &Limit) -> bool {
        let check = Check::new(key.clone(), *limit, Hits::Peek);
        let node = || self.shared.node_of(&check);
        std::ptr::eq(self.shared.pool_of(limit), self.pool)
            && node().is_some_and(|node| node.id == self.node.id)
    }

    fn now(&self) -> Time {
        self.node.clock.at(self.shared.clock.now())
    }

    async fn connect(&mut self) -> bool {
        if self.connection.is_none() && self.node.relocation.may_connect(self.shared.clock.now()) {
            self.connection = self.node.connector.connect_background().await.ok();
        }
        self.connection.is_some()
    }

    async fn send(&mut self, write_backs: &[WriteBack]) -> Vec<Result<u64, CheckError>> {
        let Some(mut connection) = self.connection.take() else {
            return vec![Err(StoreError::Unreachable.not_counted()); write_backs.len()];
        };
        let (shared, now) = (self.shared, self.shared.clock.now());
        let topology = Arc::clone(&self.pool.topology());
        let checks: Vec<EncodedCheck> =
            write_backs.iter().map(|write_back| self.encode(write_back, &topology, now)).collect();
        let group = [(Mode::Independent, &checks[..])].into_iter();
        let request = BatchRequest::new(group, &[], self.node.has_slots, shared.clock_for_redis());
        let values = request.send(&mut connection, || {}).await;
        let Ok(reply) = values.and_then(|values| request.read(values)) else {
            return vec![Err(StoreError::Unreachable.maybe_counted()); write_backs.len()];
        };
        let relocation = &self.node.relocation;
        let is_executed = reply.replies.iter().any(Result::is_ok);
        relocation.record_background(is_executed);
        if reply.is_unwritable() {
            relocation.should_reconnect(connection.id, now);
        } else if is_executed {
            relocation.record_write(connection.id);
        }
        self.connection = Some(connection);
        let now = shared.clock.now();
        let outcome = |(check, reply): (&EncodedCheck, Result<CheckReply, ReplyError>)| match reply
        {
            Ok(reply) => {
                shared.usage.record(check.hash, reply.used(check), now);
                Ok(reply.spent())
            }
            Err(error) => Err(error.give_up(self.pool)),
        };
        checks.iter().zip(reply.replies).map(outcome).collect()
    }
}
