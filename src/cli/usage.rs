//! `tollgate usage`: how much of the limits of a descriptor, or of all keys of a rule, is used.

use std::process::ExitCode;

use crate::base::environment::Environment;
use crate::base::text::Escaped;
use crate::cli::counter;
use crate::cli::fetch::{self, Service, encoded};
use crate::cli::output::{CliError, print, print_error};
use crate::cli::table::table;
use crate::report::counter::Entries;
use crate::report::usage::{CSV_HEAD, LimitUsage, Usage};
use crate::rules::Entry;

/// The end of the help.
pub(crate) const EXIT_CODES: &str = "\
Values are shown with ADMIN_TOKEN or ADMIN_READ_TOKEN, else as ADMIN_REDACT of the service says.

Exit codes:
   3  the domain is unknown: nothing is limited
   4  no rule counts the descriptor
   1  the service is unreachable, or rejected the request";
const INCOMPLETE: &str =
    "these are not all keys: reading them took 60 s, or they are more than are kept";

/// Arguments of `usage`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// The domain that Envoy's filter is configured with
    #[arg(value_name = "DOMAIN")]
    domain: String,
    /// All keys of the rule of this path, such as llm.team
    #[arg(
        value_name = "RULE",
        required_unless_present = "entry",
        conflicts_with = "entry"
    )]
    rule: Option<String>,
    /// An entry of a descriptor, the outermost first
    #[arg(short, long, value_name = "KEY=VALUE")]
    entry: Vec<String>,
    #[command(flatten)]
    service: Service,
    /// What to print
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,
}

/// What the command prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// For people
    Text,
    /// For spreadsheets
    Csv,
    /// For programs
    Json,
}

/// Prints the usage.
///
/// # Errors
/// The command line is invalid, the service is unreachable, or it rejects the request.
pub(crate) fn run(args: &Args, environment: &Environment) -> Result<ExitCode, CliError> {
    let entries = args.entry.iter().map(|entry| {
        let Entry { key, value } = Entry::parse(entry).map_err(CliError::Usage)?;
        Ok([key, value].map(|part| String::from_utf8_lossy(part).into_owned()))
    });
    let entries = entries.collect::<Result<Entries, CliError>>()?;
    let asked = match &args.rule {
        Some(rule) => format!("&rule={}", encoded(rule)),
        None => counter::entry_parameters(&args.entry),
    };
    let page = format!("/api/v1/usage?domain={}{asked}", encoded(&args.domain));
    let token = fetch::read_token(environment);
    let response = fetch::send(&args.service.url, &page, None, &token)?;
    let usage: Usage = match counter::read(&response)? {
        Ok(usage) => usage,
        Err(code) => return Ok(code),
    };
    match args.format {
        Format::Json => print(&format!("{}\n", response.body.trim_end())),
        Format::Text => print(&text(&usage)),
        Format::Csv => print(&csv(usage.limits, &args.domain, &entries)),
    }
    if usage.complete == Some(false) {
        print_error(INCOMPLETE);
    }
    Ok(ExitCode::SUCCESS)
}

/// The levels of a chain are counted by the first entries of its descriptor.
fn csv(limits: Vec<LimitUsage>, domain: &str, entries: &[[String; 2]]) -> String {
    let mut text = CSV_HEAD.to_owned();
    for mut limit in limits {
        if limit.entries.is_none() {
            limit.entries = entries.get(..=limit.level).map(<[_]>::to_vec);
        }
        text += &limit.csv(domain);
    }
    text
}

fn text(usage: &Usage) -> String {
    let head = [
        "rule",
        "limit",
        "key",
        "period",
        "used up",
        "used",
        "of",
        "remaining",
        "%",
    ];
    let rows = usage.limits.iter().map(|limit| {
        let period = match (&limit.period.end, limit.period.seconds) {
            (Some(end), _) => format!("to {end}"),
            (None, Some(seconds)) => format!("{seconds} s"),
            (None, None) => "-".to_owned(),
        };
        let texts = [
            limit.rule.clone(),
            limit.name.clone(),
            limit.key(),
            period,
            limit.used_up().unwrap_or("-").to_owned(),
        ];
        let numbers = [limit.used, limit.limit, limit.remaining, limit.used_percent];
        let texts = texts.iter().map(|text| Escaped(text).to_string());
        texts
            .chain(numbers.map(|number| number.to_string()))
            .collect()
    });
    let rows: Vec<Vec<String>> = [head.map(str::to_owned).to_vec()]
        .into_iter()
        .chain(rows)
        .collect();
    table(5, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::counter::CountedIn;
    use crate::report::usage::{Projection, UsagePeriod};

    fn limit(name: &str, level: usize, used: u64) -> LimitUsage {
        LimitUsage {
            rule: "llm.team".to_owned(),
            name: name.to_owned(),
            level,
            entries: None,
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
            projected: Some(Projection {
                used_at_end: 102,
                exhausted_at: Some("2026-11-30T06:26:20+01:00".to_owned()),
            }),
            counted_in: CountedIn::Redis,
        }
    }

    #[test]
    fn limits_are_a_table_or_lines_for_spreadsheets() {
        let limits = vec![limit("team\u{1b}", 0, 82), limit("user", 1, 100)];
        let entries = [["team", "a"], ["user", "b"]].map(|entry| entry.map(str::to_owned));
        let lines = csv(limits.clone(), "llm", &entries);
        let expected =
            "\"team=a,user=b\",2026-11-01T00:00:00+01:00,2026-12-01T00:00:00+01:00,100,100,0,100\n";
        assert!(lines.starts_with(CSV_HEAD), "{lines}");
        assert!(lines.contains(",team=a,2026"), "{lines}");
        assert!(lines.ends_with(expected), "{lines}");
        let usage = Usage {
            domain: "llm".to_owned(),
            limits,
            complete: None,
        };
        let expected = "\
rule      limit       key  period                        used up                    used   of  remaining    %
llm.team  team\\u{1b}       to 2026-12-01T00:00:00+01:00  2026-11-30T06:26:20+01:00    82  100         18   82
llm.team  user             to 2026-12-01T00:00:00+01:00  now                         100  100          0  100
";
        assert_eq!(text(&usage), expected);
    }
}
