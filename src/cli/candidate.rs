//! `tollgate candidate report`: what candidate rules would change on a running service.

use std::fmt::Write as _;
use std::process::ExitCode;

use crate::base::environment::Environment;
use crate::base::text::Escaped;
use crate::cli::fetch::{self, Service};
use crate::cli::output::{CliError, counted, print};
use crate::cli::table::table;
use crate::report::comparison::CandidateView;

const PAGE: &str = "/candidate";

/// Arguments of `candidate`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Print the requests and keys of each rule whose decision the candidate rules would change
    Report(Service),
}

/// Prints the report.
///
/// # Errors
/// The service is unreachable, or its page is not one of `/candidate`.
pub(crate) fn run(args: &Args, environment: &Environment) -> Result<ExitCode, CliError> {
    let Command::Report(Service { url }) = &args.command;
    print(&report(&fetch::get_json(
        url,
        PAGE,
        &fetch::read_token(environment),
    )?));
    Ok(ExitCode::SUCCESS)
}

fn report(results: &CandidateView) -> String {
    if results.requests == 0 {
        return "no request was decided with candidate rules yet\n".to_owned();
    }
    let requests = usize::try_from(results.requests).unwrap_or(usize::MAX);
    let mut text = format!(
        "{} decided with the candidate rules since they were loaded\n\n",
        counted(requests, "request")
    );
    let head = [
        "domain",
        "rule",
        "same",
        "newly over",
        "no longer over",
        "keys changed",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(results.rules.iter().map(|rule| {
        vec![
            Escaped(&rule.domain).to_string(),
            Escaped(&rule.rule).to_string(),
            rule.same.to_string(),
            rule.newly_over.to_string(),
            rule.no_longer_over.to_string(),
            rule.keys_changed.to_string(),
        ]
    }));
    text += &table(2, &rows);
    if !results.examples.is_empty() {
        text += "\nthe last keys whose decision changed\n";
    }
    for example in &results.examples {
        let (domain, rule) = (Escaped(&example.domain), Escaped(&example.rule));
        let (time, change) = (Escaped(&example.time), example.change.name());
        let descriptor = Escaped(&example.descriptor);
        let _ = writeln!(text, "  {time}  {change}  {domain}  {rule}  {descriptor}");
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn report_lists_rules_and_examples() {
        let page = json!({
            "requests": 12,
            "rules": [{"domain": "shop", "rule": "shop.user", "same": 9, "newly_over": 3, "no_longer_over": 0, "keys_changed": 2}],
            "examples": [{"time": "2026-11-23T10:00:00.000Z", "domain": "shop", "rule": "shop.user", "change": "newly_over", "descriptor": "user=\u{1b}4"}],
        });
        let expected = "12 requests decided with the candidate rules since they were loaded

domain  rule       same  newly over  no longer over  keys changed
shop    shop.user     9           3               0             2

the last keys whose decision changed
  2026-11-23T10:00:00.000Z  newly_over  shop  shop.user  user=\\u{1b}4
";
        let results = serde_json::from_value(page).expect("the page of results");
        assert_eq!(report(&results), expected);
    }

    #[test]
    fn report_without_requests_says_so() {
        assert_eq!(
            report(&CandidateView::default()),
            "no request was decided with candidate rules yet\n"
        );
    }
}
