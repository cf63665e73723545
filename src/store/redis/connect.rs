//! Connections to Redis servers and sentinels: addresses, credentials, TLS and name resolution.

pub mod address;
pub mod connection;
pub mod credentials;
pub mod dialer;
pub mod lookup;
pub mod resolver;
pub mod tls;
