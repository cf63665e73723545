//! `tollgate serve`: settings, log, ports and rules, the banner; then serve until a signal.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

use crate::app::banner::Summary;
use crate::app::build::App;
use crate::app::run::Signal;
use crate::app::settings::{Resolved, Settings};
use crate::base::environment::Environment;
use crate::base::text::did_you_mean;
use crate::base::{removed, runtime};
use crate::cli::output::{CliError, error_line, print};
use crate::telemetry::log::{self, Format, Level, Log};

/// Arguments of `serve`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// Directory of rules, which must exist [default: that of RUNTIME_*, else ./config]
    #[arg(value_name = "DIR")]
    pub(super) rules: Option<PathBuf>,
    #[command(flatten)]
    pub(super) settings: Settings,
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// Invalid settings, or ports that cannot be bound.
pub(crate) fn run(
    args: Args,
    environment: &Environment,
    subcommands: &[String],
    ignored: Option<&str>,
) -> Result<ExitCode, CliError> {
    if let Some(path) = &args.rules {
        must_be_a_directory(path, subcommands)?;
    }
    let resolved = args.settings.resolve(args.rules, environment).map_err(CliError::Config)?;
    let telemetry = &resolved.settings.telemetry;
    let level = telemetry.log_level.unwrap_or_else(|| Level::default_for(&std::io::stdout()));
    let log = log::start(level, telemetry.log_format);
    for warning in resolved.warnings.iter().map(String::as_str).chain(ignored) {
        tracing::warn!("{warning}");
    }
    // Runs signals, reloads and exporters. Requests, the store and the admin listener have threads
    // of their own.
    let runtime = runtime::build("main").context("start a runtime")?;
    let served = runtime.block_on(serve(resolved, &log));
    // Dropping it would wait for blocking tasks, such as an exporter's `getaddrinfo`.
    runtime.shutdown_background();
    let Err(error) = served else {
        return Ok(ExitCode::SUCCESS);
    };
    // By the log's thread, so a stderr that is not read does not delay the end.
    log.write(&error_line(format_args!("{error:#}")));
    Ok(ExitCode::FAILURE)
}

async fn serve(resolved: Resolved, log: &Log) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let mut hangup = signal(SignalKind::hangup()).context("listen for SIGHUP")?;
    let format = resolved.settings.telemetry.log_format;
    let app = App::bind(resolved, log)?;
    let announce = |summary: &Summary| match format {
        Format::Text => print_in_background(format!("{summary}\n")),
        Format::Json => {
            summary.log();
            Ok(())
        }
    };
    let stop = async || {
        tokio::select! {
            _ = terminate.recv() => Signal::Terminate,
            _ = interrupt.recv() => Signal::Interrupt,
        }
    };
    let reload = async || {
        hangup.recv().await;
    };
    // With all settings in it, it is too large for the stack.
    Box::pin(app.run(announce, stop, reload)).await
}

/// Prints in a thread of its own, so a stdout that is not read does not delay the start.
fn print_in_background(text: String) -> anyhow::Result<()> {
    let thread = thread::Builder::new().name("banner".to_owned());
    let started = thread.spawn(move || print(&text));
    started.map(drop).context("start thread banner")
}

/// A directory on the command line must exist, because the word may be a mistyped subcommand. Only
/// the directory of RUNTIME_* may be created later.
fn must_be_a_directory(path: &Path, subcommands: &[String]) -> Result<(), CliError> {
    let problem = match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) => "it is not a directory".to_owned(),
        Err(error) => error.to_string(),
    };
    let names = subcommands.iter().map(|name| &**name);
    let problem = format!("read rules from {}: {problem}", path.display());
    let removed = removed::replacement(&format!("tollgate {}", path.display()));
    if let Some(replacement) = removed {
        return Err(CliError::Usage(format!("{problem}; this was removed: {replacement}")));
    }
    Err(match path.to_str().and_then(|word| did_you_mean(word, names)) {
        Some(name) => CliError::Usage(format!("{problem}; did you mean `tollgate {name}`?")),
        None => CliError::Config(format!(
            "{problem}; name a directory of rules files, or a subcommand: {}",
            subcommands.join(", ")
        )),
    })
}
