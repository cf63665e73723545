//! A picture, in whole numbers, so that the same run makes the same bytes everywhere.
//!
//! ```text
//!  token_bucket, burst 10                       5009 of 10000 admitted, 19 in any 1 s at most
//!   19 |    ____                 what began within the last period (of concurrency: what goes on)
//!   10 |- -/- - \- - - - - -     the limit
//!      |__/______\__________
//!      |  ##      #              what began in each column, and on top of it what was over limit
//!      +------+------+------
//!      0 s    1 s    2 s
//! ```
//!
//! Its background is its own and light, so it is read on light and on dark pages alike.

use std::fmt::Write as _;

use crate::base::time::Span;
use crate::cli::table::rounded;
use crate::report::{Run, Scene, Simulation};
use crate::what_if::simulate::play::COLUMNS;

const WIDTH: u64 = 720;
/// Where columns begin, right of the numbers of the axis.
const LEFT: u64 = 50;
/// The width of all columns.
const PLOT: u64 = 660;
const COLUMN: u64 = PLOT / COLUMNS as u64;
/// Heights: a line of text, the upper plot and the lower.
const LINE: u64 = 18;
const LEVEL: u64 = 44;
const BARS: u64 = 24;
const GAP: u64 = 6;
const PANEL: u64 = LINE + LEVEL + GAP + BARS + GAP;

const INK: &str = "#24292f";
const FAINT: &str = "#767d85";
const PAPER: &str = "#fbfbfa";
const ADMITTED: &str = "#2a78b8";
const REFUSED: &str = "#e8a39b";
const LEVEL_FILL: &str = "#d5e5f2";
const LIMIT: &str = "#b03a2e";

/// Writes everything.
pub fn write(simulation: &Simulation) -> String {
    let panels = simulation
        .scenes
        .iter()
        .map(|scene| scene.runs.len() as u64)
        .sum::<u64>();
    let scenes = simulation.scenes.len() as u64;
    let height = LINE + scenes * (2 * LINE + GAP) + panels * PANEL + LINE + GAP;
    let mut svg = start(&simulation.title, height);
    let mut y = LINE;
    for scene in &simulation.scenes {
        text(
            &mut svg,
            (8, y),
            "start",
            &format!(
                "<tspan font-weight=\"bold\">{}</tspan>",
                escaped(&scene.traffic)
            ),
        );
        y += GAP;
        for run in &scene.runs {
            panel(&mut svg, y, scene, run);
            y += PANEL;
        }
        axis(&mut svg, y, scene);
        y += 2 * LINE;
    }
    legend(&mut svg, y, simulation);
    svg + "</svg>\n"
}

fn panel(svg: &mut String, top: u64, scene: &Scene, run: &Run) {
    caption(svg, top, scene, run);
    let base = top + LINE + LEVEL;
    level(svg, base, scene, run);
    bars(svg, base + GAP + BARS, scene, run);
}

/// The label of a panel on the left, its figures on the right.
fn caption(svg: &mut String, top: u64, scene: &Scene, run: &Run) {
    let is_held = run.limit.algorithm.counts_holders();
    let (most, of) = match run.most_at_once {
        Some(most) if is_held => (most, "at once".to_owned()),
        _ => (run.most_in_a_period, format!("in any {}", scene.period)),
    };
    let waited = if run.queued > 0 {
        format!(", waits of up to {}", rounded(run.wait_max))
    } else {
        String::new()
    };
    let summary = format!(
        "{} of {} admitted, {most} {of} at most{waited}",
        run.admitted, scene.calls
    );
    text(svg, (LEFT, top + 12), "start", &escaped(&run.label));
    text(svg, (LEFT + PLOT, top + 12), "end", &escaped(&summary));
}

/// The counter's level over time, and the limit.
fn level(svg: &mut String, base: u64, scene: &Scene, run: &Run) {
    // One scale for all panels of a scene, so that they can be compared.
    let levels = scene.runs.iter().flat_map(|run| {
        let limit = run.limit.requests;
        run.chart.level.iter().copied().chain([limit])
    });
    let highest = levels.max().unwrap_or(0).max(1);
    let heights = run
        .chart
        .level
        .iter()
        .map(|&level| scaled(level, highest, LEVEL));
    path(
        svg,
        LEVEL_FILL,
        &skyline(base, &heights.collect::<Vec<_>>()),
    );
    let requests = run.limit.requests;
    let line = base - scaled(requests, highest, LEVEL);
    let _ = writeln!(
        svg,
        "<path d=\"M{LEFT} {line}h{PLOT}\" stroke=\"{LIMIT}\" stroke-dasharray=\"4 3\"/>"
    );
    text(svg, (LEFT - 4, line + 4), "end", &requests.to_string());
}

