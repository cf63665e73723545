//! Settings of log and metrics.

use std::time::Duration;

use clap::Args;

use crate::settings::parse::{self, Given};
use crate::telemetry::dogstatsd::Tagging;
use crate::telemetry::log::{Format, Level};
use crate::telemetry::metric::TimeUnit;
use crate::telemetry::statsd::{self, Form, Protocol, Requested};
use crate::telemetry::tags::Tags;
use crate::time::Span;

/// The defaults are the reference's, all of them.
const STATSD_HOST_DEFAULT: &str = "localhost";
const STATSD_PORT_DEFAULT: u16 = 8_125;
const FLUSH_INTERVAL_DEFAULT: Duration = Duration::from_secs(10);
const PROMETHEUS_ADDR_DEFAULT: &str = ":9090";
const PROMETHEUS_PATH_DEFAULT: &str = "/metrics";

/// Log and metrics.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(next_help_heading = "Log and metrics")]
pub struct Settings {
    /// What is logged: trace, debug, info, warn, error, fatal or panic [default: info if stdout is
    /// a terminal, else warn]
    #[arg(long, env = "LOG_LEVEL", default_value = "", hide_default_value = true, value_name = "LEVEL", value_parser = parse::given(str::parse::<Level>))]
    pub log_level: Given<Level>,
    /// text, or json with the keys @timestamp, @message and level [default: text]
    #[arg(long, env = "LOG_FORMAT", default_value = "", hide_default_value = true, value_name = "FORMAT", value_parser = parse::given(str::parse::<Format>))]
    pub log_format: Given<Format>,
    /// Serve /metrics on an address of its own, besides the admin port [default: false]
    #[arg(long, env = "USE_PROMETHEUS", default_value = "", hide_default_value = true, value_name = "BOOL", value_parser = parse::given(parse::boolean), num_args = 0..=1, default_missing_value = "true")]
    pub use_prometheus: Given<bool>,
    /// That address [default: :9090]
    #[arg(long, env = "PROMETHEUS_ADDR", default_value = "", hide_default_value = true, value_name = "HOST:PORT", value_parser = parse::given(parse::text))]
    pub prometheus_addr: Given<String>,
    /// The path of the metrics page there [default: /metrics]
    #[arg(long, env = "PROMETHEUS_PATH", default_value = "", hide_default_value = true, value_name = "PATH", value_parser = parse::given(metrics_path))]
    pub prometheus_path: Given<String>,
    /// With USE_PROMETHEUS: a mapping file of statsd_exporter, by which the reference's metrics
    /// are named [default: its usual names]
    #[arg(long, env = "PROMETHEUS_MAPPER_YAML", default_value = "", hide_default_value = true, value_name = "FILE", value_parser = parse::given(parse::text))]
    pub prometheus_mapper_yaml: Given<String>,
    /// With USE_PROMETHEUS, and without a mapping file: response times in milliseconds, under the
    /// same name [default: false]
    #[arg(long, env = "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", default_value = "", hide_default_value = true, value_name = "BOOL", value_parser = parse::given(parse::boolean), num_args = 0..=1, default_missing_value = "true")]
    pub prometheus_response_time_as_milliseconds: Given<bool>,
    /// Send metrics to statsd [default: true, unless another sink is set]
    #[arg(long, env = "USE_STATSD", default_value = "", hide_default_value = true, value_name = "BOOL", value_parser = parse::given(parse::boolean), num_args = 0..=1, default_missing_value = "true")]
    pub use_statsd: Given<bool>,
    /// Send metrics to DogStatsD, by UDP [default: false]
    #[arg(long, env = "USE_DOG_STATSD", default_value = "", hide_default_value = true, value_name = "BOOL", value_parser = parse::given(parse::boolean), num_args = 0..=1, default_missing_value = "true")]
    pub use_dog_statsd: Given<bool>,
    /// Mogrifiers N, by comma, whose DOG_STATSD_MOGRIFIER_N_PATTERN, _NAME and _TAGS turn parts of
    /// a name into tags; the first that matches is applied
    #[arg(
        long,
        env = "USE_DOG_STATSD_MOGRIFIERS",
        default_value = "",
        hide_default_value = true,
        value_name = "N,..."
    )]
    pub use_dog_statsd_mogrifiers: String,
    /// Where statsd or DogStatsD is [default: localhost]
    #[arg(long, env = "STATSD_HOST", default_value = "", hide_default_value = true, value_name = "HOST", value_parser = parse::given(parse::text))]
    pub statsd_host: Given<String>,
    /// Its port [default: 8125]
    #[arg(long, env = "STATSD_PORT", default_value = "", hide_default_value = true, value_name = "PORT", value_parser = parse::given(port))]
    pub statsd_port: Given<u16>,
    /// How statsd is sent to: tcp or udp [default: tcp]
    #[arg(long, env = "STATSD_PROTOCOL", default_value = "", hide_default_value = true, value_name = "PROTOCOL", value_parser = parse::given(protocol))]
    pub statsd_protocol: Given<Protocol>,
    /// How often statsd or DogStatsD is sent to; Prometheus pages are of the moment [default: 10s]
    #[arg(long, env = "STATS_FLUSH_INTERVAL", default_value = "", hide_default_value = true, value_name = "DURATION", value_parser = parse::given(flush_interval), allow_hyphen_values = true)]
    pub stats_flush_interval: Given<Span>,
    /// Tags of all metrics: a part of statsd's names, tags for DogStatsD, labels for Prometheus
    #[arg(long, env = "EXTRA_TAGS", default_value = "", hide_default_value = true, value_name = "NAME:VALUE,...", value_parser = Tags::read)]
    pub extra_tags: Tags,
    /// No metrics but those of the admin port [default: false]
    #[arg(long, env = "DISABLE_STATS", default_value = "", hide_default_value = true, value_name = "BOOL", value_parser = parse::given(parse::boolean), num_args = 0..=1, default_missing_value = "true")]
    pub disable_stats: Given<bool>,
}

