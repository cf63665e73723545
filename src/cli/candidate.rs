//! `tollgate candidate report`: what candidate rules would change on a running service.

use std::fmt::Write as _;
use std::process::ExitCode;

use serde_json::Value;

use crate::cli::fetch::{self, Service};
use crate::cli::output::{Failure, counted, list, print, printable};
use crate::cli::table::table;

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
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let Command::Report(Service { url }) = &args.command;
    print(&report(&fetch::get_json(url, PAGE)?));
    Ok(ExitCode::SUCCESS)
}

fn report(page: &Value) -> String {
    let requests = page["requests"].as_u64().unwrap_or_default();
    if requests == 0 {
        return "no request was decided with candidate rules yet\n".to_owned();
    }
    let mut text = format!(
        "{} decided with the candidate rules since they were loaded\n\n",
        counted(usize::try_from(requests).unwrap_or(usize::MAX), "request")
    );
    let head = [
        "domain",
        "rule",
        "same",
        "newly over",
        "no longer over",
        "keys changed",
    ];
    let fields = [
        "domain",
        "rule",
        "same",
        "newly_over",
        "no_longer_over",
        "keys_changed",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(
        list(page, "rules").map(|rule| fields.map(|field| printable(&rule[field])).to_vec()),
    );
    text += &table(2, &rows);
    let mut examples = list(page, "examples").peekable();
    if examples.peek().is_some() {
        text += "\nthe last keys whose decision changed\n";
    }
    for example in examples {
        let fields = ["time", "change", "domain", "rule", "descriptor"];
        let _ = writeln!(
            text,
            "  {}",
            fields.map(|field| printable(&example[field])).join("  ")
        );
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
        assert_eq!(report(&page), expected);
    }

    #[test]
    fn report_without_requests_says_so() {
        let page = json!({"requests": 0, "rules": [], "examples": []});
        assert_eq!(
            report(&page),
            "no request was decided with candidate rules yet\n"
        );
    }
}
