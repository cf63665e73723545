//! Opens the byte stream of a connection to Redis: over the network, or from a function.
//!
//! Everything that connects (calls, probes, heartbeats, discovery) goes through a [`Dialer`]. Tests
//! supply in-memory streams, which stay exact under a paused clock; sockets do not, because the
//! clock moves on while their bytes are on the way.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use crate::store::redis::connect::address::Address;
use crate::store::redis::connect::network::{self, Stream};

/// How byte streams to Redis are opened.
#[derive(Clone, Default)]
pub enum Dialer {
    /// By TCP, TLS or a Unix socket.
    #[default]
    Network,
    /// By a function of the address.
    Streams(Arc<dyn Fn(&Address) -> Dialing + Send + Sync>),
}

/// A stream that is being opened.
pub type Dialing = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

impl Dialer {
    /// Opens a stream. The caller bounds the time.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn open(&self, address: &Address) -> io::Result<Stream> {
        match self {
            Self::Network => network::open(address).await,
            Self::Streams(dial) => dial(address).await,
        }
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Network => "Network",
            Self::Streams(_) => "Streams",
        })
    }
}
