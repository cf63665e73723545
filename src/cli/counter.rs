//! `tollgate counter`: reads a counter of a running service, resets it, or grants hits.

use std::process::ExitCode;

use anyhow::anyhow;
use http::StatusCode;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use crate::base::environment::Environment;
use crate::cli::fetch;
use crate::cli::output::{Failure, print, print_error};
use crate::cli::table::table;
use crate::rules::query::Query;
use crate::text::{Escaped, Text};

const UNKNOWN_DOMAIN: u8 = 3;
const NO_RULE: u8 = 4;
/// The end of the help.
pub(crate) const EXIT_CODES: &str = "\
The token of reset and grant comes from ADMIN_TOKEN.

Exit codes:
   0  done
   3  the domain is unknown: nothing is limited
   4  no rule counts the descriptor
   1  the service is unreachable, or rejected the request
  64  the command line or an entry is invalid, or ADMIN_TOKEN is not set";

/// Arguments of `counter`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Print a counter
    Get(Target),
    /// Delete a counter; of concurrency all holders
    Reset(Target),
    /// Give hits back: of an exhausted counter so many pass afterwards
    Grant {
        #[command(flatten)]
        target: Target,
        /// At most the limit, or the burst of a bucket
        #[arg(long, value_name = "N", default_value = "1")]
        hits: u64,
    },
}

/// A counter of a service.
#[derive(Debug, clap::Args)]
struct Target {
    /// The admin port of the service
    #[arg(value_name = "URL")]
    url: String,
    /// The domain that Envoy's filter is configured with
    #[arg(value_name = "DOMAIN")]
    domain: String,
    /// One entry of the descriptor, the outermost first
    #[arg(short, long, value_name = "KEY=VALUE", required = true)]
    entry: Vec<String>,
    /// Output: text, or the service's answer as JSON
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = ["text", "json"])]
    format: String,
}

/// Prints the counter, or the counter before and after a change.
///
/// # Errors
/// The command line is invalid, the service is unreachable, or it rejects the request.
pub(crate) fn run(args: &Args, environment: &Environment) -> Result<ExitCode, Failure> {
    match &args.command {
        Command::Get(target) => get(target),
        Command::Reset(target) => act(target, "reset", None, environment),
        Command::Grant { target, hits } => act(target, "grant", Some(*hits), environment),
    }
}

fn get(target: &Target) -> Result<ExitCode, Failure> {
    // Reports invalid entries before the service does.
    target.query()?;
    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let entries = target
        .entry
        .iter()
        .map(|entry| format!("&e={}", encoded(entry)));
    let entries = entries.collect::<Vec<_>>().concat();
    let page = format!(
        "/api/v1/counters?domain={}{entries}",
        encoded(&target.domain)
    );
    let answer = fetch::send(&target.url, &page, None, &[])?;
    target.print(answer, counter_text)
}

fn act(
    target: &Target,
    action: &str,
    hits: Option<u64>,
    environment: &Environment,
) -> Result<ExitCode, Failure> {
    let query = target.query()?;
    let entries = query.descriptors[0].entries.iter();
    let descriptor: Vec<_> = entries
        .map(|entry| [entry.key, entry.value].map(|text| Text(text).shown()))
        .collect();
    let mut body = json!({"domain": target.domain, "descriptor": descriptor});
    if let Some(hits) = hits {
        body["hits"] = hits.into();
    }
    let token = fetch::token(environment)?;
    let page = format!("/api/v1/counters/{action}");
    let body = body.to_string().into_bytes();
    let answer = fetch::send(&target.url, &page, Some(body), &[token])?;
    target.print(answer, change_text)
}

