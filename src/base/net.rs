//! Connections to other processes: TLS, addresses and their resolution, HTTP requests.

pub(crate) mod client;
pub(crate) mod peers;
pub(crate) mod remote;
pub mod tls;
