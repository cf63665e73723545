//! `tollgate rules`: undoes the last change of a rules file of a running service.

use std::process::ExitCode;

use anyhow::anyhow;
use http::header;

use crate::base::environment::Environment;
use crate::base::text::Escaped;
use crate::cli::fetch::{self, Service, encoded};
use crate::cli::output::{CliError, print};
use crate::report::json;
use crate::report::rule_file::{RulesChanged, RulesHistory, RulesRollback};

/// The end of the help.
pub(crate) const NEEDS: &str = "\
The service needs RULES_WRITABLE=true. The token comes from ADMIN_TOKEN.";

/// Arguments of `rules`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Restore the previous version of a rules file; repeated, it restores the change
    Rollback(Target),
}

/// A rules file of a service.
#[derive(Debug, clap::Args)]
struct Target {
    /// The name of the file
    #[arg(value_name = "FILE")]
    file: String,
    #[command(flatten)]
    service: Service,
}

/// Prints the version that is in force afterwards.
///
/// # Errors
/// The command line is invalid, the service is unreachable, or it rejects the request.
pub(crate) fn run(args: &Args, environment: &Environment) -> Result<ExitCode, CliError> {
    let Command::Rollback(target) = &args.command;
    let token = fetch::token(environment)?;
    let url = &target.service.url;
    let history = fetch::send(url, &target.page("history"), None, &[])?;
    let RulesHistory { versions } = history.answer()?;
    let [current, previous, ..] = &versions[..] else {
        let file = &target.file;
        return Err(anyhow!("{file} has one version only: there is no change to undo").into());
    };
    let rollback = RulesRollback {
        version: previous.version,
    };
    let body = json(&rollback).into_bytes();
    // An error if the file was changed since: that would be the change that is undone.
    let headers = [token, (header::IF_MATCH, current.etag.clone())];
    let response = fetch::send(url, &target.page("rollback"), Some(body), &headers)?;
    let RulesChanged { file, version, .. } = response.answer()?;
    let (file, restored) = (Escaped(file), rollback.version);
    print(&format!(
        "{file}: version {version} is in force, with the text of version {restored}\n"
    ));
    Ok(ExitCode::SUCCESS)
}

impl Target {
    fn page(&self, page: &str) -> String {
        format!("/api/v1/rules/{}/{page}", encoded(&self.file))
    }
}
