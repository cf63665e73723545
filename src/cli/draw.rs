//! Parts of pictures: an SVG with its own light background, so that it is read on light and on dark
//! pages alike. Numbers are whole, so that the same figures make the same bytes everywhere.

use std::fmt::Write as _;

pub(crate) const WIDTH: u64 = 720;
/// Where columns begin, right of the numbers of the axis.
pub(crate) const LEFT: u64 = 50;
/// The width of all columns.
pub(crate) const PLOT: u64 = 660;

pub(crate) const FAINT: &str = "#767d85";
const INK: &str = "#24292f";
const PAPER: &str = "#fbfbfa";

/// The start of a picture.
pub(crate) fn start(title: &str, height: u64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"11\" fill=\"{INK}\">\n<title>{}</title>\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"{PAPER}\"/>\n",
        escaped(title)
    )
}

/// The outline of bars side by side.
pub(crate) fn skyline(column: u64, base: u64, heights: &[u64]) -> String {
    let mut outline = format!("M{LEFT} {base}");
    let mut height = 0;
    let last = heights.iter().rposition(|&height| height > 0);
    let heights = &heights[..last.map_or(0, |last| last + 1)];
    for run in heights.chunk_by(|one, next| one == next) {
        if run[0] != height {
            let _ = write!(outline, "v{}", i128::from(height) - i128::from(run[0]));
            height = run[0];
        }
        let _ = write!(outline, "h{}", column * run.len() as u64);
    }
    if height > 0 {
        let _ = write!(outline, "v{height}");
    }
    outline + "z"
}

/// The height of a value. What is more than nothing is seen.
pub(crate) fn scaled(value: u64, most: u64, height: u64) -> u64 {
    u64::try_from((u128::from(value) * u128::from(height)).div_ceil(u128::from(most)))
        .unwrap_or(height)
}

pub(crate) fn path(svg: &mut String, color: &str, outline: &str) {
    let _ = writeln!(svg, "<path fill=\"{color}\" d=\"{outline}\"/>");
}

/// A text, which must be escaped.
pub(crate) fn text(svg: &mut String, (x, y): (u64, u64), anchor: &str, text: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{text}</text>"
    );
}

pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
