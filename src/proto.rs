//! What goes over the wire: the Rust form of `proto/`, as `build.rs` generates it, and the
//! descriptors of the same files.
//!
//! There is nothing else here, so that whoever looks for a field's meaning goes to `proto/`.
//! Modules follow the packages: [`envoy::service::ratelimit::v3`] has the call,
//! [`envoy::extensions::common::ratelimit::v3`] what is charged.

#![expect(
    missing_docs,
    reason = "generated: modules and helpers come without docs; messages and fields are explained in proto/"
)]
#![allow(
    clippy::all,
    clippy::pedantic,
    clippy::nursery,
    clippy::restriction,
    reason = "generated: its looks are not ours to choose"
)]

include!(concat!(env!("OUT_DIR"), "/protos.rs"));

/// `proto/` and what it imports, comments included, as an encoded
/// `google.protobuf.FileDescriptorSet`: for reflection and JSON.
pub const DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/protos.bin"));
