//! Settings of log and metrics.

use clap::Args;

use crate::base::environment::Environment;
use crate::base::parse;
use crate::base::time::Span;
use crate::telemetry::dogstatsd::Tagging;
use crate::telemetry::log::{Format, Level};
use crate::telemetry::mapper::Mapping;
use crate::telemetry::metric::Naming;
use crate::telemetry::statsd::{self, Protocol};
use crate::telemetry::tags::Tags;

/// Log and metrics. All defaults are those of envoyproxy/ratelimit.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(next_help_heading = "Log and metrics")]
pub struct Settings {
    /// Lowest level that is logged: trace, debug, info, warn, error, fatal or panic [default: info
    /// if stdout is a terminal, else warn]
    #[arg(long, env, value_name = "LEVEL", value_parser = str::parse::<Level>)]
    pub log_level: Option<Level>,
    /// text, or json with the keys @timestamp, @message and level
    #[arg(long, env, default_value = "text", value_name = "FORMAT", value_parser = str::parse::<Format>)]
    pub log_format: Format,
    /// Serve /metrics on PROMETHEUS_ADDR too, besides the admin port
    #[arg(long, env, default_value = "false", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub use_prometheus: bool,
    /// Address of the additional metrics page
    #[arg(long, env, default_value = ":9090", value_name = "HOST:PORT")]
    pub prometheus_addr: String,
    /// Path of the additional metrics page
    #[arg(long, env, default_value = "/metrics", value_name = "PATH", value_parser = metrics_path)]
    pub prometheus_path: String,
    /// With USE_PROMETHEUS: statsd_exporter mapping file for the metrics of envoyproxy/ratelimit
    #[arg(long, env, value_name = "FILE")]
    pub prometheus_mapper_yaml: Option<String>,
    /// With USE_PROMETHEUS and without a mapping file: response times in milliseconds, under the
    /// same name
    #[arg(long, env, default_value = "false", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub prometheus_response_time_as_milliseconds: bool,
    /// Send metrics to statsd [default: true, unless another sink is set]
    #[arg(long, env, value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub use_statsd: Option<bool>,
    /// Send metrics to DogStatsD over UDP
    #[arg(long, env, default_value = "false", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub use_dog_statsd: bool,
    /// Comma-separated mogrifiers N, whose DOG_STATSD_MOGRIFIER_N_PATTERN, _NAME and _TAGS turn
    /// parts of a name into tags; the first that matches applies
    #[arg(long, env, value_name = "N,...")]
    pub use_dog_statsd_mogrifiers: Option<String>,
    /// Host of statsd or DogStatsD
    #[arg(long, env, default_value = "localhost", value_name = "HOST")]
    pub statsd_host: String,
    /// Port of statsd or DogStatsD
    #[arg(long, env, default_value = "8125", value_name = "PORT", value_parser = port)]
    pub statsd_port: u16,
    /// Protocol of statsd: tcp or udp
    #[arg(long, env, default_value = "tcp", value_name = "PROTOCOL", value_parser = protocol)]
    pub statsd_protocol: Protocol,
    /// Interval between flushes to statsd or DogStatsD; Prometheus pages are always current
    #[arg(long, env, default_value = "10s", value_name = "DURATION", value_parser = flush_interval, allow_hyphen_values = true)]
    pub stats_flush_interval: Span,
    /// Tags of all metrics: a part of statsd names, tags for DogStatsD, labels for Prometheus
    #[arg(long, env, default_value = "", hide_default_value = true, value_name = "NAME:VALUE,...", value_parser = Tags::read)]
    pub extra_tags: Tags,
    /// Expose metrics on the admin port only
    #[arg(long, env, default_value = "false", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub disable_stats: bool,
}

/// Where metrics go, besides the admin port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sink {
    None,
    Prometheus,
    Statsd,
    DogStatsd,
}