/// Admitted and rejected hits over time.
fn bars(svg: &mut String, base: u64, scene: &Scene, run: &Run) {
    // Queued requests that are admitted later can share a column with rejected ones.
    let stacked = |run: &Run| -> Vec<u64> {
        let columns = run.chart.admitted.iter().zip(&run.chart.refused);
        columns
            .map(|(admitted, refused)| admitted.saturating_add(*refused))
            .collect()
    };
    let all = scene.runs.iter().flat_map(&stacked);
    let most = all
        .chain(scene.chart.hits.iter().copied())
        .max()
        .unwrap_or(0)
        .max(1);
    let heights = |columns: &[u64]| -> Vec<u64> {
        columns
            .iter()
            .map(|&hits| scaled(hits, most, BARS))
            .collect()
    };
    path(svg, REFUSED, &skyline(base, &heights(&stacked(run))));
    path(svg, ADMITTED, &skyline(base, &heights(&run.chart.admitted)));
    let _ = writeln!(
        svg,
        "<path d=\"M{LEFT} {base}h{PLOT}\" stroke=\"{FAINT}\"/>"
    );
}

/// Marks where windows begin, as far as they fit.
fn axis(svg: &mut String, top: u64, scene: &Scene) {
    let (shown, period) = (scene.chart.shown.as_micros(), scene.period.as_micros());
    let step = (shown / period).div_ceil(12).max(1);
    for number in (0..=shown / period).step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
        let x = LEFT
            + u64::try_from(
                u128::from(number) * u128::from(period) * u128::from(PLOT) / u128::from(shown),
            )
            .unwrap_or(0);
        let _ = writeln!(svg, "<path d=\"M{x} {}v4\" stroke=\"{FAINT}\"/>", top - GAP);
        text(
            svg,
            (x, top + 9),
            "middle",
            &escaped(&rounded(Span::from_micros(number * period))),
        );
    }
}

fn legend(svg: &mut String, top: u64, simulation: &Simulation) {
    let Some(first) = simulation.scenes.first() else {
        return;
    };
    let period = first.period;
    let each = rounded(Span::from_micros(
        first.chart.shown.as_micros() / COLUMNS as u64,
    ));
    let is_held = |run: &Run| run.limit.algorithm.counts_holders();
    let level = match (
        first.runs.iter().any(is_held),
        first.runs.iter().all(is_held),
    ) {
        (false, _) => format!("admitted within the last {period}"),
        (_, true) => "in flight".to_owned(),
        _ => format!("admitted within the last {period}; of concurrency, in flight"),
    };
    let mut x = LEFT;
    for (colour, words) in [
        (LEVEL_FILL, &level),
        (ADMITTED, &format!("admitted in each {each}")),
        (REFUSED, &"refused".to_owned()),
    ] {
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>",
            top - 9
        );
        text(svg, (x + 14, top), "start", &escaped(words));
        x += 34 + 6 * words.chars().count() as u64;
    }
    let _ = writeln!(
        svg,
        "<path d=\"M{x} {}h14\" stroke=\"{LIMIT}\" stroke-dasharray=\"4 3\"/>",
        top - 4
    );
    text(svg, (x + 18, top), "start", "limit");
}

/// The start of the picture.
fn start(title: &str, height: u64) -> String {
    let title = escaped(title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\" \
         fill=\"{INK}\">\n<title>{title}</title>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"{PAPER}\"/>\n"
    )
}

/// The outline of all columns.
fn skyline(base: u64, heights: &[u64]) -> String {
    let mut outline = format!("M{LEFT} {base}");
    let mut height = 0;
    let last = heights.iter().rposition(|&height| height > 0);
    let heights = &heights[..last.map_or(0, |last| last + 1)];
    for run in heights.chunk_by(|one, next| one == next) {
        if run[0] != height {
            let _ = write!(outline, "v{}", i128::from(height) - i128::from(run[0]));
            height = run[0];
        }
        let _ = write!(outline, "h{}", COLUMN * run.len() as u64);
    }
    if height > 0 {
        let _ = write!(outline, "v{height}");
    }
    outline + "z"
}

/// The height of a value; at least 1 for a value that is not 0.
fn scaled(value: u64, most: u64, height: u64) -> u64 {
    u64::try_from((u128::from(value) * u128::from(height)).div_ceil(u128::from(most)))
        .unwrap_or(height)
}

fn path(svg: &mut String, color: &str, outline: &str) {
    let _ = writeln!(svg, "<path fill=\"{color}\" d=\"{outline}\"/>");
}

/// Adds a text, which must be escaped.
fn text(svg: &mut String, (x, y): (u64, u64), anchor: &str, text: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{text}</text>"
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
