//! `proto/generated/` is generated from the definitions in `proto/`, so a build needs no compiler of
//! protobuf. `make generated-protos` rewrites it; this test fails while it is out of date.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use prost::Message as _;
use protox::prost_reflect::prost_types::field_descriptor_proto::Type;
use protox::prost_reflect::prost_types::{DescriptorProto, FileDescriptorSet};
use tempfile::TempDir;

/// Reflection and JSON have what is served. Its imports are compiled with it.
const SERVED: &str = "envoy/service/ratelimit/v3/rls.proto";

/// Where rules come from, and what is exported.
const CALLED: [&str; 4] = [
    "envoy/service/discovery/v3/ads.proto",
    "ratelimit/config/ratelimit/v3/rls_conf.proto",
    "opentelemetry/proto/collector/metrics/v1/metrics_service.proto",
    "opentelemetry/proto/collector/trace/v1/trace_service.proto",
];

/// Fields that are `Vec<u8>` in Rust, whatever `proto/` says. On the wire a `string`, a `bytes` and
/// a message are the same.
///
/// - Strings of a request come from clients, and some are not UTF-8, such as the value of a header.
///   Calls are decoded without this type, by `src/api/decode.rs`; recorded requests and tests have
///   it, with the same texts.
/// - Strings of rules are checked where the rule can be named.
/// - A resource, and what is sent back as it came, must not make the whole response of a control
///   plane unreadable.
const READ_AS_BYTES: [&str; 15] = [
    "envoy.service.ratelimit.v3.RateLimitRequest.domain",
    "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry.key",
    "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry.value",
    "ratelimit.config.ratelimit.v3.RateLimitConfig.name",
    "ratelimit.config.ratelimit.v3.RateLimitConfig.domain",
    "ratelimit.config.ratelimit.v3.RateLimitDescriptor.key",
    "ratelimit.config.ratelimit.v3.RateLimitDescriptor.value",
    "ratelimit.config.ratelimit.v3.RateLimitPolicy.name",
    "ratelimit.config.ratelimit.v3.RateLimitReplace.name",
    "envoy.service.discovery.v3.DiscoveryResponse.version_info",
    "envoy.service.discovery.v3.DiscoveryResponse.resources",
    "envoy.service.discovery.v3.DiscoveryResponse.type_url",
    "envoy.service.discovery.v3.DiscoveryResponse.nonce",
    "envoy.service.discovery.v3.DiscoveryRequest.version_info",
    "envoy.service.discovery.v3.DiscoveryRequest.response_nonce",
];

#[test]
fn generated_protos_are_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let committed = root.join("proto/generated");
    let generated = TempDir::new().expect("a folder");
    generate(&root.join("proto"), generated.path());
    if std::env::var_os("REWRITE").is_some() {
        fs::remove_dir_all(&committed).expect("it is a folder");
        fs::create_dir(&committed).expect("it was removed");
        for (name, content) in files(generated.path()) {
            fs::write(committed.join(name), content).expect("it can be written");
        }
    }
    let (expected, found) = (files(generated.path()), files(&committed));
    let names = expected.keys().chain(found.keys());
    let stale: BTreeSet<_> = names
        .filter(|name| expected.get(*name) != found.get(*name))
        .collect();
    assert!(
        stale.is_empty(),
        "{stale:?} in proto/generated are out of date; run `make generated-protos`"
    );
}

fn generate(proto: &Path, into: &Path) {
    let served = protox::compile([SERVED], [proto]).expect("it is valid");
    fs::write(into.join("served.bin"), served.encode_to_vec()).expect("it can be written");
    let all = [SERVED].into_iter().chain(CALLED);
    let mut descriptors = protox::compile(all, [proto]).expect("they are valid");
    read_as_bytes(&mut descriptors);
    tonic_prost_build::configure()
        // No `connect()` in the clients: each is given a channel.
        .build_transport(false)
        // The body is from a rule and is sent with every OVER_LIMIT response: sharing it costs
        // nothing, copying it would.
        .bytes(".envoy.service.ratelimit.v3.RateLimitResponse.raw_body")
        .out_dir(into)
        .include_file("mod.rs")
        .compile_fds(descriptors)
        .expect("they can be generated");
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).expect("it is a folder");
    let paths = entries.map(|entry| entry.expect("it can be read").path());
    paths
        .map(|path| {
            let name = path.file_name().expect("a file").to_string_lossy();
            (name.into_owned(), fs::read(&path).expect("it can be read"))
        })
        .collect()
}

/// Gives the fields of [`READ_AS_BYTES`] their type.
fn read_as_bytes(descriptors: &mut FileDescriptorSet) {
    let mut missing = BTreeSet::from(READ_AS_BYTES);
    for file in &mut descriptors.file {
        let package = file.package().to_owned();
        for message in &mut file.message_type {
            read_fields_as_bytes(message, &package, &mut missing);
        }
    }
    assert!(missing.is_empty(), "no such fields: {missing:?}");
}

fn read_fields_as_bytes(message: &mut DescriptorProto, parent: &str, missing: &mut BTreeSet<&str>) {
    let name = format!("{parent}.{}", message.name());
    for field in &mut message.field {
        if missing.remove(&*format!("{name}.{}", field.name())) {
            field.set_type(Type::Bytes);
            field.type_name = None;
        }
    }
    for nested in &mut message.nested_type {
        read_fields_as_bytes(nested, &name, missing);
    }
}
