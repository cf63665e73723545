//! A table and a chart, for a terminal.
//!
//! The chart has one scale for all rows, and whatever is more than nothing is seen: a row of the
//! lowest blocks is an even flow.

use crate::base::time::Span;
use crate::cli::table::{rounded, table};
use crate::report::{Scene, Simulation};
use crate::what_if::simulate::play::COLUMNS;

/// A column's height, from nothing to the most of all rows.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Writes everything.
pub fn write(simulation: &Simulation) -> String {
    let mut text = format!("{}\n", simulation.title);
    for note in &simulation.notes {
        text += &format!("{note}\n");
    }
    for scene in &simulation.scenes {
        let hits = if scene.hits == 1 { String::new() } else { format!(" of {} hits", scene.hits) };
        text += &format!(
            "\n{}; {} calls{hits} in {}\n\n",
            scene.traffic,
            scene.calls,
            rounded(scene.lasted)
        );
        text += &figures(scene);
        if let Some(note) = &scene.note {
            text += &format!("note: {note}\n");
        }
        text += &format!("\n{}", chart(scene));
    }
    text
}

fn figures(scene: &Scene) -> String {
    let most = format!("most in any {}", scene.period);
    let mut head = vec!["", "admitted", "over limit", &most, "in one window"];
    let any_at_once = scene.runs.iter().any(|run| run.most_at_once.is_some());
    let any_queue = scene.runs.iter().any(|run| run.limit.max_wait > Span::ZERO);
    if any_at_once {
        head.push("at once");
    }
    if any_queue {
        head.extend(["queued", "longest wait"]);
    }
    let rows = scene.runs.iter().map(|run| {
        let mut row = vec![run.label.clone()];
        row.extend([run.admitted, run.over_limit].map(|number| number.to_string()));
        row.extend([run.most_in_a_period, run.most_in_a_window].map(|hits| hits.to_string()));
        if any_at_once {
            row.push(run.most_at_once.map_or_else(String::new, |most| most.to_string()));
        }
        if any_queue {
            row.extend([run.queued.to_string(), rounded(run.wait_max)]);
        }
        row
    });
    table(1, &head, rows)
}

fn chart(scene: &Scene) -> String {
    let all = scene.runs.iter().flat_map(|run| &run.chart.admitted).chain(&scene.chart.hits);
    let most = all.copied().max().unwrap_or(0);
    let labels = scene.runs.iter().map(|run| run.label.chars().count());
    let width = labels.fold("calls".len(), usize::max);
    let row = |label: &str, columns: &[u64]| {
        let bars: String = columns.iter().map(|&hits| block(hits, most)).collect();
        format!("{label:<width$} |{bars}|\n")
    };
    let column = Span::from_micros(scene.chart.shown.as_micros() / COLUMNS as u64);
    let mut text = format!(
        "admitted in each {} of the first {}; {} is {most}\n",
        rounded(column),
        rounded(scene.chart.shown),
        BLOCKS[8]
    );
    text += &row("calls", &scene.chart.hits);
    for run in &scene.runs {
        text += &row(&run.label, &run.chart.admitted);
    }
    text + &format!("{:<width$} {}\n", "", axis(scene))
}

fn block(hits: u64, most: u64) -> char {
    let height = (u128::from(hits) * 8).div_ceil(u128::from(most.max(1)));
    usize::try_from(height).ok().and_then(|height| BLOCKS.get(height)).copied().unwrap_or(BLOCKS[8])
}

/// A mark where each period begins, as far as they can be distinguished.
fn axis(scene: &Scene) -> String {
    let (shown, period) =
        (u128::from(scene.chart.shown.as_micros()), u128::from(scene.period.as_micros()));
    let mut marks = [' '; COLUMNS + 2];
    if shown / period <= COLUMNS as u128 / 2 {
        for number in 0..=shown / period {
            let at = number * period * COLUMNS as u128 / shown;
            marks[usize::try_from(at).unwrap_or(0) + 1] = '^';
        }
    }
    marks[0] = ' ';
    let line: String = marks.into_iter().collect();
    format!("{} windows of {}", line.trim_end(), rounded(scene.period))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_more_than_nothing_is_seen() {
        assert_eq!([0, 1, 500, 1_000].map(|hits| block(hits, 1_000)), [' ', '▁', '▄', '█']);
    }
}
