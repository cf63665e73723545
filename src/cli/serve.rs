//! `tollgate serve`: settings, log, ports and rules, the banner; then serve until a signal.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

use crate::app::build::App;
use crate::app::run::Signal;
use crate::cli::output::{Failure, print};
use crate::config::error::did_you_mean;
use crate::runtime;
use crate::settings::environment::Environment;
use crate::settings::{Resolved, Settings};
use crate::telemetry::log::{self, Format, Level};

/// Arguments of `serve`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// Directory of rules files, which must exist [default: that of RUNTIME_*; while none of them is
    /// set ./config, if it exists]
    #[arg(value_name = "DIR")]
    rules: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// Invalid settings, or ports that cannot be bound.
pub(crate) fn run(
    args: Args,
    environment: &Environment,
    subcommands: &[String],
) -> Result<ExitCode, Failure> {
    if let Some(path) = &args.rules {
        must_be_a_directory(path, subcommands)?;
    }
    let resolved = args
        .settings
        .resolve(args.rules, environment)
        .map_err(Failure::Config)?;
    let telemetry = &resolved.settings.telemetry;
    let level = telemetry
        .log_level
        .unwrap_or_else(|| Level::default_for(&std::io::stdout()));
    log::start(level, telemetry.log_format);
    for warning in &resolved.warnings {
        tracing::warn!("{warning}");
    }
    // Runs signals, reloads and exporters. Requests, the store and the admin listener have threads
    // of their own.
    let runtime = runtime::build("main").context("start a runtime")?;
    let served = runtime.block_on(serve(resolved));
    // Dropping it would wait for blocking tasks, such as an exporter's `getaddrinfo`.
    runtime.shutdown_background();
    served?;
    Ok(ExitCode::SUCCESS)
}

async fn serve(resolved: Resolved) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let mut hangup = signal(SignalKind::hangup()).context("listen for SIGHUP")?;
    let format = resolved.settings.telemetry.log_format;
    let app = App::bind(resolved)?;
    match format {
        Format::Text => print(&format!("{}\n", app.summary())),
        Format::Json => app.summary().log(),
    }
    let stop = async || {
        tokio::select! {
            _ = terminate.recv() => Signal::Terminate,
            _ = interrupt.recv() => Signal::Interrupt,
        }
    };
    let reload = async || {
        hangup.recv().await;
    };
    app.run(stop, reload).await
}

/// A directory on the command line must exist, because the word may be a mistyped subcommand. Only
/// the directory of RUNTIME_* may be created later.
fn must_be_a_directory(path: &Path, subcommands: &[String]) -> Result<(), Failure> {
    let problem = match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) => "it is not a directory".to_owned(),
        Err(error) => error.to_string(),
    };
    let names = subcommands.iter().map(|name| &**name);
    let hint = match path.to_str().and_then(|word| did_you_mean(word, names)) {
        Some(name) => format!("did you mean `tollgate {name}`?"),
        None => format!(
            "name a directory of rules files, or a subcommand: {}",
            subcommands.join(", ")
        ),
    };
    Err(Failure::Config(format!(
        "read rules from {}: {problem}; {hint}",
        path.display()
    )))
}