/// Who is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sink {
    /// Nobody but who asks at the admin port.
    Nobody,
    /// Whoever asks, at an address of its own.
    Prometheus,
    Statsd(Requested),
    DogStatsd,
}

impl Settings {
    /// What is wrong with several of them together, or with those that are named after mogrifiers.
    ///
    /// # Errors
    /// More than one sink, in the reference's words. Statsd, which is on by default there, counts
    /// only if it was asked for.
    pub fn check(&self, environment: &[(String, String)]) -> Result<(), String> {
        let sinks = [self.use_dog_statsd, self.use_statsd, self.use_prometheus];
        if self.disable_stats.0 != Some(true)
            && sinks
                .into_iter()
                .filter(|wanted| wanted.0 == Some(true))
                .count()
                > 1
        {
            return Err(
                "Error: unable to use more than one stats sink at the same time. Set one of USE_DOG_STATSD, USE_STATSD, USE_PROMETHEUS."
                    .to_owned(),
            );
        }
        self.statsd(environment).map(|_| ())
    }

    /// What is accepted, and has no effect.
    pub fn warnings(&self) -> Vec<String> {
        if self.sink() == Sink::Prometheus {
            return Vec::new();
        }
        let mapper = self
            .prometheus_mapper_yaml
            .0
            .as_ref()
            .map(|_| "PROMETHEUS_MAPPER_YAML");
        let milliseconds = (self.prometheus_response_time_as_milliseconds.0 == Some(true))
            .then_some("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS");
        mapper
            .into_iter()
            .chain(milliseconds)
            .map(|name| format!("{name} has no effect without USE_PROMETHEUS=true"))
            .collect()
    }

    /// From which level on to log, if LOG_LEVEL is set.
    pub fn level(&self) -> Option<Level> {
        self.log_level.0
    }

    /// What a line of the log looks like.
    pub fn format(&self) -> Format {
        self.log_format.0.unwrap_or(Format::Text)
    }

    /// Where Prometheus has a door of its own.
    pub fn prometheus_addr(&self) -> Option<&str> {
        (self.sink() == Sink::Prometheus).then(|| {
            self.prometheus_addr
                .0
                .as_deref()
                .unwrap_or(PROMETHEUS_ADDR_DEFAULT)
        })
    }

