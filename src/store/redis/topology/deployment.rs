//! A Redis deployment as configured: one server, a master behind Sentinel, or a Cluster.

use std::fmt;

use crate::base::time::Span;
use crate::store::redis::connect::address::Address;

/// A deployment and how to connect to it.
#[derive(Debug, Clone)]
pub struct PoolOptions {
    /// The servers and their credentials.
    pub deployment: Deployment,
    /// How long connecting may take.
    pub connect_timeout: Span,
}

/// The servers as configured.
#[derive(Debug, Clone)]
pub enum Deployment {
    /// A single server.
    Single(Address),
    /// The master that Sentinel names.
    Sentinel(SentinelConfig),
    /// At least one node of a cluster.
    Cluster(Vec<Address>),
}

/// A master and its sentinels.
#[derive(Debug, Clone)]
pub struct SentinelConfig {
    /// The name of the master.
    pub master: String,
    /// At least one.
    pub sentinels: Vec<Address>,
    /// Credentials of the master; the sentinels name its endpoint.
    pub server: Address,
}

impl Deployment {
    /// The database that has the counters.
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
        let list = |addresses: &[Address]| {
            let addresses = addresses.iter().map(Address::to_string);
            addresses.collect::<Vec<_>>().join(", ")
        };
        match self {
            Self::Single(address) => write!(formatter, "{address}"),
            Self::Sentinel(SentinelConfig { master, sentinels, .. }) => {
                write!(formatter, "{master} of the sentinels at {}", list(sentinels))
            }
            Self::Cluster(seeds) => write!(formatter, "the cluster of {}", list(seeds)),
        }
    }
}
