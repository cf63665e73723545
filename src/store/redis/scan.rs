//! Reads the names of counters in Redis, a few at a time.

use std::sync::Arc;

use bb8_redis::redis::{self, Pipeline, Value};

use crate::base::time::{Span, Time};
use crate::store::redis::connect::connection::Connection;
use crate::store::redis::shared::Redis;
use crate::store::redis::topology::clock::time;
use crate::store::redis::topology::node::Node;

/// Keys that a server looks at in a call, which its other calls wait for: 60 µs on Redis 7.0 with a
/// million keys (`cmdstat_scan` of INFO). With fewer a list takes longer: each call has a round
/// trip.
const COUNT: u32 = 100;

/// A walk through the keys of all servers. It has a connection of its own.
#[derive(Debug)]
pub(crate) struct Scan {
    /// Those that are not read to the end.
    nodes: Vec<Arc<Node>>,
    connection: Option<Connection>,
    cursor: u64,
    pattern: Vec<u8>,
}

impl Redis {
    /// The time of the servers, which cuts windows.
    pub(crate) fn scan_time(&self) -> Time {
        let now = self.clock.now();
        let topology = self.main.topology();
        let node = topology.nodes.first();
        node.map_or(now, |node| node.clock.at(now))
    }

    /// A walk through the keys that begin and end like this.
    pub(crate) fn scan(&self, start: &[u8], end: &[u8]) -> Scan {
        let nodes = self.pools().flat_map(|pool| pool.topology().nodes.clone());
        Scan {
            nodes: nodes.collect(),
            connection: None,
            cursor: 0,
            pattern: [&escaped(start), &b"*"[..], &escaped(end)].concat(),
        }
    }
}

impl Scan {
    /// The next names, in no order and some of them twice, and how long the server looked for them;
    /// `None` at the end.
    ///
    /// # Errors
    /// A server did not reply, or rejected the command.
    pub(crate) async fn next(&mut self) -> Option<Result<(Vec<Vec<u8>>, Span), String>> {
        let node = self.nodes.last()?.clone();
        let read = self.read(&node).await;
        Some(read.map_err(|error| node.address().explain(&error)))
    }

    async fn read(&mut self, node: &Node) -> Result<(Vec<Vec<u8>>, Span), redis::RedisError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            closed => closed.insert(node.connector.uncounted().connect_background().await?),
        };
        let mut commands = Pipeline::with_capacity(3);
        let scan = commands.cmd("TIME").cmd("SCAN").arg(self.cursor);
        scan.arg("MATCH").arg(&self.pattern).arg("COUNT").arg(COUNT);
        commands.cmd("TIME");
        let (mut names, mut took) = (Vec::new(), Span::ZERO);
        if let Ok([before, found, after]) = <[Value; 3]>::try_from(connection.ask(&commands).await?)
        {
            (self.cursor, names) = redis::from_redis_value(found)?;
            took = time(&after)
                .zip(time(&before))
                .map_or(took, |(after, before)| after.since(before));
        }
        if self.cursor == 0 {
            self.nodes.pop();
            self.connection = None;
        }
        Ok((names, took))
    }
}

/// A text as a pattern of Redis.
fn escaped(text: &[u8]) -> Vec<u8> {
    let mut pattern = Vec::with_capacity(text.len());
    for &byte in text {
        if b"*?[]\\^-".contains(&byte) {
            pattern.push(b'\\');
        }
        pattern.push(byte);
    }
    pattern
}
