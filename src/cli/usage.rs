//! `tollgate usage`: how much of the limits of a descriptor is used.

use std::process::ExitCode;

use crate::base::removed::replacement;
use crate::base::text::Escaped;
use crate::cli::counter;
use crate::cli::fetch::{self, Service, encoded};
use crate::cli::output::{CliError, Format};
use crate::cli::table::table;
use crate::report::usage::Usage;
use crate::rules::Entry;

/// The end of the help.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
   3  the domain is unknown: nothing is limited
   4  no rule counts the descriptor
   1  the service is unreachable, or rejected the request";

/// Arguments of `usage`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// The domain that Envoy's filter is configured with
    #[arg(value_name = "DOMAIN")]
    domain: String,
    /// Entries of the descriptor, the outermost first
    #[arg(value_name = "KEY=VALUE", required_unless_present = "entry")]
    entries: Vec<String>,
    /// An entry before those
    #[arg(short, long, value_name = "KEY=VALUE", hide = true)]
    entry: Vec<String>,
    #[command(flatten)]
    service: Service,
    /// What to print
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,
}

/// Prints the usage.
///
/// # Errors
/// The command line is invalid, the service is unreachable, or it rejects the request.
pub(crate) fn run(args: &Args) -> Result<ExitCode, CliError> {
    let entries = [&*args.entry, &args.entries].concat();
    if args.entries.first().is_some_and(|word| !word.contains('=')) {
        let removed = replacement("tollgate usage").unwrap_or_default();
        return Err(CliError::Usage(format!(
            "write entries as KEY=VALUE; the path of a rule was removed: {removed}"
        )));
    }
    // Reports invalid entries before the service does.
    for entry in &entries {
        Entry::parse(entry).map_err(CliError::Usage)?;
    }
    let entries = counter::entry_parameters(&entries);
    let page = format!("/api/v1/usage?domain={}{entries}", encoded(&args.domain));
    let response = fetch::send(&args.service.url, &page, None, &[])?;
    counter::print_answer(args.format, &response, text)
}

fn text(usage: &Usage) -> String {
    let head = ["rule", "limit", "period", "used up", "used", "of", "remaining", "%"];
    let rows = usage.limits.iter().map(|limit| {
        let period = match (&limit.period.end, limit.period.seconds) {
            (Some(end), _) => format!("to {end}"),
            (None, Some(seconds)) => format!("{seconds} s"),
            (None, None) => "-".to_owned(),
        };
        let texts = [
            limit.rule.clone(),
            limit.name.clone(),
            period,
            limit.used_up().unwrap_or("-").to_owned(),
        ];
        let numbers = [limit.used, limit.limit, limit.remaining, limit.used_percent];
        let texts = texts.iter().map(|text| Escaped(text).to_string());
        texts.chain(numbers.map(|number| number.to_string())).collect()
    });
    table(4, &head, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::counter::CountedIn;
    use crate::report::usage::{LimitUsage, Projection, UsagePeriod};

    fn limit(name: &str, level: usize, used: u64) -> LimitUsage {
        LimitUsage {
            rule: "llm.team".to_owned(),
            name: name.to_owned(),
            level,
            limit: 100,
            used,
            remaining: 100 - used,
            used_percent: used,
            over_limit: used == 100,
            warn_at: Vec::new(),
            period: UsagePeriod {
                start: Some("2026-11-01T00:00:00+01:00".to_owned()),
                end: Some("2026-12-01T00:00:00+01:00".to_owned()),
                ..UsagePeriod::default()
            },
            resets_in_seconds: 60,
            projected: Some(Projection {
                used_at_end: 102,
                exhausted_at: Some("2026-11-30T06:26:20+01:00".to_owned()),
            }),
            counted_in: CountedIn::Redis,
        }
    }

    #[test]
    fn limits_are_a_table() {
        let limits = vec![limit("team\u{1b}", 0, 82), limit("user", 1, 100)];
        let usage = Usage { domain: "llm".to_owned(), limits };
        let expected = "\
rule      limit       period                        used up                    used   of  remaining    %
llm.team  team\\u{1b}  to 2026-12-01T00:00:00+01:00  2026-11-30T06:26:20+01:00    82  100         18   82
llm.team  user        to 2026-12-01T00:00:00+01:00  now                         100  100          0  100
";
        assert_eq!(text(&usage), expected);
    }
}
