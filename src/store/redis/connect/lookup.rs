//! A connection for discovery, kept open from one use to the next.

use std::fmt;
use std::time::Duration;

use bb8_redis::redis::{Pipeline, RedisError, Value};
use futures_util::future::BoxFuture;
use tokio::sync::Mutex;

use crate::store::redis::connect::address::Address;
use crate::store::redis::connect::connection::{Connection, Connector};

/// Time that discovery waits for one server while another may reply. Its connection attempt
/// continues for the next discovery.
// bound lookup_timeout: the next server is asked; tollgate_store_topology_failures_total
pub(crate) const LOOKUP_TIMEOUT: Duration = Duration::from_millis(500);

/// Connects on first use; there is at most one attempt at a time.
pub(crate) struct LookupConnection {
    connector: Connector,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: Option<Connection>,
    /// An attempt that outlived its caller; the next call continues it.
    connecting: Option<BoxFuture<'static, Result<Connection, RedisError>>>,
}

impl LookupConnection {
    pub(crate) fn new(connector: &Connector) -> Self {
        Self { connector: connector.for_discovery(), state: Mutex::default() }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.connector.address
    }

    /// Closes the connection and cancels an attempt, unless a caller waits for it.
    pub(crate) fn close(&self) {
        if let Ok(mut state) = self.state.try_lock() {
            *state = State::default();
        }
    }

    /// Sends commands that only read, because they may be sent twice.
    ///
    /// # Errors
    /// Connecting failed, or the connection broke.
    pub(crate) async fn call(&self, commands: &Pipeline) -> Result<Vec<Value>, RedisError> {
        let mut state = self.state.lock().await;
        if let Some(mut connection) = state.open.take() {
            match connection.call(commands).await {
                // The server may have closed it long ago: connect again.
                Err(error) if !error.is_timeout() => {}
                replies => {
                    state.open = replies.is_ok().then_some(connection);
                    return replies;
                }
            }
        }
        let connecting = state.connecting.get_or_insert_with(|| {
            let connector = self.connector.clone();
            Box::pin(async move { connector.connect_background().await })
        });
        let connected = connecting.await;
        state.connecting = None;
        let mut connection = connected?;
        let replies = connection.call(commands).await?;
        state.open = Some(connection);
        Ok(replies)
    }
}

impl fmt::Debug for LookupConnection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("LookupConnection").field(self.address()).finish()
    }
}
