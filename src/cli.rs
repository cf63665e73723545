//! The command line: a file for each subcommand.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::base::environment::{self, Environment};
use crate::base::removed;
use crate::base::text::did_you_mean;
use crate::cli::output::{CliError, print, print_error};

mod cases;
mod check;
mod config;
mod counter;
mod deciding;
mod diff;
mod explain;
mod fetch;
mod github;
mod healthcheck;
mod help;
mod ignored;
mod input;
mod manifest;
mod output;
mod recorded;
mod replay;
mod schema;
mod serve;
mod shell;
mod simulate;
mod table;
mod top;
mod trial;
mod usage;
mod version;
mod words;

/// EX_USAGE of sysexits.h.
const USAGE: u8 = 64;
/// EX_CONFIG of sysexits.h.
const BAD_CONFIG: u8 = 78;
/// The end of the help. Those that only some commands have are in their help.
const EXIT_CODES: &str = "\
Exit codes of all commands:
   0  done
   1  another failure, such as a service that is unreachable
  64  the command line is invalid
  78  settings, rules, test cases or recorded requests are invalid";

/// A global rate limit service for Envoy, Istio and Envoy Gateway.
///
/// Every flag has an environment variable of the same meaning; flags take precedence.
#[derive(Debug, Parser)]
#[command(
    version = crate::report::build::BUILD.versions(),
    max_term_width = 120,
    after_long_help = EXIT_CODES,
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
    /// Print the settings that `serve` would run with, and where each comes from
    Config(Box<config::Args>),
    /// Exit with 0 if a service is ready, else with 1: for containers without a shell
    Healthcheck(fetch::Service),
    /// Check rules: report every problem of every file, with its place and how to fix it
    Check(check::Args),
    /// Show how a trial's decisions compare with those of the service in use
    Trial(trial::Args),
    /// Read a counter of a running service, reset it, or grant hits
    #[command(after_help = counter::EXIT_CODES)]
    Counter(counter::Args),
    /// Explain which rules a request matches, and why
    #[command(override_usage = explain::USAGE, after_help = explain::EXIT_CODES)]
    Explain(explain::Args),
    /// Show how each algorithm decides a pattern of requests
    #[command(override_usage = simulate::USAGE)]
    Simulate(Box<simulate::Args>),
    /// Play recorded traffic through rules: which requests would be over limit, and when
    Replay(Box<replay::Args>),
    /// Compare two sets of rules: rules, and counters that restart
    Diff(Box<diff::Args>),
    /// Print the completion script of a shell
    Completions(shell::Completions),
    /// Print a manual page, for man -l
    Man(shell::Man),
    /// Run test cases of rules, on a clock of their own
    #[command(after_help = cases::EXIT_CODES)]
    Test(Box<cases::Args>),
    /// Show which keys have the most hits on a running service
    Top(top::Args),
    /// Show how much of the limits of a descriptor is used
    #[command(after_help = usage::EXIT_CODES)]
    Usage(usage::Args),
    /// Print version, commit, build and time zone data
    Version(version::Args),
    /// Print the JSON Schema of rules, tests or an overlay, for editors
    Schema(schema::Args),
}

/// Runs the command line and returns the exit code, see [`EXIT_CODES`].
pub fn run() -> ExitCode {
    // envoyproxy/ratelimit's tools are Go programs, whose flags have one dash.
    let arguments = std::env::args_os().map(|argument| match argument.to_str() {
        Some("-config_dir") => "--config-dir".into(),
        Some("-merge_domain_configs") => "--merge-domain-configs".into(),
        _ => argument,
    });
    let mut arguments: Vec<_> = arguments.collect();
    let ignored = ignored::remove_ignored(&mut arguments, is_command_line);
    if arguments.get(1..).is_some_and(|words| words == ["help", "settings"]) {
        print(&help::settings());
        return ExitCode::SUCCESS;
    }
    let (cli, environment) = match parse(&arguments) {
        Ok(parsed) => parsed,
        Err(error) => return report(&error, &arguments),
    };
    let command = cli.command.unwrap_or_else(|| Command::Serve(Box::new(cli.serve)));
    let done = match command {
        Command::Serve(args) => serve::run(*args, &environment, &subcommands(), ignored.as_deref()),
        Command::Config(args) => config::run(*args, &environment),
        Command::Healthcheck(service) => healthcheck::run(&service),
        Command::Trial(args) => trial::run(&args, &environment),
        Command::Check(args) => check::run(&args, &environment),
        Command::Counter(args) => counter::run(&args, &environment),
        Command::Diff(args) => diff::run(&args, &environment),
        Command::Explain(args) => explain::run(&args, &environment),
        Command::Simulate(args) => simulate::run(&args, &environment),
        Command::Replay(args) => replay::run(&args, &environment),
        Command::Completions(args) => Ok(shell::complete(&args, Cli::command())),
        Command::Man(args) => shell::man(&args, Cli::command()),
        Command::Test(args) => cases::run(&args, &environment),
        Command::Top(args) => top::run(&args, &environment),
        Command::Usage(args) => usage::run(&args),
        Command::Version(args) => Ok(version::run(&args)),
        Command::Schema(args) => Ok(schema::run(&args)),
    };
    let failure = match done {
        Ok(code) => return code,
        Err(failure) => failure,
    };
    print_error(&failure.to_string());
    match failure {
        CliError::Usage(_) => ExitCode::from(USAGE),
        CliError::Config(_) => ExitCode::from(BAD_CONFIG),
        CliError::Other(_) => ExitCode::FAILURE,
    }
}

