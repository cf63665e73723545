//! Tables for people, and spans in them.

use crate::base::time::Span;

/// Spans are written to so many digits.
const DIGITS: usize = 3;

/// Rows of cells below a head, if there is one: the first `names` of each on the left of their
/// columns, the others on the right. Rows may be shorter than the first.
pub(crate) fn table(
    names: usize,
    head: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let head: Vec<String> = head.iter().map(ToString::to_string).collect();
    let head = Some(head).filter(|head| !head.is_empty());
    let rows: Vec<Vec<String>> = head.into_iter().chain(rows).collect();
    let length = |cell: &String| cell.chars().count();
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..columns)
        .map(|at| rows.iter().filter_map(|row| row.get(at)).map(length).max())
        .map(|widest| widest.unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (at, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            line += if at > 0 { "  " } else { "" };
            line += &if at < names { format!("{cell:<width$}") } else { format!("{cell:>width$}") };
        }
        text += &format!("{}\n", line.trim_end());
    }
    text
}

/// A span to three digits, in the unit that leaves at least one before the point.
pub(crate) fn rounded(span: Span) -> String {
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
    let (unit, name) = UNITS.into_iter().find(|(unit, _)| micros >= *unit).unwrap_or((1, "µs"));
    let whole = micros / unit;
    let part = u128::from(micros % unit) * 1_000 / u128::from(unit);
    let digits = whole.to_string().len();
    let fraction: String =
        format!("{part:03}").chars().take(DIGITS.saturating_sub(digits)).collect();
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
}
