//! Plays a file of recorded requests, with progress on a terminal.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;

use anyhow::anyhow;

use crate::base::time::Time;
use crate::cli::output::print_error;
use crate::report::TrafficStats;
use crate::what_if::traffic::{Reader, Record};

/// Requests between two updates of the progress on a terminal: some a second.
const PROGRESS_REQUESTS: u64 = 1 << 16;

/// Decides every request of a file, and prints its first invalid lines to stderr. More than
/// `errors_max` of them are an error. Returns the times of the first and the last request, too.
///
/// # Errors
/// The file cannot be read, has too many invalid lines or no request.
pub(crate) fn play(
    path: &Path,
    errors_max: u64,
    mut decide: impl FnMut(&Record<'_>),
) -> anyhow::Result<(TrafficStats, Option<(Time, Time)>)> {
    let mut reader = Reader::open(path, errors_max)?;
    let shows_progress = io::stderr().is_terminal();
    let mut times: Option<(Time, Time)> = None;
    loop {
        if shows_progress && reader.stats().requests.is_multiple_of(PROGRESS_REQUESTS) {
            show_progress(&reader);
        }
        let Some(record) = reader.read()? else { break };
        decide(&record);
        times = Some((times.map_or(record.time, |(first, _)| first), record.time));
    }
    if shows_progress {
        // Erases the line.
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
    let stats = reader.stats().clone();
    if stats.requests == 0 {
        let path = path.display();
        let why = stats.invalid_lines.first();
        let why = why.map_or_else(String::new, |line| format!("; {line}"));
        return Err(anyhow!("{path} has no request{why}"));
    }
    for line in &stats.invalid_lines {
        print_error(&line.to_string());
    }
    Ok((stats, times))
}

fn show_progress(reader: &Reader) {
    let percent = reader.percent().map_or_else(String::new, |percent| format!("{percent} %, "));
    let requests = reader.stats().requests;
    let _ = write!(io::stderr(), "\r\x1b[K{percent}{requests} requests");
}
