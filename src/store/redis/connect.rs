//! Connections to Redis servers and sentinels: addresses, credentials, TLS and name resolution.

pub mod address;
pub(crate) mod connection;
pub mod credentials;
pub mod dialer;
pub(crate) mod lookup;
pub mod parse;
pub(crate) mod relocation;
pub(crate) mod resolver;
pub(crate) mod tls;
