//! Rules from a control plane by xDS (aggregated, state of the world).
//!
//! ```text
//!   connect --> request --> response --> compile --> ACK, or NACK with all errors
//!      ^                        ^                       |
//!      |                        +-----------------------+
//!      +-- back off <-- the stream or the connection ended
//! ```
//!
//! [`client`] runs this on a thread of its own, so that compiling delays no request; [`stream`] is
//! the connection; [`updates`] publishes responses and decides the replies. While the control plane
//! is unavailable the last good configuration serves.

pub(crate) mod client;
mod convert;
pub(crate) mod settings;
mod size;
pub(crate) mod stream;
pub(crate) mod updates;