impl Target {
    fn query(&self) -> Result<Query<'_>, Failure> {
        Query::of_entries(&*self.domain, self.entry.iter().map(|entry| &**entry))
            .map_err(Failure::Usage)
    }

    fn print(
        &self,
        (status, body): (StatusCode, String),
        text: impl Fn(&Value) -> String,
    ) -> Result<ExitCode, Failure> {
        let answer = read(status, &body)?;
        if let Some(code) = no_counter(status, &answer) {
            return Ok(code);
        }
        if self.format == "json" {
            print(&format!("{answer}\n"));
        } else {
            print(&text(&answer));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The answer, if it is a result or says that there is no counter.
///
/// # Errors
/// Any other answer.
pub(crate) fn read(status: StatusCode, body: &str) -> Result<Value, Failure> {
    let answer: Result<Value, _> = serde_json::from_str(body);
    let has_result = |answer: &Value| status == StatusCode::OK || !answer["outcome"].is_null();
    match answer {
        Ok(answer) if has_result(&answer) => Ok(answer),
        Ok(answer) if answer["error"].is_string() => {
            Err(anyhow!("{status}: {}", shown(&answer["error"])).into())
        }
        _ => Err(anyhow!("{status}: {}", body.trim())
            .context("no answer of /api/v1")
            .into()),
    }
}

/// Prints the walk through the rules to stderr if no rule counts the descriptor. Returns the exit code.
pub(crate) fn no_counter(status: StatusCode, answer: &Value) -> Option<ExitCode> {
    if status == StatusCode::OK {
        return None;
    }
    print_error(&shown(&answer["error"]));
    print(answer["explanation"].as_str().unwrap_or_default());
    Some(match answer["outcome"].as_str() {
        Some("unknown_domain") => UNKNOWN_DOMAIN.into(),
        _ => NO_RULE.into(),
    })
}

/// A counter, a line for each field.
pub(crate) fn counter_text(counter: &Value) -> String {
    let lines = FIELDS.map(|(name, field)| vec![name.to_owned(), shown(field(counter))]);
    table(2, &lines)
}

/// A counter before and after a change.
fn change_text(change: &Value) -> String {
    let mut lines = vec![["", "before", "after"].map(str::to_owned).to_vec()];
    lines.extend(FIELDS.map(|(name, field)| {
        let cell = |counter| shown(field(counter));
        vec![
            name.to_owned(),
            cell(&change["before"]),
            cell(&change["after"]),
        ]
    }));
    let note = change["note"].as_str();
    let note = note.map(|note| format!("{}\n", Escaped(note)));
    table(3, &lines) + &note.unwrap_or_default()
}

/// A name and the value of a field.
type Field = (&'static str, fn(&Value) -> &Value);

const FIELDS: [Field; 11] = [
    ("rule", |counter| &counter["rule"]),
    ("key", |counter| &counter["key"]),
    ("algorithm", |counter| &counter["algorithm"]),
    ("requests", |counter| &counter["limit"]["requests"]),
    ("period, s", |counter| &counter["limit"]["period_seconds"]),
    ("burst", |counter| &counter["limit"]["burst"]),
    ("used", |counter| &counter["used"]),
    ("remaining", |counter| &counter["remaining"]),
    ("over limit", |counter| &counter["over_limit"]),
    ("resets in, s", |counter| &counter["resets_in_seconds"]),
    ("counted in", |counter| &counter["counted_in"]),
];

/// Without control characters, which clients may send.
pub(crate) fn shown(value: &Value) -> String {
    let text = match value {
        Value::Null => "-".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    Escaped(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_shown_before_and_after() {
        let counter = |used: u32| {
            json!({
                "rule": "shop.user", "key": "k\u{1b}", "algorithm": "fixed_window",
                "limit": {"requests": 5, "period_seconds": 60, "burst": null},
                "used": used, "remaining": 5 - used, "over_limit": used == 5,
                "resets_in_seconds": 9, "counted_in": "redis",
            })
        };
        let text = change_text(&json!({"before": counter(5), "after": counter(2)}));
        let lines = [
            "rule          shop.user     shop.user",
            "key           k\\u{1b}       k\\u{1b}",
            "burst         -             -",
            "used          5             2",
            "over limit    yes           no",
        ];
        for line in lines {
            assert!(text.lines().any(|shown| shown == line), "{line}:\n{text}");
        }
    }
}
