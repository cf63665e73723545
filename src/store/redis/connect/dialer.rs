//! Opens the byte stream of a connection to Redis: over the network, or from a function.
//!
//! Everything that connects (calls, probes, heartbeats, discovery) goes through a [`Dialer`]. Tests
//! supply in-memory streams, which stay exact under a paused clock; sockets do not, because the
//! clock moves on while their bytes are on the way.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::{AsyncStream, MultiplexedConnection, PubSub};
use redis::{AsyncConnectionConfig, Client, RedisError};

use crate::store::redis::connect::address::Address;
use crate::store::redis::connect::resolver::Resolver;

/// How byte streams to Redis are opened.
#[derive(Clone)]
pub enum Dialer {
    /// By TCP, TLS or a Unix socket.
    Network(Resolver),
    /// By a function of the address.
    Streams(Arc<dyn Fn(&Address) -> Dialing + Send + Sync>),
}

/// A stream that is being opened.
pub type Dialing = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

/// An open stream.
pub type Stream = Pin<Box<dyn AsyncStream + Send + Sync>>;

impl Dialer {
    /// A connection for commands, with the current credentials and certificates. Its calls have no
    /// time-out yet.
    ///
    /// # Errors
    /// Connecting failed, timed out or was not authorized.
    pub(crate) async fn connect(
        &self,
        address: &Address,
        within: Duration,
    ) -> Result<MultiplexedConnection, RedisError> {
        let info = address.connection_info();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(within))
            .set_response_timeout(None);
        match self {
            Self::Network(resolver) => {
                let config = config.set_dns_resolver(resolver.clone());
                Client::open(info)?
                    .get_multiplexed_async_connection_with_config(&config)
                    .await
            }
            Self::Streams(dial) => {
                let connecting = async {
                    MultiplexedConnection::new_with_config(
                        info.redis_settings(),
                        dial(address).await?,
                        config,
                    )
                    .await
                };
                let timed_out = |_| Err(io::Error::from(io::ErrorKind::TimedOut).into());
                let (connection, driver) = tokio::time::timeout(within, connecting)
                    .await
                    .unwrap_or_else(timed_out)?;
                #[expect(
                    clippy::disallowed_methods,
                    reason = "ends with the last clone of its connection"
                )]
                tokio::spawn(driver);
                Ok(connection)
            }
        }
    }

    /// A connection for subscriptions. The caller bounds the time.
    ///
    /// # Errors
    /// Connecting failed or was not authorized.
    pub(crate) async fn connect_to_subscribe(
        &self,
        address: &Address,
    ) -> Result<PubSub, RedisError> {
        let info = address.connection_info();
        match self {
            Self::Network(resolver) => {
                // The client accepts no resolver here. Its own blocking look-up starts only after
                // this one has succeeded, so they do not pile up either.
                if let Some(host) = address.host() {
                    resolver.addresses(host).await?;
                }
                Client::open(info)?.get_async_pubsub().await
            }
            Self::Streams(dial) => PubSub::new(info.redis_settings(), dial(address).await?).await,
        }
    }
}

impl Default for Dialer {
    fn default() -> Self {
        Self::Network(Resolver::default())
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Network(_) => "Network",
            Self::Streams(_) => "Streams",
        })
    }
}
