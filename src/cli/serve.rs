//! `tollgate serve`: settings, ports, rules; say so; serve until told to stop.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::app::{App, InitialRules, Security, Signal, Summary};
use crate::cli::{Failure, counted, nearest_subcommand, say, subcommands};
use crate::rules::tree::Example;
use crate::settings::Settings;
use crate::telemetry::log::{self, Format, Level};

/// Arguments of `serve`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Directory of rules files, which has to exist [default: what RUNTIME_* say; without any of
    /// them ./config, if it is there]
    #[arg(value_name = "DIR")]
    rules: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// Settings that cannot be served with, ports that cannot be bound.
pub fn run(args: Args) -> Result<(), Failure> {
    let Args { rules, settings } = args;
    settings.check().map_err(Failure::Config)?;
    rules.as_deref().map_or(Ok(()), must_be_a_directory)?;
    let rules_from = settings.rules.origin(rules).map_err(Failure::Config)?;
    let level = settings
        .telemetry
        .level()
        .unwrap_or_else(|| Level::default_for(&std::io::stdout()));
    log::start(level, settings.telemetry.format());
    for warning in settings.warnings() {
        tracing::warn!("{warning}");
    }
    // Signals, reloads and exporters. Requests, the store and the admin listener have threads of
    // their own.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_name("main-blocking")
        .build()
        .context("start a runtime")?;
    let served = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
        let mut hangup = signal(SignalKind::hangup()).context("listen for SIGHUP")?;
        let app = App::bind(&settings, rules_from)?;
        announce(app.summary(), settings.telemetry.format());
        let stop = async || {
            tokio::select! {
                _ = terminate.recv() => Signal::Terminate,
                _ = interrupt.recv() => Signal::Interrupt,
            }
        };
        let reload = async || {
            hangup.recv().await;
        };
        app.run(stop, reload).await?;
        Ok(())
    });
    // Dropping it would wait for blocking tasks, such as an exporter's `getaddrinfo`.
    runtime.shutdown_background();
    served
}

/// A directory on the command line has to exist: the word may be a mistyped subcommand, and a
/// server on all addresses is no answer to that. Only the directory that RUNTIME_* name is waited
/// for.
fn must_be_a_directory(path: &Path) -> Result<(), Failure> {
    let problem = match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) => "it is not a directory".to_owned(),
        Err(error) => error.to_string(),
    };
    let hint = match nearest_subcommand(path.as_os_str()) {
        Some(name) => format!("did you mean `tollgate {name}`?"),
        None => format!(
            "name a directory of rules files, or a subcommand: {}",
            subcommands().join(", ")
        ),
    };
    Err(Failure::Config(format!(
        "read rules from {}: {problem}; {hint}",
        path.display()
    )))
}

/// Says what was bound and loaded: a block for people, or one line of JSON.
fn announce(summary: &Summary, format: Format) {
    match format {
        Format::Text => say(&format!("{}\n", block(summary))),
        Format::Json => tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            store = summary.store,
            grpc = %summary.grpc,
            http = %summary.http,
            admin = %summary.admin,
            prometheus = summary.prometheus.map(|addr| addr.to_string()),
            rules = if let InitialRules::Loaded { limits, .. } = summary.rules { Some(limits) } else { None },
            rules_from = summary.rules_from,
            "started"
        ),
    }
}

fn block(summary: &Summary) -> String {
    let from = &summary.rules_from;
    let rules = match summary.rules {
        InitialRules::Loaded { limits, domains } => {
            format!("{limits} in {}, from {from}", counted(domains, "domain"))
        }
        InitialRules::Rejected => {
            format!("none: those in {from} were refused, see the log; waiting for good ones")
        }
        InitialRules::Pending => format!("none yet: asking {from}, see the log"),
    };
    let security = match summary.grpc_security {
        Security::PlainText => "",
        Security::Tls => "  TLS",
        Security::MutualTls => "  TLS, for clients with a certificate",
    };
    let alone = if summary.store_is_local {
        " (counts in this process only: replicas would each allow the whole limit)"
    } else {
        ""
    };
    let mut lines = vec![
        format!("tollgate {}", env!("CARGO_PKG_VERSION")),
        format!("  store    {}{alone}", summary.store),
        format!("  gRPC     {}{security}", summary.grpc),
        format!(
            "  HTTP     http://{}  /json /healthcheck /ready",
            summary.http
        ),
        format!(
            "  admin    http://{}  /metrics /rlconfig /stats /explain",
            summary.admin
        ),
    ];
    lines.extend(
        summary
            .prometheus
            .map(|addr| format!("  metrics  http://{addr}")),
    );
    lines.push(format!("  rules    {rules}"));
    lines.push(format!("  threads  {}", summary.workers));
    if let Some(curl) = curl(summary) {
        lines.push(format!("try it:\n  {curl}"));
    }
    lines.join("\n") + "\n"
}

/// A call that can be pasted.
fn curl(summary: &Summary) -> Option<String> {
    let Example { domain, entries } = summary.example.as_ref()?;
    let entries: Vec<_> = entries
        .iter()
        .map(|(key, value)| json!({"key": key, "value": value}))
        .collect();
    let body = format!(
        r#"{{"domain":{},"descriptors":[{{"entries":{}}}]}}"#,
        json!(domain),
        json!(entries)
    );
    Some(format!(
        "curl -d '{}' http://{}/json",
        body.replace('\'', r"'\''"),
        reachable(summary.http)
    ))
}

/// An address that a client on this machine can use: nobody can connect to all addresses at once.
fn reachable(addr: SocketAddr) -> SocketAddr {
    let ip = match addr.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, addr.port())
}
