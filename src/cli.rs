//! The command line: a file for each subcommand.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::config::error::did_you_mean;

pub mod check;
pub mod explain;
pub mod serve;
pub mod simulate;

/// EX_USAGE of sysexits.h: the command line is wrong.
const USAGE: u8 = 64;
/// EX_CONFIG of sysexits.h: settings or rules are wrong.
const BAD_CONFIG: u8 = 78;

/// In Go, and so in the reference, no host is every address of both families.
const NOTHING_IS_EVERY_HOST: [&str; 3] = ["HOST", "GRPC_HOST", "DEBUG_HOST"];

/// A global rate limit service for Envoy, Istio and Envoy Gateway.
///
/// Every flag has an environment variable of the same meaning; flags win.
#[derive(Debug, Parser)]
#[command(
    version,
    max_term_width = 120,
    args_conflicts_with_subcommands = true,
    subcommand_precedence_over_arg = true
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: serve::Args,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve (the default)
    Serve(Box<serve::Args>),
    /// Check rules: every problem of every file, with its place and what to write instead
    Check(check::Args),
    /// Explain why a request gets its limits
    #[command(after_help = explain::EXIT_CODES)]
    Explain(explain::Args),
    /// Show what each algorithm lets through of a pattern of calls
    Simulate(Box<simulate::Args>),
}

/// Why a command failed, which decides the exit code.
#[derive(Debug)]
pub enum Failure {
    /// What was written makes no sense together: 64.
    Usage(String),
    /// Settings or rules are wrong: 78.
    Config(String),
    /// Anything else: 1.
    Other(anyhow::Error),
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) | Self::Config(text) => formatter.write_str(text),
            Self::Other(error) => write!(formatter, "{error:#}"),
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Other(error)
    }
}

/// Runs what the command line says, and gives the exit code: 0, 64 for a wrong command line, 78 for
/// wrong settings or rules, 1 for anything else. `explain` has more.
pub fn run() -> ExitCode {
    // The reference's tools are Go programs, which write `-config_dir`.
    let arguments = std::env::args_os().map(|argument| match argument.to_str() {
        Some("-config_dir") => "--config-dir".into(),
        Some("-merge_domain_configs") => "--merge-domain-configs".into(),
        _ => argument,
    });
    let arguments: Vec<_> = arguments.collect();
    // Values of `simulate` were typed, and are no settings.
    let has_settings = arguments.get(1).is_none_or(|command| command != "simulate");
    let parsed = command()
        .try_get_matches_from(&arguments)
        .and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            // It fails only if nobody can read it.
            let _ = error.print();
            if let Some(variable) = variable_behind(&error, &arguments) {
                let _ = writeln!(
                    std::io::stderr(),
                    "tollgate: that is what the environment variable {variable} is set to"
                );
            }
            if let Some(subcommand) = mistyped_subcommand(&arguments) {
                let _ = writeln!(
                    std::io::stderr(),
                    "tollgate: did you mean `tollgate {subcommand}`?"
                );
            }
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                // A value that came from the environment is a setting as well.
                ErrorKind::ValueValidation | ErrorKind::InvalidValue if has_settings => {
                    ExitCode::from(BAD_CONFIG)
                }
                _ => ExitCode::from(USAGE),
            };
        }
    };
    let done = match cli.command {
        None => serve::run(cli.serve).map(|()| ExitCode::SUCCESS),
        Some(Command::Serve(args)) => serve::run(*args).map(|()| ExitCode::SUCCESS),
        Some(Command::Check(args)) => check::run(&args).map(|()| ExitCode::SUCCESS),
        Some(Command::Explain(args)) => explain::run(&args),
        Some(Command::Simulate(args)) => simulate::run(&args).map(|()| ExitCode::SUCCESS),
    };
    let failure = match done {
        Ok(code) => return code,
        Err(failure) => failure,
    };
    // It fails only if nobody can read it.
    let _ = writeln!(std::io::stderr(), "tollgate: {failure}");
    match failure {
        Failure::Usage(_) => ExitCode::from(USAGE),
        Failure::Config(_) => ExitCode::from(BAD_CONFIG),
        Failure::Other(_) => ExitCode::FAILURE,
    }
}

/// What can be written. A variable that is set to nothing, as templates do that have nothing to
/// fill in, is not set.
fn command() -> clap::Command {
    let unless_empty = |argument: clap::Arg| {
        let is_empty = |name: &OsStr| {
            !NOTHING_IS_EVERY_HOST.iter().any(|host| name == *host)
                && std::env::var_os(name).is_some_and(|value| value.is_empty())
        };
        if argument.get_env().is_some_and(is_empty) {
            argument.env(None::<&str>)
        } else {
            argument
        }
    };
    Cli::command()
        .mut_args(unless_empty)
        .mut_subcommands(|subcommand| subcommand.mut_args(unless_empty))
}

/// The environment variable that a bad value came from; `None` if it was a flag.
fn variable_behind(error: &clap::Error, arguments: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let flag = shown.split_whitespace().next()?.strip_prefix("--")?;
    let was_typed = |argument: &OsString| {
        argument
            .to_str()
            .and_then(|text| text.strip_prefix("--"))
            .is_some_and(|text| text.split('=').next() == Some(flag))
    };
    let command = Cli::command();
    let known = command
        .get_subcommands()
        .chain([&command])
        .flat_map(clap::Command::get_arguments);
    let mut variables = known
        .filter(|argument| argument.get_long() == Some(flag))
        .filter_map(clap::Arg::get_env);
    variables
        .next()
        .filter(|_| !arguments.iter().any(was_typed))
        .map(|variable| variable.to_string_lossy().into_owned())
}

/// The subcommand that the first argument resembles, if it is neither one nor a directory.
fn mistyped_subcommand(arguments: &[OsString]) -> Option<String> {
    let first = arguments.get(1)?;
    if Path::new(first).is_dir() {
        None
    } else {
        nearest_subcommand(first).filter(|name| **name != **first)
    }
}

/// The subcommand that a word resembles.
fn nearest_subcommand(word: &OsStr) -> Option<String> {
    did_you_mean(word.to_str()?, subcommands().iter().map(|name| &**name)).map(str::to_owned)
}

fn subcommands() -> Vec<String> {
    Cli::command()
        .get_subcommands()
        .map(|subcommand| subcommand.get_name().to_owned())
        .collect()
}

/// A number and a noun: `1 problem`, `2 problems`.
fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Prints a text. Whoever closed the other end, as `| head` does, has read enough: `println!` would
/// panic.
fn say(text: &str) {
    let mut stdout = std::io::stdout();
    let _ = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
}