    /// The path of the metrics page there.
    pub fn prometheus_path(&self) -> &str {
        self.prometheus_path
            .0
            .as_deref()
            .unwrap_or(PROMETHEUS_PATH_DEFAULT)
    }

    /// The mapping file to go by.
    pub fn mapping_file(&self) -> Option<&str> {
        self.prometheus_mapper_yaml
            .0
            .as_deref()
            .filter(|_| self.sink() == Sink::Prometheus)
    }

    /// The unit of response times where no mapping says it.
    pub fn time_unit(&self) -> TimeUnit {
        let milliseconds = self.sink() == Sink::Prometheus
            && self.prometheus_response_time_as_milliseconds.0 == Some(true);
        if milliseconds {
            TimeUnit::Milliseconds
        } else {
            TimeUnit::Seconds
        }
    }

    /// Where to send metrics, if anywhere.
    ///
    /// # Errors
    /// A mogrifier that is wrong.
    pub fn statsd(
        &self,
        environment: &[(String, String)],
    ) -> Result<Option<statsd::Options>, String> {
        let (requested, protocol, form) = match self.sink() {
            Sink::Nobody | Sink::Prometheus => return Ok(None),
            Sink::Statsd(requested) => (
                requested,
                self.statsd_protocol.0.unwrap_or(Protocol::Tcp),
                Form::Statsd(self.extra_tags.as_suffix()),
            ),
            Sink::DogStatsd => {
                let tagging = Tagging::read(
                    &self.extra_tags,
                    &self.use_dog_statsd_mogrifiers,
                    environment,
                )?;
                (
                    Requested::Explicitly,
                    Protocol::Udp,
                    Form::DogStatsd(tagging),
                )
            }
        };
        let host = self
            .statsd_host
            .0
            .clone()
            .unwrap_or_else(|| STATSD_HOST_DEFAULT.to_owned());
        let (port, interval) = (self.statsd_port.0, self.stats_flush_interval.0);
        let (port, interval) = (
            port.unwrap_or(STATSD_PORT_DEFAULT),
            interval.unwrap_or(FLUSH_INTERVAL_DEFAULT.into()),
        );
        Ok(Some(statsd::Options {
            host,
            port,
            protocol,
            interval,
            form,
            requested,
        }))
    }

    fn sink(&self) -> Sink {
        let is_on = |setting: Given<bool>| setting.0 == Some(true);
        match self.use_statsd.0 {
            _ if is_on(self.disable_stats) => Sink::Nobody,
            _ if is_on(self.use_prometheus) => Sink::Prometheus,
            _ if is_on(self.use_dog_statsd) => Sink::DogStatsd,
            Some(true) => Sink::Statsd(Requested::Explicitly),
            Some(false) => Sink::Nobody,
            // Whoever names a place for it wants it there.
            None if self.statsd_host.0.is_some() || self.statsd_port.0.is_some() => {
                Sink::Statsd(Requested::Explicitly)
            }
            None => Sink::Statsd(Requested::ByDefault),
        }
    }
}

/// A path that means itself, in a URL as well as in a pattern of the router.
fn metrics_path(text: &str) -> Result<String, String> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/-._~".contains(letter);
    if text.starts_with('/') && text.chars().all(is_plain) {
        Ok(text.to_owned())
    } else {
        Err("write a path that begins with / and has letters, digits and /-._~ only, such as /metrics".to_owned())
    }
}

fn port(text: &str) -> Result<u16, String> {
    text.parse()
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| "write a port from 1 to 65535, such as 8125".to_owned())
}

fn protocol(text: &str) -> Result<Protocol, String> {
    match text {
        "tcp" | "tcp4" | "tcp6" => Ok(Protocol::Tcp),
        "udp" | "udp4" | "udp6" => Ok(Protocol::Udp),
        _ => Err("write tcp or udp".to_owned()),
    }
}

fn flush_interval(text: &str) -> Result<Span, String> {
    let interval = if text.starts_with('-') {
        Span::ZERO
    } else {
        parse::duration(text)?
    };
    if interval > Span::ZERO {
        Ok(interval)
    } else {
        Err("write a time above zero, such as 10s".to_owned())
    }
}
