//! Settings of decisions.

use std::num::NonZeroU32;

use clap::{Args, Command, FromArgMatches as _};

use crate::base::parse;
use crate::base::sampling::SampleRate;
use crate::base::time::{MICROS_PER_SECOND, Span};
use crate::rules::OnStoreError;
use crate::rules::plan::Modes;

/// Decisions.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(next_help_heading = "Decisions")]
pub struct Settings {
    /// Evaluate and count all limits, but answer OK
    #[arg(long, env, default_value = "false", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub shadow_mode: bool,
    /// Answer OVER_LIMIT only if all limits of a request are over
    #[arg(long, env, default_value = "false", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub quota_mode: bool,
    /// Consume nothing of the other limits of a request if one of them is over
    #[arg(long, env, default_value = "false", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub stop_cache_key_increment_when_overlimit: bool,
    /// Answer when the store fails and the rule has no on_store_error: local (count in this
    /// process, up to this replica's share), allow, deny, or error (UNAVAILABLE: Envoy's
    /// failure_mode_deny decides)
    #[arg(long, env, default_value = "local", value_name = "POLICY")]
    pub on_store_error: OnStoreError,
    /// Number of replicas that share the limits during a store outage, and that leases are divided
    /// by, unless their heartbeats in Redis are known [default: 1]
    #[arg(long, env, value_name = "NUMBER")]
    pub replicas: Option<NonZeroU32>,
    /// Ratio of a limit above which hits count as near_limit
    #[arg(long, env, default_value = "0.8", value_name = "RATIO")]
    pub near_limit_ratio: f32,
    /// Add headers with limit, remaining and reset to responses
    #[arg(long, env, default_value = "false", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub limit_response_headers_enabled: bool,
    /// Name of the header with the limit
    #[arg(long, env, default_value = "RateLimit-Limit", value_name = "NAME")]
    pub limit_limit_header: String,
    /// Name of the header with the remaining hits
    #[arg(long, env, default_value = "RateLimit-Remaining", value_name = "NAME")]
    pub limit_remaining_header: String,
    /// Name of the header with the seconds until the reset
    #[arg(long, env, default_value = "RateLimit-Reset", value_name = "NAME")]
    pub limit_reset_header: String,
    /// Add headers with limit, remaining and reset to requests to the upstream
    #[arg(long, env, default_value = "false", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub limit_request_headers_enabled: bool,
    /// Name of the request header with the limit
    #[arg(long, env, default_value = "RateLimit-Limit", value_name = "NAME")]
    pub limit_request_limit_header: String,
    /// Name of the request header with the remaining hits
    #[arg(long, env, default_value = "RateLimit-Remaining", value_name = "NAME")]
    pub limit_request_remaining_header: String,
    /// Name of the request header with the seconds until the reset
    #[arg(long, env, default_value = "RateLimit-Reset", value_name = "NAME")]
    pub limit_request_reset_header: String,
    /// Add the headers RateLimit-Policy and RateLimit of the IETF draft
    #[arg(long, env, default_value = "false", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub ietf_ratelimit_headers_enabled: bool,
    /// Name of the header of OK responses with the limits that are used from a threshold of
    /// warn_at on
    #[arg(long, env, default_value = "x-ratelimit-warning", value_name = "NAME")]
    pub warning_header: String,
    /// Add Retry-After to OVER_LIMIT responses
    #[arg(long, env, default_value = "false", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub retry_after_header_enabled: bool,
    /// Increase Retry-After by a random time up to this one, so that clients do not retry together
    #[arg(long, env, default_value = "0", value_name = "DURATION", value_parser = whole_secs)]
    pub retry_after_jitter: Span,
    /// Return the descriptors, the metadata of matched rules, and which rule decided as dynamic
    /// metadata
    #[arg(long, env, default_value = "false", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub response_dynamic_metadata: bool,
    /// Log this ratio of OVER_LIMIT responses, from 0 to 1; log lines contain descriptor values,
    /// which may be personal data
    #[arg(long, env, default_value = "0", value_name = "RATE", value_parser = SampleRate::read)]
    pub refusals_log_sample_rate: SampleRate,
    // A line has at most half a KiB: at most 400 MiB a day.
    /// Maximum over-limit log lines per second, and of those about crossed thresholds of warn_at
    // bound REFUSALS_LOG_LINES_PER_SECOND_MAX: the line is dropped;
    // tollgate_over_limit_log_dropped_total
    #[arg(long, env, default_value = "10", value_name = "NUMBER", value_parser = lines_per_second_max)]
    pub refusals_log_lines_per_second_max: NonZeroU32,
}

/// The settings without flags.
impl Default for Settings {
    fn default() -> Self {
        let command = Self::augment_args(Command::new(env!("CARGO_PKG_NAME")));
        let matches = command.get_matches_from([env!("CARGO_PKG_NAME")]);
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

impl Settings {
    /// The modes of every request.
    pub(crate) fn modes(&self) -> Modes {
        Modes {
            shadow: self.shadow_mode,
            quota: self.quota_mode,
            all_or_nothing: self.stop_cache_key_increment_when_overlimit,
        }
    }
}

fn lines_per_second_max(text: &str) -> Result<NonZeroU32, String> {
    text.parse().map_err(|_| "write a whole number, at least 1".to_owned())
}

/// Whole seconds, as Retry-After has them: a number, or a duration with its unit.
fn whole_secs(text: &str) -> Result<Span, String> {
    if let Ok(secs) = text.parse() {
        return Ok(Span::from_secs(secs));
    }
    let span = parse::duration(text)?;
    let is_whole = span.as_micros().is_multiple_of(MICROS_PER_SECOND);
    if is_whole { Ok(span) } else { Err("write whole seconds, such as 10s".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_is_whole_seconds_with_or_without_a_unit() {
        assert_eq!(whole_secs("0"), Ok(Span::ZERO));
        assert_eq!(whole_secs("10"), Ok(Span::from_secs(10)));
        assert_eq!(whole_secs("1m30s"), Ok(Span::from_secs(90)));
        assert_eq!(whole_secs("2000ms"), Ok(Span::from_secs(2)));
        for wrong in ["", "1.5", "-1", "150ms", "ten"] {
            assert!(whole_secs(wrong).is_err(), "{wrong}");
        }
    }
}
