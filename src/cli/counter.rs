//! `tollgate counter`: reads a counter of a running service, resets it, or grants hits.

use std::fmt::Display;
use std::num::NonZeroU64;
use std::process::ExitCode;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::base::environment::Environment;
use crate::base::text::Escaped;
use crate::cli::fetch::{self, Response, Service, encoded};
use crate::cli::output::{CliError, Format, print, print_error};
use crate::cli::table::table;
use crate::limits::Algorithm;
use crate::report::counter::{CountedIn, CounterChange, CounterView, Entries, Grant, Reset};
use crate::report::json;
use crate::rules::explain::Outcome;
use crate::rules::query::Query;

pub(crate) const UNKNOWN_DOMAIN: u8 = 3;
pub(crate) const NO_RULE: u8 = 4;
/// The end of the help.
pub(crate) const EXIT_CODES: &str = "\
The token of reset and grant comes from ADMIN_TOKEN.

Exit codes:
   3  the domain is unknown: nothing is limited
   4  no rule counts the descriptor
   1  the service is unreachable, or rejected the request";

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
    /// Give hits back: this many more requests pass
    Grant {
        #[command(flatten)]
        target: Target,
        /// At most the limit, or the burst of a bucket
        #[arg(long, value_name = "N", default_value = "1")]
        hits: NonZeroU64,
    },
}

/// A counter of a service.
#[derive(Debug, clap::Args)]
struct Target {
    /// The domain that Envoy's filter is configured with
    #[arg(value_name = "DOMAIN")]
    domain: String,
    /// Entries of the descriptor, the outermost first
    #[arg(value_name = "KEY=VALUE", required = true)]
    entries: Vec<String>,
    /// One of the limits of the rule, by its name; without it the rule's own, else its first
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,
    #[command(flatten)]
    service: Service,
    /// What to print
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,
}

/// Prints the counter, or the counter before and after a change.
///
/// # Errors
/// The command line is invalid, the service is unreachable, or it rejects the request.
pub(crate) fn run(args: &Args, environment: &Environment) -> Result<ExitCode, CliError> {
    match &args.command {
        Command::Get(target) => get(target),
        Command::Reset(target) => {
            let reset = Reset {
                domain: target.domain.clone(),
                descriptor: target.descriptor()?,
                limit: target.limit.clone(),
            };
            target.act("reset", &reset, environment)
        }
        Command::Grant { target, hits } => {
            let grant = Grant {
                domain: target.domain.clone(),
                descriptor: target.descriptor()?,
                limit: target.limit.clone(),
                hits: *hits,
            };
            target.act("grant", &grant, environment)
        }
    }
}

fn get(target: &Target) -> Result<ExitCode, CliError> {
    // Reports invalid entries before the service does.
    target.query()?;
    let entries = entry_parameters(&target.entries);
    let limit = target.limit.as_deref().map(encoded);
    let limit = limit.map_or_else(String::new, |limit| format!("&limit={limit}"));
    let domain = encoded(&target.domain);
    let page = format!("/api/v1/counters?domain={domain}{entries}{limit}");
    let response = fetch::send(&target.service.url, &page, None, &[])?;
    print_answer(target.format, &response, counter_text)
}

/// The entries of a descriptor in a query string.
pub(crate) fn entry_parameters(entries: &[String]) -> String {
    let entries = entries.iter().map(|entry| format!("&e={}", encoded(entry)));
    entries.collect::<Vec<_>>().concat()
}

impl Target {
    fn query(&self) -> Result<Query<'_>, CliError> {
        Query::of_entries(&*self.domain, self.entries.iter().map(|entry| &**entry))
            .map_err(CliError::Usage)
    }

    fn descriptor(&self) -> Result<Entries, CliError> {
        let query = self.query()?;
        let entries = query.descriptors.iter().flat_map(|one| &one.entries);
        Ok(entries.map(|entry| entry.shown()).collect())
    }

    fn act(
        &self,
        action: &str,
        body: &impl Serialize,
        environment: &Environment,
    ) -> Result<ExitCode, CliError> {
        let token = fetch::token(environment)?;
        let body = json(body).into_bytes();
        let page = format!("/api/v1/counters/{action}");
        let response = fetch::send(&self.service.url, &page, Some(body), &[token])?;
        print_answer(self.format, &response, change_text)
    }
}

