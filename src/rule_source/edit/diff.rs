//! The lines in which two texts differ, for the log.

use std::io;
use std::time::Duration;

use similar::TextDiff;

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
    let lines = |text: &[u8]| memchr::memchr2_iter(b'\n', b'\r', text).count();
    let [lines_before, lines_after] = [lines(before), lines(after)];
    if before != after && lines_before.max(lines_after) > DIFF_LINES_MAX {
        return format!("{lines_before} lines before, {lines_after} lines after");
    }
    let [before, after] = [before, after].map(String::from_utf8_lossy);
    let mut config = TextDiff::configure();
    let lines = config.timeout(DIFF_TIME_MAX).diff_lines(&*before, &*after);
    let mut diff = lines.unified_diff();
    let mut text = Bounded::default();
    let written = diff.context_radius(CONTEXT_LINES).to_writer(&mut text);
    written.expect("a buffer can be written");
    let shown = String::from_utf8_lossy(&text.kept);
    match text.left_out {
        0 => shown.into_owned(),
        bytes => format!("{}\n... {bytes} more bytes", shown.trim_end()),
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
