//! The log: on stderr, as text for people or as JSON for collectors.
//!
//! A thread of its own writes it, so a log that is not read delays nothing.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::borrow::Cow;
use std::io::{self, IsTerminal, Write as _};
use std::str::FromStr;
use std::sync::Arc;
use std::{fmt, panic, thread};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;

use crate::telemetry::log::queue::Queue;
use crate::telemetry::metric::Metrics;

mod queue;

/// Events of this target are logged at every level.
pub const AUDIT: &str = "audit";

/// The lowest level that is logged, by the names of envoyproxy/ratelimit's library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level(tracing::Level);

/// The log of the process. Dropping it waits a short time for the last lines to be written.
#[derive(Debug)]
pub(crate) struct Log(Queue);

/// The format of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A timestamp, the level, the message and the fields, as people read them.
    Text,
    /// For collectors: `@timestamp`, `@message`, `level`, and the fields.
    Json,
}

impl Level {
    /// The level without LOG_LEVEL: `info` on a terminal, where a person expects to see that a
    /// changed file was reloaded; elsewhere `warn`, as in envoyproxy/ratelimit.
    pub fn default_for(stdout: &impl IsTerminal) -> Self {
        Self(if stdout.is_terminal() { tracing::Level::INFO } else { tracing::Level::WARN })
    }

    /// This level for this crate. Libraries log less at `debug`, which Istio's sample sets: HTTP/2
    /// alone would log six lines per request. `trace` includes them.
    fn filter(self) -> Targets {
        let of_others = if self.0 == tracing::Level::DEBUG { tracing::Level::INFO } else { self.0 };
        Targets::new()
            .with_default(of_others)
            .with_target(env!("CARGO_CRATE_NAME"), self.0)
            .with_target(AUDIT, tracing::Level::INFO)
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Ok(Self(match &*name.to_ascii_lowercase() {
            "trace" => tracing::Level::TRACE,
            "debug" => tracing::Level::DEBUG,
            "info" => tracing::Level::INFO,
            "warn" | "warning" => tracing::Level::WARN,
            // Nothing is more severe than an error here.
            "error" | "fatal" | "panic" => tracing::Level::ERROR,
            _ => {
                return Err("write one of trace, debug, info, warn, error, fatal, panic".to_owned());
            }
        }))
    }
}

impl Log {
    /// Shows its metric.
    pub(crate) fn register(&self, metrics: &Metrics) {
        metrics.add_source(Arc::new(self.0.dropped.clone()));
    }

    /// Writes a line that is not an event.
    pub(crate) fn write(&self, line: &str) {
        // A full queue is no error.
        let _ = self.0.lines.clone().write_all(line.as_bytes());
    }
}

impl Format {
    /// A line of fields, the message first.
    fn line(self, level: tracing::Level, fields: Vec<(&str, Value)>) -> String {
        let mut timestamp = String::new();
        // Writing to a string cannot fail.
        let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
        match self {
            Self::Text => format!("{timestamp} {:>5}{}\n", level.as_str(), text(&fields)),
            Self::Json => {
                let named = fields.into_iter().map(|(name, value)| match name {
                    "message" => ("@message".to_owned(), value),
                    name => (name.to_owned(), value),
                });
                let mut line: Map<String, Value> = named.collect();
                line.insert("@timestamp".to_owned(), timestamp.into());
                // As envoyproxy/ratelimit's library names it.
                let level = match level {
                    tracing::Level::WARN => "warning".to_owned(),
                    level => level.as_str().to_ascii_lowercase(),
                };
                line.insert("level".to_owned(), level.into());
                format!("{}\n", Value::Object(line))
            }
        }
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match &*name.to_ascii_lowercase() {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err("write text or json".to_owned()),
        }
    }
}

/// Starts to log events and panics. A second call has no effect on either.
pub(crate) fn start(level: Level, format: Format) -> Log {
    let queue = Queue::start(io::stderr(), move |lines| {
        let message = ("message", "log lines dropped".into());
        format.line(tracing::Level::WARN, vec![message, ("lines", lines.into())])
    });
    let log = tracing_subscriber::fmt()
        .with_max_level(level.0.max(tracing::Level::INFO))
        .with_writer(queue.lines.clone())
        .event_format(Line(format))
        .finish()
        .with(level.filter());
    // It fails only if there is a log already.
    if tracing::subscriber::set_global_default(log).is_ok() {
        panic::set_hook(Box::new(log_panic));
    }
    Log(queue)
}

