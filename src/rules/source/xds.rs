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

use crate::rules::config::{self, CompileOptions, Loaded};
use crate::rules::source::xds::convert::Resource;
use crate::rules::source::xds::size::DECODED_BYTES_MAX;

pub(crate) mod client;
mod codec;
mod convert;
pub(crate) mod settings;
mod size;
pub(crate) mod stream;
pub(crate) mod updates;

/// Decodes and compiles a resource, as each of a response is.
///
/// # Errors
/// It cannot be decoded, or is invalid.
pub fn load(resource: &[u8], options: &CompileOptions) -> Result<Loaded, Vec<String>> {
    let mut bytes_left = DECODED_BYTES_MAX;
    let resource = Resource::read(resource, &mut bytes_left);
    let resource = resource.map_err(|problem| vec![problem])?;
    let _canonical = resource.bytes();
    let loaded = config::load_inputs(&[resource], options);
    loaded.map_err(|found| found.iter().map(ToString::to_string).collect())
}
