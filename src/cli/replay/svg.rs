//! The report as a picture: requests over time, and those over limit, for each rule.
//!
//! ```text
//!  shop.user                                   1200 of 500000 over limit
//!   800 |     ___
//!       |____/   \\_______              requests in each column
//!       |     ##                      those over limit
//!       +-----------------
//!       2026-08-01T00:00:00Z                          2026-08-01T23:59:59Z
//! ```

use std::fmt::Write as _;

use crate::cli::draw::{self, FAINT, LEFT, PLOT, escaped, path, scaled, skyline, text};
use crate::cli::replay::report::Report;
use crate::cli::replay::tally::RuleTally;
use crate::cli::replay::timeline::{COLUMNS, Column};
use crate::cli::table::rounded;
use crate::time::{Span, Time};

/// Rules that are drawn: those with the most over-limit requests.
const RULES_DRAWN_MAX: usize = 20;
/// Heights: a line of text, and the bars.
const LINE: u64 = 18;
const BARS: u64 = 60;
const PANEL: u64 = LINE + BARS + LINE;

const REQUESTS: &str = "#9ec5e3";
const OVER_LIMIT: &str = "#b03a2e";

/// Writes everything.
pub(super) fn write(report: &Report) -> String {
    let drawn: Vec<(String, &RuleTally)> = panels(report);
    let height = LINE + drawn.len() as u64 * PANEL + 3 * LINE;
    let mut svg = draw::start(&format!("replay of {}", report.file), height);
    let Some((first, last)) = report.times else {
        return svg + "</svg>\n";
    };
    let mut y = LINE;
    let mut width = Span::ZERO;
    for (label, rule) in drawn {
        let columns;
        (columns, width) = rule.timeline.columns(last);
        panel(&mut svg, y, &label, rule, &columns);
        y += PANEL;
    }
    axis(&mut svg, y, first, last);
    legend(&mut svg, y + 2 * LINE, width);
    svg + "</svg>\n"
}

/// The rules that are drawn, each with its rows one below the other.
fn panels(report: &Report) -> Vec<(String, &RuleTally)> {
    let Some((own, compared)) = report.variants.split_first() else {
        return Vec::new();
    };
    let mut panels = Vec::new();
    for (rule, tally) in own.tally.sorted().into_iter().take(RULES_DRAWN_MAX) {
        panels.push((rule.to_owned(), tally));
        for variant in compared {
            let other = variant.tally.rules.get(rule);
            panels.extend(other.map(|tally| (format!("{rule}, {}", variant.label), tally)));
        }
    }
    panels
}

fn panel(svg: &mut String, top: u64, label: &str, rule: &RuleTally, columns: &[Column]) {
    let base = top + LINE + BARS;
    let figures = format!("{} of {} over limit", rule.over_limit, rule.requests);
    text(svg, (LEFT, top + 12), "start", &escaped(label));
    text(svg, (LEFT + PLOT, top + 12), "end", &figures);
    let most = columns.iter().map(|column| column.requests).max();
    let most = most.unwrap_or(0).max(1);
    let width = PLOT / columns.len().clamp(1, COLUMNS) as u64;
    let bars = |number: fn(&Column) -> u64| -> Vec<u64> {
        let heights = columns.iter().map(number);
        heights.map(|number| scaled(number, most, BARS)).collect()
    };
    let all = bars(|column| column.requests);
    let over_limit = bars(|column| column.over_limit);
    path(svg, REQUESTS, &skyline(width, base, &all));
    path(svg, OVER_LIMIT, &skyline(width, base, &over_limit));
    text(svg, (LEFT - 4, top + LINE + 10), "end", &most.to_string());
    let _ = writeln!(
        svg,
        "<path d=\"M{LEFT} {base}h{PLOT}\" stroke=\"{FAINT}\"/>"
    );
}

fn axis(svg: &mut String, y: u64, first: Time, last: Time) {
    text(svg, (LEFT, y), "start", &first.to_rfc3339());
    text(svg, (LEFT + PLOT, y), "end", &last.to_rfc3339());
}

fn legend(svg: &mut String, y: u64, width: Span) {
    let requests = format!("requests in each {}", rounded(width));
    for (x, color, words) in [
        (LEFT, REQUESTS, &*requests),
        (LEFT + PLOT / 3, OVER_LIMIT, "over limit"),
    ] {
        let top = y - 9;
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{top}\" width=\"10\" height=\"10\" fill=\"{color}\"/>"
        );
        text(svg, (x + 14, y), "start", words);
    }
}
