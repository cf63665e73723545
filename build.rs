//! Compiles `proto/` to Rust and to the descriptor set that reflection and the JSON door read.
//!
//! protox stands in for `protoc`, so that a build needs nothing but cargo.

use std::env;
use std::error::Error;
use std::fs;
use std::path::PathBuf;

use prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR for a build script")?);

    // Everything else is reached by its imports.
    let descriptors = protox::compile(["envoy/service/ratelimit/v3/rls.proto"], ["proto"])?;
    fs::write(out.join("protos.bin"), descriptors.encode_to_vec())?;

    tonic_prost_build::configure()
        // No `connect()` in the client: it is for tests, which bring a channel of their own, and the server needs no tonic `channel`.
        .build_transport(false)
        // A refusal's body comes from a rule and goes out with every refusal: sharing it costs nothing, copying it would.
        .bytes(".envoy.service.ratelimit.v3.RateLimitResponse.raw_body")
        .include_file("protos.rs")
        .compile_fds(descriptors)?;
    Ok(())
}
