//! The lines in which two texts differ, for the log.

use std::io::{self, Write as _};
use std::ops::Range;
use std::time::Duration;

use similar::DiffOp;
use similar::algorithms::{Capture, Compact, Replace, myers};
use tokio::time::Instant;

/// Bytes of the diff in the log line of a change.
// bound diff_bytes_max: truncated, with the number of missing bytes; -
const DIFF_BYTES_MAX: usize = 16 << 10;
/// Time to compare large texts in detail.
// bound diff_time_max: similar parts may be shown as removed and added; -
const DIFF_TIME_MAX: Duration = Duration::from_millis(200);
/// Lines of a text that is compared: a text of line ends alone has 60 times its bytes in memory.
// bound diff_lines_max: only the number of lines is in the log; -
const DIFF_LINES_MAX: usize = 200_000;
/// Unchanged lines around changed ones, as in `diff -u`.
const CONTEXT_LINES: usize = 3;

/// Keeps the beginning of what is written, and counts the rest.
#[derive(Default)]
struct Bounded {
    kept: Vec<u8>,
    left_out: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let kept = bytes.len().min(DIFF_BYTES_MAX - self.kept.len());
        self.kept.extend_from_slice(&bytes[..kept]);
        self.left_out += bytes.len() - kept;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A unified diff of at most [`DIFF_BYTES_MAX`] bytes and the number of bytes left out; empty for
/// equal texts.
pub(crate) fn unified(before: &[u8], after: &[u8]) -> String {
    let lines = |text: &[u8]| memchr::memchr_iter(b'\n', text).count();
    let [lines_before, lines_after] = [lines(before), lines(after)];
    if before != after && lines_before.max(lines_after) > DIFF_LINES_MAX {
        return format!("{lines_before} lines before, {lines_after} lines after");
    }
    let texts = [before, after].map(String::from_utf8_lossy);
    let [before, after] = texts
        .each_ref()
        .map(|text| text.split_inclusive('\n').collect::<Vec<_>>());
    let mut text = Bounded::default();
    for hunk in hunks(&before, &after) {
        write_hunk(&mut text, &hunk, &before, &after).expect("a buffer can be written");
    }
    let shown = String::from_utf8_lossy(&text.kept);
    match text.left_out {
        0 => shown.into_owned(),
        bytes => format!("{}\n... {bytes} more bytes", shown.trim_end()),
    }
}

/// The changed lines with their context. `TextDiff` would select the algorithm at run time, and
/// compile each with each other.
fn hunks(before: &[&str], after: &[&str]) -> Vec<Vec<DiffOp>> {
    let mut found = Compact::new(Replace::new(Capture::new()), before, after);
    let [lines_before, lines_after] = [0..before.len(), 0..after.len()];
    let deadline = Some((Instant::now() + DIFF_TIME_MAX).into_std());
    let Ok(()) = myers::diff_deadline(
        &mut found,
        before,
        lines_before,
        after,
        lines_after,
        deadline,
    );
    found
        .into_inner()
        .into_inner()
        .into_grouped_ops(CONTEXT_LINES)
}

/// Writes a hunk as `diff -u` does.
fn write_hunk(
    text: &mut Bounded,
    hunk: &[DiffOp],
    before: &[&str],
    after: &[&str],
) -> io::Result<()> {
    let (Some(first), Some(last)) = (hunk.first(), hunk.last()) else {
        return Ok(());
    };
    let old = position(first.old_range().start..last.old_range().end);
    let new = position(first.new_range().start..last.new_range().end);
    writeln!(text, "@@ -{old} +{new} @@")?;
    for change in hunk
        .iter()
        .flat_map(|part| part.iter_changes(before, after))
    {
        write!(text, "{}{}", change.tag(), change.value())?;
        if !change.value().ends_with('\n') {
            writeln!(text, "\n\\ No newline at end of file")?;
        }
    }
    Ok(())
}

/// The first line, from 1, and the number of lines unless it is 1. No lines are named by the line
/// before them.
fn position(lines: Range<usize>) -> String {
    match lines.len() {
        0 => format!("{},0", lines.start),
        1 => format!("{}", lines.start + 1),
        count => format!("{},{count}", lines.start + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_lines_are_shown_with_their_context() {
        let before: Vec<String> = (1..=9).map(|line| format!("line {line}\n")).collect();
        let before = before.concat();
        let after = before.replace("line 5", "changed");
        let diff = unified(before.as_bytes(), after.as_bytes());
        let expected = "@@ -2,7 +2,7 @@\n line 2\n line 3\n line 4\n-line 5\n+changed\n line 6\n line 7\n line 8\n";
        assert_eq!(diff, expected);
        assert_eq!(unified(b"same", b"same"), "");
        assert!(unified(b"a\xff\n", b"b\n").contains("-a\u{fffd}"));
        assert_eq!(unified(b"", b"a\nb\n"), "@@ -0,0 +1,2 @@\n+a\n+b\n");
        let expected = "@@ -1 +1 @@\n-a\n+b\n\\ No newline at end of file\n";
        assert_eq!(unified(b"a\n", b"b"), expected);
    }

    #[test]
    fn a_diff_is_bounded() {
        let many = "\n".repeat(DIFF_LINES_MAX + 1);
        let diff = unified(b"", many.as_bytes());
        assert_eq!(diff, "0 lines before, 200001 lines after");
        let text = "text\n".repeat(DIFF_BYTES_MAX);
        let diff = unified(b"", text.as_bytes());
        let (shown, left_out) = diff.rsplit_once("\n... ").expect("a part is left out");
        assert!(shown.len() <= DIFF_BYTES_MAX, "{}", shown.len());
        assert!(left_out.ends_with(" more bytes"), "{left_out}");
    }
}
