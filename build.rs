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

    // Everything else is reached by their imports. Reflection and JSON speak of what is served, and not of where rules come from.
    let served = "envoy/service/ratelimit/v3/rls.proto";
    fs::write(out.join("protos.bin"), protox::compile([served], ["proto"])?.encode_to_vec())?;
    let asked = ["envoy/service/discovery/v3/ads.proto", "ratelimit/config/ratelimit/v3/rls_conf.proto"];
    let descriptors = protox::compile([served].into_iter().chain(asked), ["proto"])?;

    tonic_prost_build::configure()
        // No `connect()` in the clients: whoever has one brings a channel of his own.
        .build_transport(false)
        // A refusal's body comes from a rule and goes out with every refusal: sharing it costs nothing, copying it would.
        .bytes(".envoy.service.ratelimit.v3.RateLimitResponse.raw_body")
        .include_file("protos.rs")
        .compile_fds(descriptors)?;
    Ok(())
}
