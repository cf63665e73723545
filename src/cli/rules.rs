//! `tollgate rules`: undoes the last change of a rules file of a running service.

use std::process::ExitCode;

use anyhow::anyhow;
use http::{StatusCode, header};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use crate::base::environment::Environment;
use crate::cli::counter::shown;
use crate::cli::fetch;
use crate::cli::output::{Failure, print};

/// The end of the help.
pub(crate) const EXIT_CODES: &str = "\
The service needs RULES_WRITABLE=true. The token comes from ADMIN_TOKEN.

Exit codes:
   0  done: the rules are in force
   1  there is no change to undo, the service is unreachable, or it rejected the request
  64  the command line is invalid, or ADMIN_TOKEN is not set";

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
    /// The admin port of the service
    #[arg(value_name = "URL")]
    url: String,
    /// The name of the file
    #[arg(value_name = "FILE")]
    file: String,
}

/// The newest versions of a file.
struct Versions {
    /// The ETag of the file.
    etag: String,
    previous: u64,
}

/// Prints the version that is in force afterwards.
///
/// # Errors
/// The command line is invalid, the service is unreachable, or it rejects the request.
pub(crate) fn run(args: &Args, environment: &Environment) -> Result<ExitCode, Failure> {
    let Command::Rollback(target) = &args.command;
    let token = fetch::token(environment)?;
    let Versions { etag, previous } = target.versions()?;
    let body = json!({"version": previous}).to_string().into_bytes();
    // An error if the file was changed since: that would be the change that is undone.
    let headers = [token, (header::IF_MATCH, etag)];
    let answer = fetch::send(&target.url, &target.page("rollback"), Some(body), &headers)?;
    let answer = read(answer)?;
    print(&format!(
        "{}: version {} is in force, with the text of version {previous}\n",
        shown(&answer["file"]),
        answer["version"]
    ));
    Ok(ExitCode::SUCCESS)
}

impl Target {
    fn page(&self, page: &str) -> String {
        let file = utf8_percent_encode(&self.file, NON_ALPHANUMERIC);
        format!("/api/v1/rules/{file}/{page}")
    }

    fn versions(&self) -> Result<Versions, Failure> {
        let history = read(fetch::send(&self.url, &self.page("history"), None, &[])?)?;
        let [current, previous] = [0, 1].map(|index| &history["versions"][index]);
        let Some(previous) = previous["version"].as_u64() else {
            let file = &self.file;
            return Err(anyhow!("{file} has one version only: there is no change to undo").into());
        };
        let etag = current["etag"].as_str().unwrap_or_default().to_owned();
        Ok(Versions { etag, previous })
    }
}

/// # Errors
/// The answer is no result; with what the compiler reports about the rules.
fn read((status, body): (StatusCode, String)) -> Result<Value, Failure> {
    let answer: Value = serde_json::from_str(&body).unwrap_or_default();
    if status == StatusCode::OK && answer.is_object() {
        return Ok(answer);
    }
    if !answer["error"].is_string() {
        let error = anyhow!("{status}: {}", body.trim());
        return Err(error.context("no answer of /api/v1").into());
    }
    let errors = answer["errors"].as_array().into_iter().flatten();
    let errors = errors.map(|error| {
        let [file, line, message] = ["file", "line", "message"].map(|name| shown(&error[name]));
        format!("\n{file}:{line}: {message}")
    });
    let errors: Vec<_> = errors.collect();
    let reason = shown(&answer["error"]);
    Err(anyhow!("{status}: {reason}{}", errors.concat()).into())
}
