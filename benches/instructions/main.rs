//! Serves calls in one thread, so that callgrind counts the instructions of a call.
//!
//! ```text
//! Client  <- socket pair ->  Api::serve, as a worker runs it  <- socket pair ->  ScriptedRedis
//! ```
//!
//! The worker runs only within [`serve`], until client or Redis have something to read. callgrind
//! counts what runs below [`serve_counted`], so neither the client, nor Redis, nor the warm-up.
//! Nothing depends on the time: tokio's clock is paused, and never advances.

mod client;
mod scripted_redis;
mod service;
mod socket;

use std::env;
use std::future::poll_fn;
use std::sync::mpsc;
use std::task::Poll;

use tokio::runtime::{Builder, Runtime};
use tollgate::base::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;

use client::Client;
use scripted_redis::ScriptedRedis;
use service::{Service, Store};

/// As in the binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Calls of a pass, each on counters of its own. All passes use the same counters.
const CALLS: usize = 1_024;
/// The first pass creates the counters.
const WARM_UPS: usize = 2;

/// What is served.
struct Scenario {
    name: &'static str,
    store: Store,
    /// Which rule of [`service::RULES`].
    key: &'static str,
    descriptors: usize,
    /// Calls that arrive together, and with a Redis leave as one pipeline.
    in_flight: usize,
    expected: Code,
}

const SCENARIOS: [Scenario; 7] = [
    Scenario::new("memory", Store::Memory, 64),
    Scenario::new("redis-1", Store::REDIS, 1),
    Scenario::new("redis-16", Store::REDIS, 16),
    Scenario::new("redis-64", Store::REDIS, 64),
    Scenario { descriptors: 10, ..Scenario::new("ten-descriptors", Store::REDIS, 64) },
    Scenario::new("over-limit", Store::REDIS, 64).over_limit(),
    Scenario::new("over-limit-cached", Store::REDIS_AND_CACHE, 64).over_limit(),
];

impl Scenario {
    const fn new(name: &'static str, store: Store, in_flight: usize) -> Self {
        Self { name, store, key: "user", descriptors: 1, in_flight, expected: Code::Ok }
    }

    const fn over_limit(self) -> Self {
        Self { key: "once", expected: Code::OverLimit, ..self }
    }

    /// Serves the warm-up, then the counted calls.
    fn run(&self, runtime: &Runtime) {
        let _entered = runtime.enter();
        let (mut redis, dialer) = ScriptedRedis::new();
        let (service, socket) = Service::new(self.store, dialer);
        let mut client = Client::new(socket);
        let worker = runtime.spawn(service.serve());
        for _ in 0..WARM_UPS {
            self.pass(&mut client, &mut redis, |client, redis| {
                serve(runtime, client, redis);
            });
        }
        redis.pipelines = 0;
        let codes = self.pass(&mut client, &mut redis, |client, redis| {
            serve_counted(runtime, client, redis);
        });
        assert!(codes.iter().all(|code| *code == self.expected), "{codes:?}");
        println!("{}: {CALLS} calls, {} pipelines", self.name, redis.pipelines);
        worker.abort();
    }

    /// One call on each counter, and their codes.
    fn pass(
        &self,
        client: &mut Client,
        redis: &mut ScriptedRedis,
        serve: impl Fn(&Client, &ScriptedRedis),
    ) -> Vec<Code> {
        let mut codes = Vec::with_capacity(CALLS);
        while codes.len() < CALLS {
            for call in codes.len()..codes.len() + self.in_flight {
                let first = call * self.descriptors;
                client.call(self.key, first..first + self.descriptors);
            }
            client.send();
            while client.in_flight() > 0 {
                serve(client, redis);
                redis.reply();
                codes.extend(client.receive());
            }
        }
        codes
    }
}

/// Runs the worker until client or Redis have something to read.
fn serve(runtime: &Runtime, client: &Client, redis: &ScriptedRedis) {
    runtime.block_on(poll_fn(|context| {
        let replied = client.socket.is_readable(context);
        let asked = redis.socket.is_readable(context);
        if replied || asked { Poll::Ready(()) } else { Poll::Pending }
    }));
}

/// The same, counted: benches/instructions/run.py knows its name.
#[inline(never)]
fn serve_counted(runtime: &Runtime, client: &Client, redis: &ScriptedRedis) {
    serve(runtime, client, redis);
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let chosen = SCENARIOS
        .iter()
        .find(|scenario| arguments.iter().any(|argument| argument == scenario.name));
    let Some(scenario) = chosen else {
        // `cargo bench` starts every program with `--bench`.
        return SCENARIOS.iter().for_each(|scenario| println!("{}", scenario.name));
    };
    let runtime =
        Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
    // A paused clock advances to the next timer when no task can run, unless a blocking task runs.
    let (ended, until_ended) = mpsc::channel::<()>();
    runtime.spawn_blocking(move || until_ended.recv());
    scenario.run(&runtime);
    drop(ended);
}
