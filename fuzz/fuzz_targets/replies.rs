//! Any bytes as replies of Redis: every check gets a verdict or an error in time, whatever servers, sentinels and nodes of a cluster say.
//!
//! The first byte chooses the deployment, whether checks are decided together and what ends a connection. The others are replies, one
//! call after the other, with 0xff between them.

#![no_main]

use std::cell::RefCell;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::runtime::{self, Runtime};
use tokio::task::JoinSet;
use tollgate::base::shutdown::Lifecycle;
use tollgate::base::time::{Clock, Span, Time};
use tollgate::limits::check::{Check, CheckRequest, Hits, Key};
use tollgate::limits::{Algorithm, Limit, Terms, Unit};
use tollgate::store::redis::connect::address::Address;
use tollgate::store::redis::connect::dialer::Dialer;
use tollgate::store::redis::connect::parse;
use tollgate::store::redis::topology::deployment::{Deployment, PoolOptions, SentinelConfig};
use tollgate::store::redis::{Options, Redis};
use tollgate::telemetry::metric::Metrics;

const START: Time = Time::from_micros(1_700_000_000_000_000);
/// More than one batch of commands has.
const STREAM_BYTES_MAX: usize = 1 << 13;
/// To the two commands that each connection begins with.
const GREETING: &[u8] = b"+OK\r\n+OK\r\n";
/// No reply is another call's, so this is longer than any deadline.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// What the first byte says.
#[derive(Clone, Copy)]
struct Choice(u8);

impl Choice {
    fn deployment(self) -> Deployment {
        let address =
            || parse::address(parse::SERVER_PORT, "10.0.0.1:6379").expect("an address").address;
        match self.0 & 3 {
            0 | 1 => Deployment::Single(address()),
            2 => Deployment::Cluster(vec![address()]),
            _ => Deployment::Sentinel(SentinelConfig {
                master: "m".to_owned(),
                sentinels: vec![address()],
                server: Address::unresolved(),
            }),
        }
    }

    fn all_or_nothing(self) -> bool {
        self.0 & 4 != 0
    }

    fn closes(self) -> bool {
        self.0 & 8 != 0
    }

    fn takes_windows_alone(self) -> bool {
        self.0 & 16 != 0
    }
}

/// A check of each algorithm.
fn checks(choice: Choice) -> Vec<Check> {
    let algorithms = [
        (Algorithm::FixedWindow, Hits::Add(1)),
        (Algorithm::FixedWindow, Hits::Peek),
        (Algorithm::TokenBucket, Hits::Add(2)),
        (Algorithm::LeakyBucket, Hits::Add(1)),
        (Algorithm::SlidingWindow, Hits::Add(1)),
        (Algorithm::SlidingWindow, Hits::Add(1)),
        (Algorithm::SlidingLog, Hits::Refund(1)),
        (Algorithm::Concurrency, Hits::Add(1)),
    ];
    let count = if choice.takes_windows_alone() { 2 } else { algorithms.len() };
    let check = |(number, (algorithm, hits)): (usize, (Algorithm, Hits))| {
        let is_held = algorithm == Algorithm::Concurrency;
        // Every other sliding window has parts.
        let buckets = (algorithm == Algorithm::SlidingWindow && number % 2 == 0).then_some(5);
        let lease = is_held.then(|| Span::from_secs(9));
        let terms = Terms { buckets, lease, ..Terms::new(10, Unit::Minute, algorithm) };
        let limit = Limit::new(&terms).expect("a limit");
        let holder = is_held.then(|| b"holder".as_slice().into());
        Check { holder, ..Check::new(Key::from(&*format!("k{number}_")), limit, hits) }
    };
    algorithms.into_iter().take(count).enumerate().map(check).collect()
}

async fn serve(mut stream: DuplexStream, replies: Arc<[u8]>, choice: Choice) {
    let mut request = vec![0; STREAM_BYTES_MAX];
    for reply in std::iter::once(GREETING).chain(replies.split(|byte| *byte == 0xff)) {
        if !matches!(stream.read(&mut request).await, Ok(1..))
            || stream.write_all(reply).await.is_err()
        {
            return;
        }
    }
    if !choice.closes() {
        // Reads on without a reply until the client closes.
        while matches!(stream.read(&mut request).await, Ok(1..)) {}
    }
}

fn dialer(replies: Arc<[u8]>, choice: Choice) -> Dialer {
    Dialer::Streams(Arc::new(move |_| {
        let (client, server) = tokio::io::duplex(STREAM_BYTES_MAX);
        tokio::spawn(serve(server, replies.clone(), choice));
        Box::pin(async move { Ok(Box::pin(client) as _) })
    }))
}

async fn run(choice: Choice, replies: Arc<[u8]>) {
    let clock = Clock::starting_at(START);
    let options = Options {
        main: PoolOptions { deployment: choice.deployment(), connect_timeout: Span::from_secs(1) },
        per_second: None,
        store_timeout: Duration::from_millis(100).into(),
        required: false,
        expiration_jitter_max: Span::ZERO,
        over_limit_cache_bytes: 1 << 10,
        replicas: Some(NonZeroU32::MIN),
        key_prefix: Box::default(),
        dialer: dialer(replies, choice),
    };
    let redis = Arc::new(Redis::new(options, clock.clone(), &Metrics::new()));
    let mut background = JoinSet::new();
    if !matches!(choice.deployment(), Deployment::Single(_)) {
        background.spawn(redis.clone().maintain(Lifecycle::default()));
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    let remote = redis.open();
    let mut checks = checks(choice);
    for check in &mut checks {
        check.group = choice.all_or_nothing().into();
    }
    for _ in 0..2 {
        let request = CheckRequest { checks: checks.iter().cloned().collect(), deadline: None };
        let decided = tokio::time::timeout(ANSWER_MAX, remote.decide(&request, clock.now(), None))
            .await
            .expect("an answer in time");
        assert_eq!(decided.len(), checks.len());
    }
}

thread_local! {
    /// One for all inputs: starting one takes as long as running an input.
    static RUNTIME: RefCell<Runtime> = RefCell::new(
        runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime"),
    );
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, replies)) = bytes.split_first() else {
        return;
    };
    RUNTIME.with_borrow(|runtime| runtime.block_on(run(Choice(choice), replies.into())));
});
