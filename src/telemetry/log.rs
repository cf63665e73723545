//! The log: to stderr, as text for people or as JSON for collectors.

use std::fmt;
use std::io::IsTerminal;
use std::str::FromStr;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;

/// From which level on to log, by the names of the reference's library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level(tracing::Level);

/// What a line looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// For collectors: `@timestamp`, `@message`, `level`, and the fields.
    Json,
}

impl Level {
    /// The level without LOG_LEVEL: `info` on a terminal, where a person expects to see that a changed file was reloaded; elsewhere `warn`, as
    /// in envoyproxy/ratelimit.
    pub fn default_for(stdout: &impl IsTerminal) -> Self {
        Self(if stdout.is_terminal() { tracing::Level::INFO } else { tracing::Level::WARN })
    }

    /// What this crate says from this level on, and less of what its libraries do: at `debug`, which Istio's sample asks for, HTTP/2 alone
    /// would write six lines for every call. Whoever wants those asks for `trace`.
    fn filter(self) -> Targets {
        let of_others = if self.0 == tracing::Level::DEBUG { tracing::Level::INFO } else { self.0 };
        Targets::new().with_default(of_others).with_target(env!("CARGO_CRATE_NAME"), self.0)
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
            // There is nothing between an error and the end of the process here.
            "error" | "fatal" | "panic" => tracing::Level::ERROR,
            _ => return Err("write one of trace, debug, info, warn, error, fatal, panic".to_owned()),
        }))
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

/// Begins to log. Called once; a second call changes nothing.
pub fn start(level: Level, format: Format) {
    // Where the log cannot be written, the attempt to tell so on stderr would panic: a pipe whose reader died must not end the service.
    let builder = tracing_subscriber::fmt().with_max_level(level.0).with_writer(std::io::stderr).log_internal_errors(false);
    // It fails only if somebody was faster, and then there is a log.
    let _ = match format {
        Format::Text => tracing::subscriber::set_global_default(builder.with_ansi(false).with_target(false).finish().with(level.filter())),
        Format::Json => tracing::subscriber::set_global_default(builder.event_format(JsonLine).finish().with(level.filter())),
    };
}

struct JsonLine;

impl<S, N> FormatEvent<S, N> for JsonLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut timestamp = String::new();
        SystemTime.format_time(&mut Writer::new(&mut timestamp))?;
        let mut line = Map::new();
        line.insert("@timestamp".to_owned(), timestamp.into());
        line.insert("level".to_owned(), event.metadata().level().as_str().to_ascii_lowercase().into());
        event.record(&mut Fields(&mut line));
        writeln!(writer, "{}", Value::Object(line))
    }
}

struct Fields<'m>(&'m mut Map<String, Value>);

impl Fields<'_> {
    fn put(&mut self, field: &Field, value: Value) {
        let name = if field.name() == "message" { "@message" } else { field.name() };
        self.0.insert(name.to_owned(), value);
    }
}

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }
}
