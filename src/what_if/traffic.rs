//! Reads recorded traffic: lines of Envoy's access log with the dynamic metadata of the rate limit
//! filter. They are read one at a time.

use std::path::Path;

use anyhow::{Context as _, bail};

use crate::api::convert;
use crate::base::time::Time;
use crate::report::{InvalidLine, TrafficStats};
use crate::rules::query::Query;
use crate::what_if::traffic::input::Input;
use crate::what_if::traffic::line::Line;

pub(crate) use line::{Descriptor, Entry, Limit, Request};

mod input;
mod line;
mod message;

/// Invalid lines that are kept to be shown; the others are only counted.
const INVALID_LINES_KEPT_MAX: usize = 10;

/// Reads a file of requests.
pub(crate) struct Reader {
    input: Input,
    request: Request,
    /// The latest time so far.
    now: Time,
    errors_max: u64,
    lines: u64,
    stats: TrafficStats,
}

/// A request and when it counts.
#[derive(Debug)]
pub(crate) struct Record<'r> {
    pub(crate) time: Time,
    pub(crate) query: Query<'r>,
}

impl Reader {
    /// Opens a file; `-` is stdin. More than `errors_max` invalid lines are an error.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn open(path: &Path, errors_max: u64) -> anyhow::Result<Self> {
        Ok(Self {
            input: Input::open(path).with_context(|| format!("read {}", path.display()))?,
            request: Request::default(),
            now: Time::default(),
            errors_max,
            lines: 0,
            stats: TrafficStats::default(),
        })
    }

    /// The next request; `None` at the end. Time never goes back: a request with an earlier time
    /// than the one before counts at that time, because logs are written when requests end.
    ///
    /// # Errors
    /// The file cannot be read, or has too many invalid lines.
    pub(crate) fn read(&mut self) -> anyhow::Result<Option<Record<'_>>> {
        let line = loop {
            let number = self.lines + 1;
            let read = self.input.read_line();
            let Some(text) = read.with_context(|| format!("read line {number}"))? else {
                return Ok(None);
            };
            self.lines = number;
            match text.and_then(Line::read) {
                Ok(Some(line)) => break line,
                Ok(None) => self.stats.without_request += 1,
                Err(reason) => {
                    let line = InvalidLine { line: number, error: reason };
                    reject(&mut self.stats, line, self.errors_max)?;
                }
            }
        };
        self.stats.requests += 1;
        if line.time < self.now {
            self.stats.late += 1;
            self.stats.late_max = self.stats.late_max.max(self.now.since(line.time));
        }
        self.now = self.now.max(line.time);
        self.request = line.request;
        Ok(Some(Record { time: self.now, query: convert::query(&self.request) }))
    }

    /// Statistics of the lines so far.
    pub(crate) const fn stats(&self) -> &TrafficStats {
        &self.stats
    }

    /// The percentage of the file that was read, if its size is known.
    pub(crate) fn percent(&self) -> Option<u64> {
        self.input.percent()
    }
}

/// Counts an invalid line.
fn reject(stats: &mut TrafficStats, line: InvalidLine, errors_max: u64) -> anyhow::Result<()> {
    stats.broken += 1;
    if stats.broken > errors_max {
        let number = match errors_max {
            0 => "a line is invalid".to_owned(),
            1 => "more than 1 line is invalid".to_owned(),
            _ => format!("more than {errors_max} lines are invalid"),
        };
        bail!("{number} (--max-errors {errors_max}); {line}");
    }
    if stats.invalid_lines.len() < INVALID_LINES_KEPT_MAX {
        stats.invalid_lines.push(line);
    }
    Ok(())
}
