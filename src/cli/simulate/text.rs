//! A table and a chart, for a terminal.
//!
//! The chart has one scale for all rows, and whatever is more than nothing is seen: a row of the
//! lowest blocks is an even flow.

use crate::cli::simulate::play::COLUMNS;
use crate::cli::simulate::report::{Report, Scene};
use crate::time::Span;

/// A column's height, from nothing to the most of all rows.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Spans are written to so many digits.
const DIGITS: usize = 3;

/// Writes everything.
pub fn write(report: &Report) -> String {
    let mut text = format!("{}\n", report.title);
    for note in &report.notes {
        text += &format!("{note}\n");
    }
    for scene in &report.scenes {
        let Scene { work, .. } = scene;
        let hits = if work.hits == 1 {
            String::new()
        } else {
            format!(" of {} hits", work.hits)
        };
        text += &format!(
            "\n{}; {} calls{hits} in {}\n\n",
            scene.traffic,
            work.calls,
            rounded(scene.lasted)
        );
        text += &table(scene);
        if let Some(note) = &scene.note {
            text += &format!("note: {note}\n");
        }
        text += &format!("\n{}", chart(scene));
    }
    text
}

fn table(scene: &Scene) -> String {
    let period = scene.traffic.period;
    let mut head = vec![
        String::new(),
        "admitted".into(),
        "refused".into(),
        format!("most in any {period}"),
        "in one window".into(),
    ];
    let any_at_once = scene.runs.iter().any(|run| run.most_at_once.is_some());
    let any_queue = scene.runs.iter().any(|run| run.limit.max_wait > Span::ZERO);
    if any_at_once {
        head.push("at once".into());
    }
    if any_queue {
        head.extend(["queued".into(), "longest wait".into()]);
    }
    let mut rows = vec![head];
    for run in &scene.runs {
        let mut row = vec![run.label.clone()];
        row.extend(
            [
                run.admitted,
                run.refused,
                run.most_in_a_period,
                run.most_in_a_window,
            ]
            .map(|number| number.to_string()),
        );
        if any_at_once {
            row.push(
                run.most_at_once
                    .map_or_else(String::new, |most| most.to_string()),
            );
        }
        if any_queue {
            row.extend([run.queued.to_string(), rounded(run.wait_max)]);
        }
        rows.push(row);
    }
    let widths: Vec<usize> = (0..rows[0].len())
        .map(|at| {
            rows.iter()
                .map(|row| row[at].chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in rows {
        let mut line = format!("{:<width$}", row[0], width = widths[0]);
        for (cell, &width) in row.iter().zip(&widths).skip(1) {
            line += &format!("  {cell:>width$}");
        }
        text += &format!("{}\n", line.trim_end());
    }
    text
}

fn chart(scene: &Scene) -> String {
    let all = scene
        .runs
        .iter()
        .flat_map(|run| &run.admitted_hits)
        .chain(&scene.calls);
    let most = all.copied().max().unwrap_or(0);
    let width = scene
        .runs
        .iter()
        .map(|run| run.label.chars().count())
        .max()
        .unwrap_or(0)
        .max("calls".len());
    let row = |label: &str, columns: &[u64]| {
        let bars: String = columns.iter().map(|&hits| block(hits, most)).collect();
        format!("{label:<width$} |{bars}|\n")
    };
    let column = Span::from_micros(scene.shown.as_micros() / COLUMNS as u64);
    let mut text = format!(
        "admitted in each {} of the first {}; {} is {most}\n",
        rounded(column),
        rounded(scene.shown),
        BLOCKS[8]
    );
    text += &row("calls", &scene.calls);
    for run in &scene.runs {
        text += &row(&run.label, &run.admitted_hits);
    }
    text + &format!("{:<width$} {}\n", "", axis(scene))
}

fn block(hits: u64, most: u64) -> char {
    let height = (u128::from(hits) * 8).div_ceil(u128::from(most.max(1)));
    usize::try_from(height)
        .ok()
        .and_then(|height| BLOCKS.get(height))
        .copied()
        .unwrap_or(BLOCKS[8])
}

/// A mark where each period begins, as far as they can be told apart.
fn axis(scene: &Scene) -> String {
    let (shown, period) = (
        u128::from(scene.shown.as_micros()),
        u128::from(scene.traffic.period.as_micros()),
    );
    let mut marks = [' '; COLUMNS + 2];
    if shown / period <= COLUMNS as u128 / 2 {
        for number in 0..=shown / period {
            let at = number * period * COLUMNS as u128 / shown;
            marks[usize::try_from(at).unwrap_or(0) + 1] = '^';
        }
    }
    marks[0] = ' ';
    let line: String = marks.into_iter().collect();
    format!(
        "{} windows of {}",
        line.trim_end(),
        rounded(scene.traffic.period)
    )
}

/// A span as people say it: to three digits, in the unit that leaves at least one before the point.
pub fn rounded(span: Span) -> String {
    const UNITS: [(u64, &str); 6] = [
        (86_400_000_000, "d"),
        (3_600_000_000, "h"),
        (60_000_000, "min"),
        (1_000_000, "s"),
        (1_000, "ms"),
        (1, "µs"),
    ];
    let micros = span.as_micros();
    if micros == 0 {
        return "0 s".to_owned();
    }
    let exact = span.to_string();
    if exact.len() <= DIGITS + 4 {
        return exact;
    }
    let (unit, name) = UNITS
        .into_iter()
        .find(|(unit, _)| micros >= *unit)
        .unwrap_or((1, "µs"));
    let (whole, part) = (
        micros / unit,
        u128::from(micros % unit) * 1_000 / u128::from(unit),
    );
    let digits = whole.to_string().len();
    let fraction: String = format!("{part:03}")
        .chars()
        .take(DIGITS.saturating_sub(digits))
        .collect();
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{whole}{point}{fraction} {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_rounded_for_people() {
        let cases = [
            (0, "0 s"),
            (1_000_000, "1 s"),
            (100_000, "100 ms"),
            (499_950_000, "8.33 min"),
            (83_333, "83.3 ms"),
            (90_000_000, "90 s"),
        ];
        for (micros, expected) in cases {
            assert_eq!(rounded(Span::from_micros(micros)), expected);
        }
    }

    #[test]
    fn whatever_is_more_than_nothing_is_seen() {
        assert_eq!(
            [0, 1, 500, 1_000].map(|hits| block(hits, 1_000)),
            [' ', '▁', '▄', '█']
        );
    }
}
