//! `tollgate explain`: the matcher that serves, with its notes.

use std::io::{self, Read as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use http::StatusCode;
use serde_json::json;

use crate::api::decode;
use crate::api::messages;
use crate::api::request_size::MESSAGE_BYTES_MAX;
use crate::base::environment::Environment;
use crate::base::text::Text;
use crate::cli::counter::{self, NO_RULE, UNKNOWN_DOMAIN, counter_text};
use crate::cli::fetch::{self, Service};
use crate::cli::input;
use crate::cli::output::{CliError, print};
use crate::cli::words::{self, Words};
use crate::limiter::{self, Modes};
use crate::report::counter::CounterList;
use crate::rules::explain::{Outcome, explain};
use crate::rules::query::Query;
use crate::rules::source::settings::Reading;

/// The start of the help.
pub(crate) const USAGE: &str = "\
tollgate explain [OPTIONS] [RULES] DOMAIN KEY=VALUE...
       tollgate explain [OPTIONS] [RULES] --json TEXT";
/// The end of the help.
pub const EXIT_CODES: &str = "\
Exit codes:
   0  every descriptor matches a rule, or has a limit of its own
   3  the domain is unknown: nothing is limited
   4  a descriptor matches no rule: it is not limited
   1  the service would answer the request with an error";

/// Arguments of `explain`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    #[arg(value_name = "WORD", help = words::HELP, required_unless_present = "json")]
    words: Vec<String>,
    /// Instead of DOMAIN and KEY=VALUE: a whole request, as the body of /json, with several
    /// descriptors, limits and hits of their own; - reads it from stdin
    #[arg(long, value_name = "TEXT")]
    json: Option<String>,
    /// Ask a running service, by the rules in force there, and print the counters as well
    #[arg(long)]
    live: bool,
    #[command(flatten)]
    service: Service,
    #[command(flatten)]
    reading: Reading,
}

/// Prints the match of every descriptor: rule, key and limit.
///
/// # Errors
/// Invalid rules, a request that cannot be read.
pub(crate) fn run(args: &Args, environment: &Environment) -> Result<ExitCode, CliError> {
    let Some(json) = &args.json else {
        let words = Words::read(&args.words)?;
        let entries = words.entries.iter().map(|entry| &**entry);
        let query = Query::of_entries(words.domain, entries).map_err(CliError::Usage)?;
        let body = body_of(&query);
        return run_query(args, words.rules.as_ref(), &query, body, environment);
    };
    let rules = match &args.words[..] {
        [] => None,
        [rules] => Some(PathBuf::from(rules)),
        _ => return Err(CliError::Usage("--json has domain and entries".to_owned())),
    };
    let body = if json == "-" { read_stdin()? } else { json.clone().into_bytes() };
    let request =
        messages::read(&body).map_err(|error| CliError::Usage(format!("--json: {error:#}")))?;
    let (query, _) =
        decode::query(&request).map_err(|error| CliError::Usage(format!("--json: {error}")))?;
    run_query(args, rules.as_ref(), &query, body.clone(), environment)
}

/// The body of `/json` for a request.
fn body_of(query: &Query<'_>) -> Vec<u8> {
    let shown = |text| Text(text).shown().into_owned();
    let entries = query.descriptors.iter().flat_map(|one| &one.entries);
    let entries =
        entries.map(|entry| json!({"key": shown(entry.key), "value": shown(entry.value)}));
    let descriptor = json!({"entries": entries.collect::<Vec<_>>()});
    let body = json!({"domain": shown(query.domain), "descriptors": [descriptor]});
    body.to_string().into_bytes()
}

fn run_query(
    args: &Args,
    rules: Option<&PathBuf>,
    query: &Query<'_>,
    body: Vec<u8>,
    environment: &Environment,
) -> Result<ExitCode, CliError> {
    limiter::validate(query).map_err(|invalid| CliError::Usage(invalid.to_string()))?;
    if args.live {
        if rules.is_some() {
            let usage = "--live: the rules are those of the service; leave RULES out";
            return Err(CliError::Usage(usage.to_owned()));
        }
        return explain_live(&args.service.url, body);
    }
    let rules = input::load(rules, &args.reading, environment)?;
    let explanation = explain(&rules, query, Modes::default());
    print(&explanation.text);
    Ok(match explanation.outcome {
        Outcome::Matched => ExitCode::SUCCESS,
        Outcome::UnknownDomain => UNKNOWN_DOMAIN.into(),
        Outcome::NoRule => NO_RULE.into(),
        Outcome::Invalid => ExitCode::FAILURE,
    })
}

/// The walk through the rules in force on a service, and the counters.
fn explain_live(url: &str, body: Vec<u8>) -> Result<ExitCode, CliError> {
    let response = fetch::send(url, "/api/v1/counters", Some(body.clone()), &[])?;
    let counters = match counter::read(&response)? {
        Ok(CounterList { counters }) => counters,
        Err(code) => return Ok(code),
    };
    let fetch::Response { status, body: text } = fetch::send(url, "/explain", Some(body), &[])?;
    if status != StatusCode::OK {
        return Err(anyhow!("{status}: {}", text.trim()).into());
    }
    print(&text);
    let mut code = ExitCode::SUCCESS;
    for counter in &counters {
        if counter.rule.is_none() {
            code = NO_RULE.into();
        } else {
            print(&format!("counter\n{}", counter_text(counter)));
        }
    }
    Ok(code)
}

fn read_stdin() -> Result<Vec<u8>, CliError> {
    let mut body = Vec::new();
    io::stdin()
        .take(MESSAGE_BYTES_MAX as u64 + 1)
        .read_to_end(&mut body)
        .context("read a request from stdin")?;
    if body.len() > MESSAGE_BYTES_MAX {
        return Err(CliError::Usage(format!(
            "--json: a request has at most {MESSAGE_BYTES_MAX} bytes"
        )));
    }
    Ok(body)
}
