//! What a node of a cluster says when a key is not, or not wholly, with it.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::store::redis::topology::cluster::Endpoint;

/// Where to go instead. Nothing was done yet, so whatever is sent there is not sent twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Redirect {
    /// The slot lives there now.
    Moved(Endpoint),
    /// The slot is on its way there, and this key has arrived, or was never anywhere.
    Ask(Endpoint),
    /// Of several keys of a slot that is on its way some have arrived: each is to come alone.
    Again,
}

impl Redirect {
    /// Reads it from an error; any other one is none.
    pub fn read(error: &RedisError) -> Option<Self> {
        let endpoint = || {
            error
                .redirect_node()
                .and_then(|(endpoint, _)| Endpoint::read(endpoint))
        };
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::Moved) => endpoint().map(Self::Moved),
            ErrorKind::Server(ServerErrorKind::Ask) => endpoint().map(Self::Ask),
            ErrorKind::Server(ServerErrorKind::TryAgain) => Some(Self::Again),
            _ => None,
        }
    }
}
