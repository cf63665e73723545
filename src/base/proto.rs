//! The protobuf messages and services of `proto/`, and their descriptors, as `build.rs` generates
//! them with tonic-prost-build.
//!
//! The fields are documented in `proto/`. Modules follow the packages:
//! [`envoy::service::ratelimit::v3`] has ShouldRateLimit,
//! [`envoy::extensions::common::ratelimit::v3`] its descriptors.

#![expect(
    missing_docs,
    reason = "generated: modules and helpers come without docs; messages and fields are explained in proto/"
)]
#![allow(
    clippy::all,
    clippy::pedantic,
    clippy::nursery,
    clippy::restriction,
    reason = "generated: generated code has its own style"
)]

include!(concat!(env!("OUT_DIR"), "/protos.rs"));

/// `proto/` and what it imports, comments included, as an encoded
/// `google.protobuf.FileDescriptorSet`: for reflection and JSON.
pub const DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/served.bin"));
