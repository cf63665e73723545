//! Settings of log and metrics.

use clap::Args;

use crate::setting;
use crate::telemetry::log::{Format, Level};
use crate::time::Span;

/// Log and metrics.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(next_help_heading = "Log and metrics")]
pub struct Settings {
    /// What is logged: trace, debug, info, warn, error, fatal or panic
    #[arg(long, env = "LOG_LEVEL", default_value = "warn", value_name = "LEVEL")]
    pub log_level: Level,
    /// text, or json with the keys @timestamp, @message and level
    #[arg(long, env = "LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    pub log_format: Format,
    /// Serve /metrics on an address of its own, besides the admin port
    #[arg(long, env = "USE_PROMETHEUS", default_value = "false", value_name = "BOOL", value_parser = setting::flag, num_args = 0..=1, default_missing_value = "true")]
    pub use_prometheus: bool,
    /// That address
    #[arg(long, env = "PROMETHEUS_ADDR", default_value = ":9090", value_name = "HOST:PORT")]
    pub prometheus_addr: String,
    /// The path of the metrics page there
    #[arg(long, env = "PROMETHEUS_PATH", default_value = "/metrics", value_name = "PATH", value_parser = absolute_path)]
    pub prometheus_path: String,
    /// Send metrics to statsd: not supported yet, warned about
    #[arg(long, env = "USE_STATSD", value_name = "BOOL", value_parser = setting::flag, num_args = 0..=1, default_missing_value = "true")]
    pub use_statsd: Option<bool>,
    /// Send metrics to DogStatsD: not supported yet, warned about
    #[arg(long, env = "USE_DOG_STATSD", default_value = "false", value_name = "BOOL", value_parser = setting::flag, num_args = 0..=1, default_missing_value = "true")]
    pub use_dog_statsd: bool,
    /// How often statsd would be sent to; Prometheus pages are of the moment
    #[arg(long, env = "STATS_FLUSH_INTERVAL", default_value = "10s", value_name = "DURATION", value_parser = setting::span)]
    pub stats_flush_interval: Span,
    /// No metrics but those of the admin port
    #[arg(long, env = "DISABLE_STATS", default_value = "false", value_name = "BOOL", value_parser = setting::flag, num_args = 0..=1, default_missing_value = "true")]
    pub disable_stats: bool,
}

impl Settings {
    /// What is wrong with several of them together.
    ///
    /// # Errors
    /// More than one sink, in the reference's words. Statsd, which is on by default there, counts only if it was asked for.
    pub fn check(&self) -> Result<(), String> {
        let sinks = [self.use_dog_statsd, self.use_statsd == Some(true), self.use_prometheus];
        if !self.disable_stats && sinks.into_iter().filter(|&wanted| wanted).count() > 1 {
            return Err(
                "Error: unable to use more than one stats sink at the same time. Set one of USE_DOG_STATSD, USE_STATSD, USE_PROMETHEUS."
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// What is accepted, and has no effect.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.use_statsd == Some(true) || self.use_dog_statsd {
            warnings.push("USE_STATSD and USE_DOG_STATSD have no effect in this version: scrape /metrics instead".to_owned());
        }
        warnings
    }

    /// Where Prometheus has a door of its own.
    pub fn prometheus_addr(&self) -> Option<&str> {
        (self.use_prometheus && !self.disable_stats).then_some(&*self.prometheus_addr)
    }
}

fn absolute_path(text: &str) -> Result<String, String> {
    if text.starts_with('/') { Ok(text.to_owned()) } else { Err("a path begins with /".to_owned()) }
}