/// Prints the answer of `/api/v1` about a descriptor: as it is, or by `text` for people.
///
/// # Errors
/// Those of [`read`].
pub(crate) fn print_answer<T: DeserializeOwned>(
    format: Format,
    response: &Response,
    text: impl Fn(&T) -> String,
) -> Result<ExitCode, CliError> {
    let answer = match read(response)? {
        Ok(answer) => answer,
        Err(code) => return Ok(code),
    };
    print(&match format {
        Format::Text => text(&answer),
        Format::Json => format!("{}\n", response.body.trim_end()),
    });
    Ok(ExitCode::SUCCESS)
}

/// The answer. If no rule counts the descriptor, prints the walk through the rules and returns the
/// exit code.
///
/// # Errors
/// Any other answer.
pub(crate) fn read<T: DeserializeOwned>(
    response: &Response,
) -> Result<Result<T, ExitCode>, CliError> {
    let rejected = match response.read()? {
        Ok(answer) => return Ok(Ok(answer)),
        Err(rejected) => rejected,
    };
    let Some(outcome) = rejected.outcome else {
        return Err(response.rejection(&rejected).into());
    };
    print_error(&Escaped(rejected.error).to_string());
    print(&rejected.explanation.unwrap_or_default());
    Ok(Err(match outcome {
        Outcome::UnknownDomain => UNKNOWN_DOMAIN.into(),
        _ => NO_RULE.into(),
    }))
}

/// A counter, a line for each field.
pub(crate) fn counter_text(counter: &CounterView) -> String {
    table(2, &[], fields(counter).map(|(name, value)| vec![name.to_owned(), value]))
}

/// A counter before and after a change.
fn change_text(change: &CounterChange) -> String {
    let before = fields(&change.before);
    let after = change.after.as_ref().map(fields);
    let after = |at: usize| after.as_ref().map_or(NONE, |after| &after[at].1);
    let lines = before.iter().enumerate();
    let lines =
        lines.map(|(at, (name, before))| [name, &**before, after(at)].map(str::to_owned).to_vec());
    let note = change.note.as_ref();
    let note = note.map(|note| format!("{}\n", Escaped(note)));
    table(3, &["", "before", "after"], lines) + &note.unwrap_or_default()
}

const NONE: &str = "-";

/// Names and values of the fields of a counter.
fn fields(counter: &CounterView) -> [(&'static str, String); 12] {
    let limit = counter.limit.as_ref();
    let over_limit = if counter.over_limit { "yes" } else { "no" };
    [
        ("rule", cell(counter.rule.as_deref())),
        ("key", cell(counter.key.as_deref())),
        ("algorithm", cell(counter.algorithm.map(Algorithm::name))),
        ("requests", cell(limit.map(|limit| limit.requests))),
        ("period, s", cell(limit.and_then(|limit| limit.period_seconds))),
        ("burst", cell(limit.and_then(|limit| limit.burst))),
        ("used", cell(counter.used)),
        ("leased", cell(counter.leased)),
        ("remaining", cell(counter.remaining)),
        ("over limit", over_limit.to_owned()),
        ("resets in, s", cell(counter.resets_in_seconds)),
        ("counted in", cell(counter.counted_in.map(CountedIn::name))),
    ]
}

/// Without control characters, which clients may send.
fn cell(value: Option<impl Display>) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| Escaped(value).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::counter::CounterLimit;

    fn counter(used: u64) -> CounterView {
        CounterView {
            domain: "shop".to_owned(),
            rule: Some("shop.user".to_owned()),
            key: Some("k\u{1b}".to_owned()),
            algorithm: Some(Algorithm::FixedWindow),
            limit: Some(CounterLimit { requests: 5, period_seconds: Some(60), burst: None }),
            used: Some(used),
            leased: Some(3),
            remaining: Some(5 - used),
            resets_in_seconds: Some(9),
            over_limit: used == 5,
            counted_in: Some(CountedIn::Redis),
        }
    }

    #[test]
    fn a_change_is_shown_before_and_after() {
        let text =
            change_text(&CounterChange { before: counter(5), after: Some(counter(2)), note: None });
        let lines = [
            "rule          shop.user     shop.user",
            "key           k\\u{1b}       k\\u{1b}",
            "burst         -             -",
            "used          5             2",
            "leased        3             3",
            "over limit    yes           no",
        ];
        for line in lines {
            assert!(text.lines().any(|shown| shown == line), "{line}:\n{text}");
        }
    }
}
