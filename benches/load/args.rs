//! The options of a run, their defaults and their help.

use std::time::Duration;

use anyhow::ensure;
use clap::{Parser, ValueEnum};

/// Measures a rate limit service: requests per second, latency, answers by code, CPU time per
/// request.
///
/// Closed loop unless --rate is given: as many requests as --in-flight are always under way, each
/// answer starts the next. With --rate requests fall due by a schedule, and latency counts from
/// when a request was due, however late it was sent.
///
/// Exit status: 0 if every request was answered OK or OVER_LIMIT, 1 if any was not, could not be
/// sent in time, was answered after its --deadline or broke --check-limit.
#[derive(Parser)]
#[command(name = "load")]
pub struct Args {
    /// The gRPC address of the service.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8081")]
    pub target: String,

    /// Connections, opened before the warm-up and reopened when lost.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub connections: u32,

    /// Requests under way at once over all connections: exactly that many in a closed loop
    /// [default: 64], at most with --rate [default: 1024].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub in_flight: Option<u32>,

    /// Open loop: requests due per second, evenly spaced.
    #[arg(long, value_name = "R", value_parser = positive)]
    pub rate: Option<f64>,

    /// Length of the measured part.
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration)]
    pub duration: Duration,

    /// Length of the part before it, whose requests are sent and checked, but not measured.
    #[arg(long, default_value = "2s", value_parser = humantime::parse_duration)]
    pub warmup: Duration,

    /// How long to wait for an answer, and with --rate for a free place to send from, before
    /// giving the request up.
    #[arg(long, default_value = "1s", value_parser = humantime::parse_duration)]
    pub timeout: Duration,

    /// Sends this as grpc-timeout with every request, as Envoy does, and counts the answers that
    /// took longer than that from when the request was sent. They are waited for all the same,
    /// up to --timeout.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub deadline: Option<Duration>,

    /// Domain of every request.
    #[arg(long, default_value = "bench")]
    pub domain: String,

    /// Key of a descriptor's entry, or those of its entries, joined by `+`, which have one value.
    /// Of several, separated by commas, the descriptors of a request have them in turn.
    #[arg(long, default_value = "user", value_delimiter = ',')]
    pub key: Vec<String>,

    /// What a value begins with; a number follows. Another prefix means untouched
    /// counters.
    #[arg(long, value_name = "TEXT", default_value = "u")]
    pub value_prefix: String,

    /// How many distinct values there are.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub keys: u32,

    /// How a value is picked.
    #[arg(long, value_enum, default_value_t = Pick::Uniform)]
    pub pick: Pick,

    /// How steep zipf is: value k is picked in proportion to 1/k^S.
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = positive)]
    pub zipf_exponent: f64,

    /// Where the random picks begin; the same seed gives the same requests.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Descriptors per request, each with a value of its own.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub descriptors: u32,

    /// hits_addend of every request; without it none is sent, which means 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub hits: Option<u32>,

    /// Processes whose CPU time and memory to report: separated by commas, or repeated.
    #[arg(long = "pid", value_name = "PID", value_delimiter = ',')]
    pub pids: Vec<u32>,

    /// Checks the counting: fails if any value was admitted for more than N hits, or rejected
    /// before N hits. For rules of N hits in a window that outlasts the run, with untouched
    /// counters (--value-prefix); the warm-up counts too.
    #[arg(long, value_name = "N")]
    pub check_limit: Option<u64>,

    /// With --json: what came in each second, from the beginning of the warm-up.
    #[arg(long, requires = "json")]
    pub timeline: bool,

    /// Exit status 0 even if requests failed, were not answered or not in time.
    #[arg(long)]
    pub allow_errors: bool,

    /// Prints one JSON object instead of the table.
    #[arg(long)]
    pub json: bool,

    /// `cargo bench` adds it to every program it starts.
    #[arg(long, hide = true)]
    bench: bool,
}

/// How a request's value is picked.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub enum Pick {
    /// Every value as often as any other.
    Uniform,
    /// A few values often, most of them seldom.
    Zipf,
    /// Always the same: one hot counter (per descriptor of the request).
    One,
    /// Each value once, counting up from 0: new counters, if the prefix is new.
    New,
}

impl Args {
    /// Rejects invalid combinations of options.
    pub fn validate(&self) -> anyhow::Result<()> {
        ensure!(!self.duration.is_zero(), "--duration must not be 0");
        ensure!(!self.timeout.is_zero(), "--timeout must not be 0");
        ensure!(
            self.check_limit.is_none() || self.descriptors == 1,
            "--check-limit needs one descriptor per request: with more, an answer does not say whose counter it is about"
        );
        Ok(())
    }

    /// Places for requests under way. In an open loop a bound, not an aim: 100 ms of 10 000 requests
    /// per second.
    pub fn in_flight(&self) -> u32 {
        let default = if self.rate.is_some() { 1024 } else { 64 };
        self.in_flight.unwrap_or(default)
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        Ok(_) => Err("must be above 0".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
