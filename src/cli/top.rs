//! `tollgate top`: which keys have the most hits on a running service.
//!
//! On a terminal the view is printed again every two seconds, until it is interrupted.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Context as _;

use crate::base::environment::Environment;
use crate::base::text::Escaped;
use crate::cli::fetch::{self, Header, Service, encoded};
use crate::cli::output::{CliError, Format, print};
use crate::cli::table::table;
use crate::operator::observe::top_keys::windows::{By, Window};
use crate::report::top::{KeyHits, TopKeys};

const REFRESH_INTERVAL: Duration = Duration::from_secs(2);
/// Keys on a terminal.
const ROWS_MAX: usize = 20;
/// Characters of a key on a terminal.
const KEY_CHARS_MAX: usize = 80;
/// Moves the cursor to the first line, and clears the screen.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

/// Arguments of `top`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    #[command(flatten)]
    service: Service,
    /// Only rules of this domain
    #[arg(long, value_name = "DOMAIN")]
    domain: Option<String>,
    /// Only the rule of this path, such as shop.user
    #[arg(long, value_name = "PATH")]
    rule: Option<String>,
    /// How long ago hits may be: 1m, 5m or 60m
    #[arg(long, value_name = "WINDOW", default_value = "1m")]
    window: Window,
    /// What keys are ordered by: over_limit or hits
    #[arg(long, value_name = "COUNT", default_value = "over_limit")]
    by: By,
    /// What to print: text has all keys; on a terminal the first ones, again every two seconds
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,
}

/// Prints the keys.
///
/// # Errors
/// The service is unreachable, or its answer is not one of `/api/v1/top`.
pub(crate) fn run(args: &Args, environment: &Environment) -> Result<ExitCode, CliError> {
    let token = fetch::read_token(environment);
    let (answer, page) = read(args, &token)?;
    if args.format == Format::Json {
        print(&format!("{}\n", answer.trim_end()));
        return Ok(ExitCode::SUCCESS);
    }
    if !std::io::stdout().is_terminal() {
        print(&view(&page, args, usize::MAX));
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = view(&page, args, ROWS_MAX);
    loop {
        print(&format!("{CLEAR}{text}"));
        sleep(REFRESH_INTERVAL);
        text = match read(args, &token) {
            Ok((_, page)) => view(&page, args, ROWS_MAX),
            Err(error) => format!("{error:#}\n"),
        };
    }
}

/// The answer, as text and as JSON.
fn read(args: &Args, token: &[Header]) -> anyhow::Result<(String, TopKeys)> {
    let window = args.window.name();
    let by = args.by.name();
    let mut path = format!("/api/v1/top?window={window}&by={by}");
    for (name, value) in [("domain", &args.domain), ("rule", &args.rule)] {
        if let Some(value) = value {
            path += &format!("&{name}={}", encoded(value));
        }
    }
    let answer = fetch::get(&args.service.url, &path, token)?;
    let page = serde_json::from_str(&answer).context("read the answer of the service")?;
    Ok((answer, page))
}

/// A heading, and a line for each key: those of all rules in one order.
fn view(page: &TopKeys, args: &Args, rows_max: usize) -> String {
    let mut keys: Vec<(u64, [String; 5])> = Vec::new();
    for rule in &page.rules {
        for key in &rule.keys {
            let [domain, path] = [&rule.domain, &rule.rule].map(|name| Escaped(name).to_string());
            let [hits, over_limit] = [key.hits, key.over_limit].map(|count| count.to_string());
            let cells = [domain, path, key_text(key, rows_max), hits, over_limit];
            keys.push((args.by.of(key.counts()), cells));
        }
    }
    // Keys of a rule are in order already.
    keys.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    let mut heading = heading(page, args);
    if keys.is_empty() {
        let none = if args.by == By::Hits { "no hits" } else { "no hits over limit" };
        return format!("{heading}\n\n{none}\n");
    }
    if let Some(hint) = &page.hint {
        let page = format!("{}/console/runbook#who-is-limited", args.service.url);
        heading += &format!("\nvalues that clients send are left out: {}; {page}", Escaped(hint));
    }
    let head = ["domain", "rule", "key", "hits", "over limit"];
    let rows = keys.into_iter().take(rows_max).map(|(_, cells)| cells.into());
    format!("{heading}\n\n{}", table(3, &head, rows))
}

/// The counts, and the replica that counted.
fn heading(page: &TopKeys, args: &Args) -> String {
    let by = match args.by {
        By::OverLimit => "hits over limit",
        By::Hits => "hits",
    };
    let minutes = match args.window {
        Window::Minute => "minute",
        Window::FiveMinutes => "5 minutes",
        Window::Hour => "60 minutes",
    };
    let replica = Escaped(&page.replica);
    format!("keys by {by} in the last {minutes}, replica {replica}")
}

/// `key=value` of each entry of a key; on a terminal up to a length.
fn key_text(key: &KeyHits, rows_max: usize) -> String {
    let entries = key.key.iter().map(|[key, value]| format!("{}={}", Escaped(key), Escaped(value)));
    let text = entries.collect::<Vec<_>>().join(",");
    if rows_max < usize::MAX && text.chars().count() > KEY_CHARS_MAX {
        let start: String = text.chars().take(KEY_CHARS_MAX).collect();
        return format!("{start}...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::top::RuleHits;

    fn args(by: By) -> Args {
        Args {
            service: Service { url: String::new() },
            domain: None,
            rule: None,
            window: Window::FiveMinutes,
            by,
            format: Format::Text,
        }
    }

    #[test]
    fn keys_of_all_rules_are_in_one_order() {
        let key = |value: &str, hits, over_limit| KeyHits {
            key: [["user", value], ["path", ""]].map(|entry| entry.map(str::to_owned)).to_vec(),
            hits,
            over_limit,
        };
        let rule = |domain: &str, keys: &[KeyHits]| RuleHits {
            domain: domain.to_owned(),
            rule: format!("{domain}.user"),
            keys: keys.to_vec(),
        };
        let page = TopKeys {
            replica: "a".to_owned(),
            hint: None,
            rules: vec![
                rule("d", &[key("ann\u{1b}", 9, 3), key("bob", 5, 1)]),
                rule("shop", &[key("eve", 7, 2)]),
            ],
        };
        let expected = "keys by hits over limit in the last 5 minutes, replica a

domain  rule       key                   hits  over limit
d       d.user     user=ann\\u{1b},path=     9           3
shop    shop.user  user=eve,path=           7           2
d       d.user     user=bob,path=           5           1
";
        assert_eq!(view(&page, &args(By::OverLimit), usize::MAX), expected);
        let first = view(&page, &args(By::Hits), 1);
        assert!(first.starts_with("keys by hits in the last 5 minutes, replica a\n"));
        assert_eq!(first.lines().count(), 4, "{first}");
    }

    #[test]
    fn a_long_key_is_cut_on_a_terminal() {
        let key =
            KeyHits { key: vec![["user".to_owned(), "u".repeat(200)]], hits: 1, over_limit: 0 };
        assert_eq!(key_text(&key, ROWS_MAX).len(), KEY_CHARS_MAX + 3);
        assert_eq!(key_text(&key, usize::MAX).len(), 205);
    }

    #[test]
    fn without_hits_the_view_says_so() {
        let page = TopKeys { replica: "a".to_owned(), ..TopKeys::default() };
        assert!(view(&page, &args(By::Hits), ROWS_MAX).ends_with("\n\nno hits\n"));
    }
}
