//! Settings of the store.

use std::num::NonZeroU32;

use clap::Args;

use crate::base::environment::Environment;
use crate::base::parse;
use crate::base::time::Span;
use crate::store::redis;
use crate::store::redis::connect::credentials::CredentialFiles;

/// STORE_TIMEOUT: a longer time-out is a mistake.
const STORE_TIMEOUT_MAX: Span = Span::from_secs(60);

/// The store.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(next_help_heading = "Store")]
pub struct Settings {
    /// Where counters are kept: memory (one instance) or redis [default: redis if any setting of
    /// Redis is set, else memory]
    #[arg(long, env, value_name = "STORE", value_parser = backend_type)]
    backend_type: Option<BackendType>,
    /// The memory store.
    #[command(flatten)]
    pub memory: Memory,
    // Callers that send no grpc-timeout, or a long one (Istio's samples use 10 s), should not wait
    // longer for a counter.
    /// How long a call to Redis may take; on_store_error decides what follows
    // bound STORE_TIMEOUT: fallback, cause `late`; tollgate_store_fallbacks_total
    #[arg(long, env, default_value = "100ms", value_name = "DURATION", value_parser = store_timeout)]
    store_timeout: Span,
    /// Memory for the cache of over-limit counters, which saves calls to Redis
    // bound LOCAL_CACHE_SIZE_IN_BYTES: the newer counter is kept;
    // tollgate_over_limit_cache_overwritten_total
    #[arg(long, env, default_value = "0", value_name = "BYTES", value_parser = parse::bytes)]
    local_cache_size_in_bytes: u64,
    /// Random time by which keys in Redis live longer at most, so that not all expire at once; 0 or
    /// less disables
    #[arg(long, env, default_value = "300", value_name = "SECONDS", allow_negative_numbers = true)]
    expiration_jitter_max_seconds: i64,
    /// Redis.
    #[command(flatten)]
    pub redis: redis::settings::Settings,
}

/// The memory store.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(next_help_heading = "Store")]
pub struct Memory {
    // 256 MiB: three and a half million counters.
    /// Memory for counters of the memory store; beyond it, counters closest to their reset are
    /// evicted
    // bound MEMORY_BYTES_MAX: counters closest to their reset are evicted;
    // tollgate_memory_evicted_total{use="store"}
    #[arg(long, env, default_value = "268435456", value_name = "BYTES", value_parser = parse::bytes)]
    pub memory_bytes_max: u64,
}

/// BACKEND_TYPE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BackendType {
    Memory,
    Redis,
}

/// The store that the settings select.
#[derive(Debug, Clone)]
pub enum BackendChoice {
    /// Counters in this process.
    Memory,
    /// Counters in Redis, and the files to reload when they change.
    Redis(Box<redis::Options>, CredentialFiles),
}

impl Settings {
    /// The selected store, and a sentence for each setting without an effect. `replicas` and
    /// `key_prefix` are settings of other components that Redis needs.
    ///
    /// # Errors
    /// A setting of Redis, or a file that it names, cannot be used.
    pub(crate) fn resolve(
        &self,
        replicas: Option<NonZeroU32>,
        key_prefix: &str,
        environment: &Environment,
    ) -> Result<(BackendChoice, Vec<String>), String> {
        if self.backend_type(environment) == BackendType::Memory {
            let mut warnings = Vec::new();
            if redis::settings::Settings::any_set(environment) {
                warnings.push("REDIS_* have no effect with BACKEND_TYPE=memory".to_owned());
            }
            if self.local_cache_size_in_bytes > 0 {
                let warning = "LOCAL_CACHE_SIZE_IN_BYTES has no effect with the memory store: there are no calls to save";
                warnings.push(warning.to_owned());
            }
            return Ok((BackendChoice::Memory, warnings));
        }
        let redis = self.redis.resolve(environment)?;
        let options = redis::Options {
            main: redis.main,
            per_second: redis.per_second,
            store_timeout: self.store_timeout,
            required: redis.required,
            expiration_jitter_max: Span::from_secs(
                self.expiration_jitter_max_seconds.try_into().unwrap_or(0),
            ),
            over_limit_cache_bytes: self.local_cache_size_in_bytes,
            replicas,
            key_prefix: key_prefix.into(),
            dialer: redis::connect::dialer::Dialer::default(),
        };
        Ok((BackendChoice::Redis(Box::new(options), redis.files), redis.warnings))
    }

    /// Whether counters are in memory because the settings say so.
    pub(crate) fn is_memory_chosen(&self) -> bool {
        self.backend_type == Some(BackendType::Memory)
    }

    fn backend_type(&self, environment: &Environment) -> BackendType {
        let implied = || {
            if redis::settings::Settings::any_set(environment) {
                BackendType::Redis
            } else {
                BackendType::Memory
            }
        };
        self.backend_type.unwrap_or_else(implied)
    }
}

fn backend_type(text: &str) -> Result<BackendType, String> {
    match text {
        "memory" => Ok(BackendType::Memory),
        "redis" => Ok(BackendType::Redis),
        "memcache" => {
            Err("memcached cannot count exactly and is not supported; write redis, or memory"
                .to_owned())
        }
        other => Err(format!("Invalid setting for BackendType: {other}; write redis, or memory")),
    }
}

fn store_timeout(text: &str) -> Result<Span, String> {
    let timeout = parse::duration(text)?;
    if timeout > Span::ZERO && timeout <= STORE_TIMEOUT_MAX {
        Ok(timeout)
    } else {
        Err("write a time from 1us to 60s, such as 100ms".to_owned())
    }
}

#[cfg(test)]
mod tests;
