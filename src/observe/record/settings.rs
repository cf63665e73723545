//! Settings of the recording.

use std::path::PathBuf;

use clap::Args;

use crate::base::parse::{self, Secret};
use crate::base::sampling::SampleRate;

/// The recording.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(next_help_heading = "Recording")]
pub struct Settings {
    /// Append requests to this file, which `tollgate replay` reads; descriptor values in it may be
    /// personal data
    #[arg(long, env, value_name = "FILE")]
    pub record_file: Option<PathBuf>,
    /// Record this ratio of requests, from 0 to 1: all requests of a domain with the same entries,
    /// or none of them
    #[arg(long, env, default_value = "1", value_name = "RATE", value_parser = SampleRate::read)]
    pub record_sample_rate: SampleRate,
    /// Size of the file at which the recording ends
    // bound RECORD_FILE_BYTES_MAX: the recording ends;
    // tollgate_record_dropped_total{reason="file_bytes_max"}
    #[arg(long, env, default_value = "1073741824", value_name = "BYTES", value_parser = parse::bytes)]
    pub record_file_bytes_max: u64,
    /// Record hashes of values, except for those that the rules name
    #[arg(long, env, default_value = "false", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub record_redact: bool,
    /// Key of these hashes: replicas with the same key record the same hashes [default: random per
    /// process]
    #[arg(long, env, value_name = "TEXT", hide_env_values = true, value_parser = Secret::read)]
    pub record_redact_key: Option<Secret>,
}

/// What is recorded, and where.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) file: PathBuf,
    pub(crate) rate: SampleRate,
    pub(crate) file_bytes_max: u64,
    pub(crate) redact: bool,
    pub(crate) key: Option<Secret>,
}

impl Settings {
    /// `None` without a file.
    pub(crate) fn options(&self) -> Option<Options> {
        Some(Options {
            file: self.record_file.clone()?,
            rate: self.record_sample_rate,
            file_bytes_max: self.record_file_bytes_max,
            redact: self.record_redact,
            key: self.record_redact_key.clone(),
        })
    }
}
