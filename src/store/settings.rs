//! Settings of the store.

use clap::Args;

use crate::setting;

/// 256 MiB: three and a half million counters. An operator who has more wants Redis.
const MEMORY_BYTES_MAX_DEFAULT: &str = "268435456";

/// The store.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(next_help_heading = "Store")]
pub struct Settings {
    /// Where to count: memory (one instance; this version has no other)
    #[arg(long, env = "BACKEND_TYPE", default_value = "memory", value_name = "STORE", value_parser = backend)]
    pub backend_type: String,
    /// How much memory counters may take; beyond it, those closest to their reset are forgotten
    #[arg(long, env = "MEMORY_BYTES_MAX", default_value = MEMORY_BYTES_MAX_DEFAULT, value_name = "BYTES", value_parser = setting::bytes)]
    pub memory_bytes_max: u64,
    /// Cache of refusals before Redis; in memory there is nothing to save
    #[arg(long, env = "LOCAL_CACHE_SIZE_IN_BYTES", default_value = "0", value_name = "BYTES", value_parser = setting::bytes)]
    pub local_cache_size_in_bytes: u64,
    /// Spreads the expiry of keys in Redis; in memory nothing expires together
    #[arg(long, env = "EXPIRATION_JITTER_MAX_SECONDS", default_value = "300", value_name = "SECONDS")]
    pub expiration_jitter_max_seconds: i64,
}

impl Settings {
    /// What is accepted, and has no effect.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.local_cache_size_in_bytes > 0 {
            warnings.push("LOCAL_CACHE_SIZE_IN_BYTES has no effect with the memory store, which has no trip to save".to_owned());
        }
        warnings
    }
}

fn backend(text: &str) -> Result<String, String> {
    match text {
        "memory" => Ok(text.to_owned()),
        "" | "redis" => {
            Err("this version counts in memory only; write memory, or keep the other service until Redis is supported".to_owned())
        }
        "memcache" => Err("memcached cannot count exactly and is not supported; write memory".to_owned()),
        other => Err(format!("Invalid setting for BackendType: {other}")),
    }
}