impl Settings {
    /// Settings that are set and have no effect.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let of_prometheus = [
            ("PROMETHEUS_MAPPER_YAML", self.prometheus_mapper_yaml.is_some()),
            (
                "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS",
                self.prometheus_response_time_as_milliseconds,
            ),
        ];
        let unused = of_prometheus
            .into_iter()
            .filter(|(_, is_set)| *is_set && self.sink() != Sink::Prometheus);
        unused
            .map(|(name, _)| format!("{name} has no effect without USE_PROMETHEUS=true"))
            .collect()
    }

    /// Address of the additional metrics page.
    pub(crate) fn prometheus_addr(&self) -> Option<&str> {
        (self.sink() == Sink::Prometheus).then_some(&*self.prometheus_addr)
    }

    pub(crate) fn mapping_file(&self) -> Option<&str> {
        let path = self.prometheus_mapper_yaml.as_deref();
        path.filter(|_| self.sink() == Sink::Prometheus)
    }

    /// How metrics are named on the page, with the rules of the mapping file.
    pub(crate) fn naming(&self, mapping: Option<Mapping>) -> Naming {
        Naming {
            mapping,
            tags: self.extra_tags.clone(),
            response_time_as_milliseconds: self.sink() == Sink::Prometheus
                && self.prometheus_response_time_as_milliseconds,
        }
    }

    /// How metrics are sent to statsd, if they are.
    ///
    /// # Errors
    /// More than one sink, in the words of envoyproxy/ratelimit (statsd counts only if USE_STATSD
    /// is true, since it is on by default), or an invalid mogrifier.
    pub(crate) fn statsd(
        &self,
        environment: &Environment,
    ) -> Result<Option<statsd::Options>, String> {
        let statsd = self.use_statsd == Some(true);
        let sinks = [self.use_dog_statsd, statsd, self.use_prometheus];
        if !self.disable_stats && sinks.into_iter().filter(|is_used| *is_used).count() > 1 {
            return Err(
                "Error: unable to use more than one stats sink at the same time. Set one of USE_DOG_STATSD, USE_STATSD, USE_PROMETHEUS."
                    .to_owned(),
            );
        }
        let is_requested = ["USE_STATSD", "USE_DOG_STATSD", "STATSD_HOST", "STATSD_PORT"]
            .iter()
            .any(|name| environment.is_set(name));
        let (protocol, tagging) = match self.sink() {
            Sink::None | Sink::Prometheus => return Ok(None),
            Sink::Statsd => (self.statsd_protocol, Tagging::statsd(&self.extra_tags)),
            Sink::DogStatsd => {
                let list = self.use_dog_statsd_mogrifiers.as_deref().unwrap_or_default();
                let tagging = Tagging::read(&self.extra_tags, list, environment)?;
                (Protocol::Udp, tagging)
            }
        };
        Ok(Some(statsd::Options {
            host: self.statsd_host.clone(),
            port: self.statsd_port,
            protocol,
            interval: self.stats_flush_interval,
            tagging,
            is_requested,
        }))
    }

    fn sink(&self) -> Sink {
        match self.use_statsd {
            _ if self.disable_stats => Sink::None,
            _ if self.use_prometheus => Sink::Prometheus,
            _ if self.use_dog_statsd => Sink::DogStatsd,
            None | Some(true) => Sink::Statsd,
            Some(false) => Sink::None,
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
    let interval = if text.starts_with('-') { Span::ZERO } else { parse::duration(text)? };
    if interval > Span::ZERO {
        Ok(interval)
    } else {
        Err("write a time above zero, such as 10s".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use clap::{Command, FromArgMatches as _};

    use super::*;
    use crate::telemetry::metric::Metrics;

    /// The settings `NAME=VALUE`, between which is `; `.
    fn settings(settings: &str) -> Result<(Settings, Environment), String> {
        let variables = settings.split("; ").filter_map(|setting| setting.split_once('='));
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let variables: Vec<(String, String)> = variables.collect();
        let command = Settings::augment_args(Command::new("test"));
        let is_flag = |name: &str| {
            command.get_arguments().any(|flag| flag.get_env().is_some_and(|env| env == name))
        };
        let flags = variables.iter().filter(|(name, _)| is_flag(name));
        let flags = flags
            .map(|(name, value)| format!("--{}={value}", name.to_lowercase().replace('_', "-")));
        let arguments: Vec<String> = std::iter::once("test".to_owned()).chain(flags).collect();
        let matches = command.try_get_matches_from(arguments).map_err(|error| error.to_string())?;
        let settings = Settings::from_arg_matches(&matches).map_err(|error| error.to_string())?;
        Ok((settings, Environment::new(variables, [])))
    }

    /// What is sent where.
    fn statsd(text: &str) -> Result<Option<statsd::Options>, String> {
        let (settings, environment) = settings(text)?;
        settings.statsd(&environment)
    }

    #[test]
    fn response_times_can_be_milliseconds() {
        let text = "USE_PROMETHEUS=true; PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS=true";
        let (settings, _) = settings(text).expect("they are valid");
        let metrics = Metrics::named(settings.naming(None));
        metrics.reference_timer("t", "t_seconds", "T.", &[]).observe(Span::from_micros(7_000));
        let page = metrics.page();
        for (bound, count) in [("0.005", 0), ("5", 0), ("10", 1), ("10000", 1)] {
            let line = format!("\nt_seconds_bucket{{le=\"{bound}\"}} {count}\n");
            assert!(page.contains(&line), "{line}: {page}");
        }
    }

    #[test]
    fn invalid_settings_of_metrics_say_what_to_write() {
        let cases = r#"
STATS_FLUSH_INTERVAL=0s => write a time above zero, such as 10s
STATS_FLUSH_INTERVAL=-1s => write a time above zero, such as 10s
STATSD_PROTOCOL=unix => write tcp or udp
STATSD_PORT=0 => write a port from 1 to 65535
EXTRA_TAGS=zone:eu:west => "zone:eu:west" is not a tag
USE_DOG_STATSD=true; USE_DOG_STATSD_MOGRIFIERS=A => DOG_STATSD_MOGRIFIER_A_PATTERN is not set
USE_DOG_STATSD=true; USE_DOG_STATSD_MOGRIFIERS=A; DOG_STATSD_MOGRIFIER_A_PATTERN=( => DOG_STATSD_MOGRIFIER_A_PATTERN is not a regular expression"#;
        for line in cases.trim().lines() {
            let (settings, expected) = line.split_once(" => ").expect("settings => a text");
            let error = statsd(settings).expect_err(line);
            assert!(error.contains(expected), "{line}: {error}");
        }
    }

    #[test]
    fn mogrifiers_turn_parts_of_names_into_tags() {
        let options = statsd(
            r"USE_DOG_STATSD=true; USE_DOG_STATSD_MOGRIFIERS=RL,ALL; EXTRA_TAGS=zone:eu; DOG_STATSD_MOGRIFIER_RL_PATTERN=^ratelimit\.service\.rate_limit\.([^.]+)\.(.*)\.([^.]+)$; DOG_STATSD_MOGRIFIER_RL_NAME=ratelimit.service.rate_limit.$3; DOG_STATSD_MOGRIFIER_RL_TAGS=domain:$1,descriptor:$2; DOG_STATSD_MOGRIFIERS_ALL_PATTERN=^ratelimit; DOG_STATSD_MOGRIFIERS_ALL_NAME=rest",
        );
        let options = options.expect("the settings are valid").expect("statsd is used");
        assert_eq!(options.protocol, Protocol::Udp);
        let tagged = |name: &str| {
            let (name, tags) = options.tagging.tag(name);
            name + &tags
        };
        assert_eq!(
            tagged("ratelimit.service.rate_limit.d.key1.key2_v.key3_a.total_hits"),
            "ratelimit.service.rate_limit.total_hits|#zone:eu,descriptor:key1.key2_v.key3_a,domain:d"
        );
        assert_eq!(tagged("ratelimit_server.ShouldRateLimit.response_time"), "rest|#zone:eu");
    }
}
