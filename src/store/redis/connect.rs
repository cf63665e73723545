//! Connections to Redis servers and sentinels: addresses, credentials, TLS, name
//! resolution, and the bound on what is read from them.

pub mod address;
pub(crate) mod connection;
pub(crate) mod connection_metrics;
pub mod credentials;
pub mod dialer;
pub(crate) mod lookup;
pub mod network;
pub mod parse;
pub(crate) mod relocation;
pub(crate) mod reply_bound;
pub(crate) mod subscription;
pub(crate) mod tls;
