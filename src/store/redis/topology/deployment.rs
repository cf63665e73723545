//! How the servers of one Redis belong together: one alone, one of several that Sentinel names, or
//! a Cluster.

use std::fmt;

use crate::store::redis::connect::address::Address;
use crate::time::Span;

/// One Redis to count on, however many servers it has. There may be a second one, for limits whose
/// period is a second.
#[derive(Debug, Clone)]
pub struct PoolOptions {
    /// Its servers, and how to be let in.
    ///
    /// Credentials and certificates may change while the process lives. An address knows the
    /// newest, so whoever connects asks it for its
    /// [`connection_info`](Address::connection_info) each time, and keeps none.
    pub deployment: Deployment,
    /// How long making a connection may take.
    pub connect_timeout: Span,
}

/// The servers to count on, as an operator names them.
#[derive(Debug, Clone)]
pub enum Deployment {
    /// One, at a place that does not change.
    Single(Address),
    /// The master that Sentinel names, wherever that is at the moment.
    Sentinel(SentinelConfig),
    /// A Redis Cluster: some of its nodes, which know the others. At least one.
    Cluster(Vec<Address>),
}

/// Who knows where the master is.
#[derive(Debug, Clone)]
pub struct SentinelConfig {
    /// What the sentinels call it.
    pub master: String,
    /// Where they are, and how to be let in by them. At least one.
    pub sentinels: Vec<Address>,
    /// How to be let in by the master; its place is what the sentinels say.
    pub server: Address,
}

impl Deployment {
    /// The number of the database in which counters are.
    pub fn database(&self) -> i64 {
        match self {
            Self::Single(address) => address.database(),
            Self::Sentinel(sentinels) => sentinels.server.database(),
            Self::Cluster(_) => 0,
        }
    }
}

impl fmt::Display for Deployment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single(address) => write!(formatter, "{address}"),
            Self::Sentinel(SentinelConfig {
                master, sentinels, ..
            }) => write!(
                formatter,
                "{master} of the sentinels at {}",
                List(sentinels)
            ),
            Self::Cluster(seeds) => write!(formatter, "the cluster of {}", List(seeds)),
        }
    }
}

/// Addresses with commas between them.
struct List<'a>(&'a [Address]);

impl fmt::Display for List<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, address) in self.0.iter().enumerate() {
            write!(formatter, "{}{address}", if index > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}