/// Whether arguments of a process named `ratelimit` are Tollgate's: a subcommand, or flags and a
/// directory to serve.
fn is_command_line(arguments: &[OsString]) -> bool {
    if subcommands().iter().any(|name| **name == *arguments[1]) {
        return true;
    }
    match Cli::command().try_get_matches_from(arguments) {
        Ok(matches) => Cli::from_arg_matches(&matches)
            .is_ok_and(|cli| cli.serve.rules.is_none_or(|rules| rules.is_dir())),
        Err(error) => !error.use_stderr(),
    }
}

/// The command line and the environment. The definitions of all subcommands end here: they have
/// 0.5 MiB.
fn parse(arguments: &[OsString]) -> Result<(Cli, Environment), clap::Error> {
    let mut command = environment::without_empty_variables(help::with_help(Cli::command()));
    let matches = command.try_get_matches_from_mut(arguments)?;
    let environment = match matches.subcommand() {
        None => Environment::read(&command, &matches),
        Some((name, matches)) => {
            Environment::read(command.find_subcommand(name).unwrap_or(&command), matches)
        }
    };
    Ok((Cli::from_arg_matches(&matches)?, environment))
}

/// Prints help or an error of the command line, and returns the exit code.
fn report(error: &clap::Error, arguments: &[OsString]) -> ExitCode {
    // A closed pipe is ignored.
    let _ = error.print();
    let variable = variable_behind(error, arguments);
    if let Some(variable) = &variable {
        print_error(&format!("the value is from the environment variable {variable}"));
    }
    if let Some(subcommand) = mistyped_subcommand(arguments) {
        print_error(&format!("did you mean `tollgate {subcommand}`?"));
    }
    if let Some(replacement) = replacement(error, arguments) {
        print_error(&format!("this was removed: {replacement}"));
    }
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ if variable.is_some() => ExitCode::from(BAD_CONFIG),
        _ => ExitCode::from(USAGE),
    }
}

/// The environment variable that an invalid value is from; `None` if it is from a flag.
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
    let known = command.get_subcommands().chain([&command]).flat_map(clap::Command::get_arguments);
    let mut variables =
        known.filter(|argument| argument.get_long() == Some(flag)).filter_map(clap::Arg::get_env);
    variables
        .next()
        .filter(|_| !arguments.iter().any(was_typed))
        .map(|variable| variable.to_string_lossy().into_owned())
}

/// The subcommand that the first argument resembles, if it is neither one nor a directory.
fn mistyped_subcommand(arguments: &[OsString]) -> Option<String> {
    let first: &OsStr = arguments.get(1)?;
    if Path::new(first).is_dir() {
        return None;
    }
    let names = subcommands();
    let nearest = did_you_mean(first.to_str()?, names.iter().map(|name| &**name))?;
    Some(nearest.to_owned()).filter(|name| **name != *first)
}

/// What replaces the unknown flag or word of this command line, if it was removed.
fn replacement(error: &clap::Error, arguments: &[OsString]) -> Option<&'static str> {
    let kinds = [ContextKind::InvalidArg, ContextKind::InvalidSubcommand];
    let shown = kinds.into_iter().find_map(|kind| error.get(kind));
    let Some(ContextValue::String(unknown)) = shown else {
        return None;
    };
    if unknown.starts_with('-') {
        return removed::replacement(unknown);
    }
    let of_command = || removed::replacement(&format!("tollgate {}", arguments.get(1)?.to_str()?));
    removed::replacement(unknown).or_else(of_command)
}

fn subcommands() -> Vec<String> {
    Cli::command().get_subcommands().map(|subcommand| subcommand.get_name().to_owned()).collect()
}
