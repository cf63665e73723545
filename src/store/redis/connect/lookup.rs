//! A connection for look-ups, kept from one to the next.

use std::fmt;
use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::{Pipeline, RedisError, Value};
use tokio::sync::Mutex;

use crate::store::redis::connect::address::Address;
use crate::store::redis::connect::connection::{Connection, Connector};

/// How long one server is waited for while another may answer. Its connection goes on being made
/// for the next look-up.
pub const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// A connection to one server that is made when it is first needed. There is never more than one
/// attempt to make it.
pub struct LookupConnection {
    connector: Connector,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: Option<Connection>,
    /// An attempt whose caller has stopped waiting. The next call goes on with it.
    connecting: Option<BoxFuture<'static, Result<Connection, RedisError>>>,
}

impl LookupConnection {
    /// To the server that this connector connects to.
    pub fn new(connector: &Connector) -> Self {
        Self {
            connector: connector.uncounted(),
            state: Mutex::default(),
        }
    }

    /// Where it connects to.
    pub fn address(&self) -> &Address {
        self.connector.address()
    }

    /// Closes the connection, and gives up an attempt to make it, unless somebody waits for it.
    pub fn close(&self) {
        if let Ok(mut state) = self.state.try_lock() {
            *state = State::default();
        }
    }

    /// Sends commands that change nothing, and waits for their replies.
    ///
    /// # Errors
    /// There is no connection, or it breaks before the replies are there.
    pub async fn call(&self, commands: &Pipeline) -> Result<Vec<Value>, RedisError> {
        let mut state = self.state.lock().await;
        if let Some(mut connection) = state.open.take() {
            match connection.call(commands).await {
                // The server may have closed it long ago.
                Err(error) if !error.is_timeout() => {}
                replies => {
                    state.open = replies.is_ok().then_some(connection);
                    return replies;
                }
            }
        }
        let connector = &self.connector;
        let connecting = state.connecting.get_or_insert_with(|| {
            let connector = connector.clone();
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
        formatter
            .debug_tuple("LookupConnection")
            .field(self.address())
            .finish()
    }
}
