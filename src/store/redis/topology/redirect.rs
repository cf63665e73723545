//! Redirections of a cluster: error replies for keys that are on another node.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::store::redis::topology::cluster::Endpoint;

/// Where to send a command instead. The node did nothing, so it is not executed twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Redirect {
    /// The slot has moved.
    Moved(Endpoint),
    /// The slot is migrating, and the key is on the new node or on none.
    Ask(Endpoint),
    /// TRYAGAIN: the slot is migrating and its keys are split between nodes. Send each command on
    /// its own.
    Again,
}

impl Redirect {
    /// `None` for any other error.
    pub fn read(error: &RedisError) -> Option<Self> {
        let endpoint = || {
            let (endpoint, _) = error.redirect_node()?;
            Endpoint::read(endpoint)
        };
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::Moved) => endpoint().map(Self::Moved),
            ErrorKind::Server(ServerErrorKind::Ask) => endpoint().map(Self::Ask),
            ErrorKind::Server(ServerErrorKind::TryAgain) => Some(Self::Again),
            _ => None,
        }
    }
}
