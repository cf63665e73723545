//! `tollgate trial report`: how decisions of a running service compare with those of its upstream.

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;

use crate::base::environment::Environment;
use crate::base::text::Escaped;
use crate::cli::fetch::{self, Service};
use crate::cli::output::{CliError, counted, print};
use crate::cli::table::table;
use crate::report::comparison::{TrialRule, TrialView, agreement};

const PAGE: &str = "/trial";

/// Arguments of `trial`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Print the agreement of each rule with its 95 % interval, and the last disagreements
    Report(Service),
}

/// Prints the report.
///
/// # Errors
/// The service is unreachable, or runs no trial.
pub(crate) fn run(args: &Args, environment: &Environment) -> Result<ExitCode, CliError> {
    let Command::Report(Service { url }) = &args.command;
    let page = fetch::get(url, PAGE, &fetch::read_token(environment))?;
    print(&report(&serde_json::from_str(&page).context("read the page of the service")?));
    Ok(ExitCode::SUCCESS)
}

fn report(results: &TrialView) -> String {
    let requests = results.requests;
    let mut text = format!(
        "{} compared with {} since {}, {} dropped; {} % of callers are answered here\n",
        counted(usize::try_from(requests).unwrap_or(usize::MAX), "request"),
        Escaped(&results.upstream),
        Escaped(&results.since),
        results.dropped,
        results.enforce_percent,
    );
    if requests == 0 {
        return text;
    }
    let _ = writeln!(text, "agreed: {}\n", agreement(results.agreed, requests));
    let head = [
        "domain",
        "rule",
        "requests",
        "agreed (95 % interval)",
        "over here",
        "over there",
        "classes",
    ];
    text += &table(2, &head, results.rules.iter().map(row));
    if !results.disagreements.is_empty() {
        text += "\nthe last disagreements\n";
    }
    for one in &results.disagreements {
        let descriptors = one.descriptors.iter().map(|one| Escaped(one).to_string());
        let _ = writeln!(
            text,
            "  {}  {}  {}  {}\n    here   {}\n    there  {}",
            Escaped(&one.time),
            Escaped(&one.class),
            Escaped(one.rule.as_deref().unwrap_or("(response)")),
            descriptors.collect::<Vec<_>>().join(" | "),
            one.here,
            one.there,
        );
    }
    text
}

fn row(rule: &TrialRule) -> Vec<String> {
    vec![
        Escaped(&rule.domain).to_string(),
        Escaped(&rule.rule).to_string(),
        rule.requests.to_string(),
        agreement(rule.agreed, rule.requests),
        rule.over_here.to_string(),
        rule.over_there.to_string(),
        rule.classes_by(|class| Escaped(class).to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn report_lists_rules_and_disagreements() {
        let page = json!({
            "since": "2026-11-23T10:00:00Z", "upstream": "ratelimit:8081", "enforce_percent": 5,
            "requests": 100, "agreed": 98, "dropped": 1,
            "rules": [
                {"domain": "shop", "rule": "(no rule)", "requests": 4, "agreed": 4, "over_here": 0, "over_there": 0, "classes": {}},
                {"domain": "shop", "rule": "shop.user", "requests": 100, "agreed": 98, "over_here": 0, "over_there": 2,
                 "classes": {"warm_up": 1, "window_edge": 0, "error_there": 1}},
            ],
            "disagreements": [{
                "time": "2026-11-23T10:00:07.5Z", "domain": "shop", "rule": "shop.user", "class": "warm_up",
                "descriptors": ["user=\u{1b}4"],
                "here": {"code": "OK", "limit_remaining": 3, "current_limit": {"requests_per_unit": 10, "unit": "minute"}, "duration_until_reset": "53s"},
                "there": {"error": "Unavailable: gone"},
            }],
        });
        let expected = "100 requests compared with ratelimit:8081 since 2026-11-23T10:00:00Z, 1 dropped; 5 % of callers are answered here
agreed: 98.00 % (93.00 to 99.45)

domain  rule       requests      agreed (95 % interval)  over here  over there                   classes
shop    (no rule)         4  100.00 % (51.01 to 100.00)          0           0
shop    shop.user       100    98.00 % (93.00 to 99.45)          0           2  error_there 1, warm_up 1

the last disagreements
  2026-11-23T10:00:07.5Z  warm_up  shop.user  user=\\u{1b}4
    here   OK, 10 per minute, 3 left, reset in 53s
    there  error Unavailable: gone
";
        let results = serde_json::from_value(page).expect("the page of results");
        assert_eq!(report(&results), expected);
    }
}