/// The default hook writes to stderr itself, which may block.
fn log_panic(panic: &panic::PanicHookInfo<'_>) {
    let current = thread::current();
    let backtrace = Some(Backtrace::capture())
        .filter(|backtrace| backtrace.status() == BacktraceStatus::Captured)
        .map(|backtrace| backtrace.to_string());
    tracing::error!(thread = current.name(), backtrace, "{panic}");
}

/// Formats events.
struct Line(Format);

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        writer.write_str(&self.0.line(*event.metadata().level(), fields.0))
    }
}

/// The fields of an event, the message first.
#[derive(Default)]
struct Fields(Vec<(&'static str, Value)>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push((field.name(), format!("{value:?}").into()));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.push((field.name(), value.into()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.push((field.name(), value.into()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.push((field.name(), value.into()));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.push((field.name(), value.into()));
    }
}

/// The message, then `key=value` for each field, quoted as logfmt where that is needed.
fn text(fields: &[(&str, Value)]) -> String {
    let mut text = String::new();
    for (name, value) in fields {
        let value = match value {
            Value::String(value) => Cow::Borrowed(value.as_str()),
            other => Cow::Owned(other.to_string()),
        };
        text += &match *name {
            "message" => format!(" {}", message(&value)),
            name => format!(" {name}={}", logfmt_value(&value)),
        };
    }
    text
}

/// A message without control characters, which a terminal would interpret. Line breaks are kept:
/// errors in rules show the line with a caret below.
fn message(text: &str) -> String {
    let mut message = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() && letter != '\n' && letter != '\t' {
            message.extend(letter.escape_default());
        } else {
            message.push(letter);
        }
    }
    message
}

/// A value as logfmt: in quotes where it would otherwise be parsed differently.
fn logfmt_value(value: &str) -> Cow<'_, str> {
    let wants_quotes = |letter: char| {
        letter.is_whitespace() || letter.is_control() || matches!(letter, ',' | '"' | '=')
    };
    if !value.is_empty() && !value.contains(wants_quotes) {
        return value.into();
    }
    let mut quoted = String::with_capacity(value.len() + 2);
    quoted.push('"');
    for letter in value.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            '\n' => quoted += "\\n",
            '\r' => quoted += "\\r",
            '\t' => quoted += "\\t",
            _ if letter.is_control() => quoted += &format!("\\u{:04x}", u32::from(letter)),
            _ => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted.into()
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// The lines written.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn levels_have_the_names_of_the_reference() {
        // LOG_LEVEL, and what it includes.
        for (names, level) in [
            ("trace TRACE", tracing::Level::TRACE),
            ("debug", tracing::Level::DEBUG),
            ("info", tracing::Level::INFO),
            ("warn WARN warning", tracing::Level::WARN),
            ("error fatal panic", tracing::Level::ERROR),
        ] {
            for name in names.split(' ') {
                assert_eq!(name.parse(), Ok(Level(level)), "{name}");
            }
        }
        assert!("loud".parse::<Level>().is_err());
        let warn = Level(tracing::Level::WARN).filter();
        let own = env!("CARGO_CRATE_NAME");
        assert!(warn.would_enable(own, &tracing::Level::WARN));
        assert!(!warn.would_enable(own, &tracing::Level::INFO));
    }

    #[test]
    fn text_values_are_quoted_as_logfmt() {
        let lines = Lines::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .event_format(Line(Format::Text));
        tracing::subscriber::with_default(log.finish(), || {
            tracing::info!(server = %"10.0.0.1:6379,10.0.0.2:6379", name = "redis", "an address list");
            tracing::info!(why = %"a=b", said = "he said \"no\"\\", none = "", count = 3, list = ?["a", "b"], "other values");
            tracing::warn!(error = %"two\nlines\t\u{1b}[31m", is_red = true, "control \u{1b}[31mcharacters\nin a message");
        });
        let expected = r#" INFO an address list server="10.0.0.1:6379,10.0.0.2:6379" name=redis
 INFO other values why="a=b" said="he said \"no\"\\" none="" count=3 list="[\"a\", \"b\"]"
 WARN control \u{1b}[31mcharacters
in a message error="two\nlines\t\u001b[31m" is_red=true
"#;
        let written = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let without_time: String = written
            .split_inclusive('\n')
            .map(|line| line.split_once("Z ").map_or(line, |(_, rest)| rest))
            .collect();
        assert_eq!(without_time, expected);
    }
}
