//! Generates the messages and services of `proto/`, renders `docs/operations.md` as the runbook of
//! the console, and has `check --environment` read what pages say of settings and of Redis' commands.

use std::collections::BTreeSet;
use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use protox::Compiler;
use protox::prost_reflect::prost_types::field_descriptor_proto::Type;
use protox::prost_reflect::prost_types::{DescriptorProto, FileDescriptorSet};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd, html};

/// Reflection and JSON have what is served. Its imports are compiled with it.
const SERVED: &str = "envoy/service/ratelimit/v3/rls.proto";

/// Where rules come from.
const CALLED: [&str; 2] =
    ["envoy/service/discovery/v3/ads.proto", "ratelimit/config/ratelimit/v3/rls_conf.proto"];

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

fn main() -> Result<(), Box<dyn Error>> {
    describe_build()?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR for a build script")?);
    generate(&out)?;
    println!("cargo:rerun-if-changed=docs/operations.md");
    let page = fs::read_to_string("docs/operations.md")?;
    fs::write(out.join("operations.html"), rendered(&page))?;
    for (page, table, headings) in [
        ("compatibility", "settings", "| setting | default | here |"),
        ("redis", "commands", "| commands | used for |"),
    ] {
        let page = format!("docs/{page}.md");
        println!("cargo:rerun-if-changed={page}");
        let rows = rows(&fs::read_to_string(&page)?, headings);
        if rows.is_empty() {
            return Err(format!("{page} has no table {headings}").into());
        }
        fs::write(out.join(format!("{table}.rs")), format!("&{rows:?}").replace("[\"", "&[\""))?;
    }
    Ok(())
}

/// Writes what `src/base/proto.rs` includes, by a compiler in Rust, so that a build needs no protoc.
fn generate(out: &Path) -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let mut served = compiler()?;
    served.open_file(SERVED)?;
    fs::write(out.join("served.bin"), served.encode_file_descriptor_set())?;
    let mut all = compiler()?;
    all.open_files([SERVED].into_iter().chain(CALLED))?;
    let mut descriptors = all.file_descriptor_set();
    read_as_bytes(&mut descriptors)?;
    tonic_prost_build::configure()
        // No `connect()` in the clients: each is given a channel.
        .build_transport(false)
        // The body is from a rule and is sent with every OVER_LIMIT response: sharing it costs
        // nothing, copying it would.
        .bytes(".envoy.service.ratelimit.v3.RateLimitResponse.raw_body")
        .include_file("protos.rs")
        .compile_fds(descriptors)?;
    generate_server(&out.join("server"), served.file_descriptor_set())
}

/// The service that `src/api/rls.rs` implements. Its requests are the bytes of their messages, by a
/// codec of our own; the client and the server above have prost's messages.
fn generate_server(out: &Path, served: FileDescriptorSet) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(out)?;
    tonic_prost_build::configure()
        .build_client(false)
        .build_transport(false)
        .codec_path("crate::api::codec::RateLimitCodec")
        .extern_path(".envoy.service.ratelimit.v3.RateLimitRequest", "::prost::bytes::Bytes")
        .extern_path(".envoy", "crate::base::proto::envoy")
        .out_dir(out)
        .compile_fds(served)?;
    Ok(())
}

fn compiler() -> Result<Compiler, protox::Error> {
    let mut compiler = Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(true);
    Ok(compiler)
}

/// Gives the fields of [`READ_AS_BYTES`] their type.
fn read_as_bytes(descriptors: &mut FileDescriptorSet) -> Result<(), String> {
    let mut missing = BTreeSet::from(READ_AS_BYTES);
    for file in &mut descriptors.file {
        let package = file.package().to_owned();
        for message in &mut file.message_type {
            read_fields_as_bytes(message, &package, &mut missing);
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(format!("proto/ has no such fields: {missing:?}")) }
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

/// The cells of all tables of a page whose headings begin with these, as plain text.
fn rows(page: &str, headings: &str) -> Vec<Vec<String>> {
    let mut is_in = false;
    let rows = page.lines().filter(|line| {
        is_in = line.starts_with(headings) || is_in && line.starts_with('|');
        is_in && !line.starts_with(headings) && !line.starts_with("|---")
    });
    rows.map(|row| row.trim_matches('|').split('|').map(plain).collect()).collect()
}

/// Markdown without its code and links.
fn plain(cell: &str) -> String {
    let events = Parser::new(cell).filter_map(|event| match event {
        Event::Text(text) | Event::Code(text) => Some(text.to_string()),
        Event::SoftBreak => Some(" ".to_owned()),
        _ => None,
    });
    events.collect()
}

/// Sets the variables that `src/report/build.rs` reads.
fn describe_build() -> Result<(), Box<dyn Error>> {
    let rustc = Command::new(env::var("RUSTC")?).arg("--version").output()?;
    let rustc = String::from_utf8(rustc.stdout)?;
    println!("cargo:rustc-env=TOLLGATE_RUSTC={}", rustc.trim());
    for (name, source) in [
        ("TOLLGATE_PROFILE", "PROFILE"),
        ("TOLLGATE_TARGET", "TARGET"),
        ("TOLLGATE_FEATURES", "CARGO_CFG_TARGET_FEATURE"),
    ] {
        println!("cargo:rustc-env={name}={}", env::var(source)?);
    }
    Ok(())
}

/// The HTML of a page on its own: headings have the anchors of GitHub, links to other pages and
/// images are text.
fn rendered(page: &str) -> String {
    let mut is_kept = true;
    let events = Parser::new_ext(page, Options::ENABLE_TABLES).filter(|event| match event {
        Event::Start(Tag::Link { dest_url, .. }) => {
            is_kept = dest_url.starts_with('#');
            is_kept
        }
        Event::End(TagEnd::Link) => is_kept,
        Event::Start(Tag::Image { .. })
        | Event::End(TagEnd::Image)
        | Event::Html(_)
        | Event::InlineHtml(_) => false,
        _ => true,
    });
    let mut events: Vec<Event<'_>> = events.collect();
    for start in 0..events.len() {
        let (before, after) = events.split_at_mut(start + 1);
        if let Event::Start(Tag::Heading { id, .. }) = &mut before[start] {
            let texts = after.iter().map_while(|event| match event {
                Event::Text(text) | Event::Code(text) => Some(&**text),
                _ => None,
            });
            *id = Some(anchor(&texts.collect::<String>()).into());
        }
    }
    let mut page = String::new();
    html::push_html(&mut page, events.into_iter());
    page
}

fn anchor(heading: &str) -> String {
    let heading = heading.to_lowercase();
    let kept = |letter: &char| letter.is_alphanumeric() || "-_ ".contains(*letter);
    let kept: String = heading.chars().filter(kept).collect();
    kept.replace(' ', "-")
}
