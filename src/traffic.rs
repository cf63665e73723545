//! Reads recorded traffic: a request and its time on each line.
//!
//! A line is the body of a `/json` request with a `time`, or a line of Envoy's access log with the
//! dynamic metadata of the rate limit filter. Lines are read one at a time.

use std::fmt;
use std::path::Path;

use anyhow::{Context as _, bail};

use crate::api::convert;
use crate::rules::query::Query;
use crate::time::{Span, Time};
use crate::traffic::input::Input;
use crate::traffic::line::Line;

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
    stats: Stats,
}

/// What was read so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stats {
    pub(crate) lines: u64,
    pub(crate) requests: u64,
    /// Invalid lines.
    pub(crate) broken: u64,
    /// The first of them.
    pub(crate) invalid: Vec<InvalidLine>,
    /// Empty lines, and lines of an access log about requests that asked for no limit.
    pub(crate) without_request: u64,
    /// Requests with a time before that of an earlier line.
    pub(crate) late: u64,
    /// The longest time between the two.
    pub(crate) late_max: Span,
}

/// Why a line is no request.
#[derive(Debug, Clone)]
pub(crate) struct InvalidLine {
    /// 1-based.
    pub(crate) number: u64,
    pub(crate) reason: String,
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
    /// It cannot be read.
    pub(crate) fn open(path: &Path, errors_max: u64) -> anyhow::Result<Self> {
        Ok(Self {
            input: Input::open(path).with_context(|| format!("read {}", path.display()))?,
            request: Request::default(),
            now: Time::default(),
            errors_max,
            stats: Stats::default(),
        })
    }

    /// The next request; `None` at the end. Time never goes back: a request with an earlier time
    /// than the one before counts at that time, because logs are written when requests end.
    ///
    /// # Errors
    /// The file cannot be read, or has too many invalid lines.
    pub(crate) fn read(&mut self) -> anyhow::Result<Option<Record<'_>>> {
        let line = loop {
            let number = self.stats.lines + 1;
            let read = self.input.read_line();
            let Some(text) = read.with_context(|| format!("read line {number}"))? else {
                return Ok(None);
            };
            self.stats.lines = number;
            match text.and_then(Line::read) {
                Ok(Some(line)) => break line,
                Ok(None) => self.stats.without_request += 1,
                Err(reason) => self
                    .stats
                    .reject(InvalidLine { number, reason }, self.errors_max)?,
            }
        };
        self.stats.requests += 1;
        if line.time < self.now {
            self.stats.late += 1;
            self.stats.late_max = self.stats.late_max.max(self.now.since(line.time));
        }
        self.now = self.now.max(line.time);
        self.request = line.request;
        Ok(Some(Record {
            time: self.now,
            query: convert::query(&self.request),
        }))
    }

    /// What was read so far.
    pub(crate) const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The percentage of the file that was read, if its size is known.
    pub(crate) fn percent(&self) -> Option<u64> {
        self.input.percent()
    }
}

impl fmt::Display for InvalidLine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "line {}: {}", self.number, self.reason)
    }
}

impl Stats {
    /// Counts an invalid line.
    fn reject(&mut self, line: InvalidLine, errors_max: u64) -> anyhow::Result<()> {
        self.broken += 1;
        if self.broken > errors_max {
            let number = match errors_max {
                0 => "a line is invalid".to_owned(),
                1 => "more than 1 line is invalid".to_owned(),
                _ => format!("more than {errors_max} lines are invalid"),
            };
            bail!("{number} (--max-errors {errors_max}); {line}");
        }
        if self.invalid.len() < INVALID_LINES_KEPT_MAX {
            self.invalid.push(line);
        }
        Ok(())
    }
}
