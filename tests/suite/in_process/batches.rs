//! Calls that arrive while one is in flight go out together with the next one. A single call never
//! waits, and no call pays for another.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tollgate::base::time::Clock;
use tollgate::limits::check::{Check, CheckError, CheckRequest, Decisions, Hits, Key, StoreError};
use tollgate::limits::{Algorithm, Limit, OverLimitHits, Terms, Unit};
use tollgate::store::redis::RedisClient;
use tollgate::store::redis::client::waiting::{WAITERS_BYTES_MAX, WAITERS_MAX};
use tollgate::telemetry::metric::Metrics;

use crate::support::counted;
use crate::support::in_process::{ADDRESS, millis, network, redis, settle, single};
use crate::support::remote::{in_order, request_of};
use crate::support::scripted_redis::{Fault, Reply, ScriptedRedis};

/// How long a call is in flight.
const ROUND_TRIP: Duration = millis(10);

struct World {
    server: Arc<ScriptedRedis>,
    remote: RedisClient,
    metrics: Metrics,
    clock: Clock,
}

/// Callers that have asked.
struct Callers {
    asking: JoinSet<(usize, (Decisions, Duration))>,
    began: Instant,
}

/// A hit on a counter of its own.
fn check(name: &str) -> Check {
    let limit = Limit::new(&Terms::new(9, Unit::Year, Algorithm::FixedWindow)).expect("a limit");
    Check::new(Key::from(&*format!("{name}:")), limit, Hits::Add(1))
}

/// A hit that the script decides.
fn scripted(name: &str) -> Check {
    let terms = Terms {
        over_limit_hits: Some(OverLimitHits::Drop),
        ..Terms::new(9, Unit::Year, Algorithm::FixedWindow)
    };
    let limit = Limit::new(&terms).expect("a limit");
    Check::new(Key::from(&*format!("{name}:")), limit, Hits::Add(1))
}

/// One that is connected, and whose Redis knows the script.
async fn world() -> World {
    let network = network();
    let metrics = Metrics::new();
    let world = World {
        server: network.server(ADDRESS),
        remote: redis(&network, single(), &metrics, 0).open(),
        metrics,
        clock: network.clock,
    };
    assert!(world.decide([scripted("start")]).await[0].is_ok());
    world.server.forget_received();
    world
}

impl World {
    async fn decide(&self, checks: impl IntoIterator<Item = Check>) -> Decisions {
        self.remote.decide(&request_of(checks), self.clock.now(), None).await
    }

    fn metric(&self, name: &str) -> u64 {
        counted(&self.metrics, name)
    }

    /// How many requests were withdrawn before they were sent, and have an unknown outcome.
    fn withdrawn_and_unknown(&self) -> (u64, u64) {
        let withdrawn = self.metric("tollgate_store_abandoned_total");
        (withdrawn, self.metric("tollgate_store_ambiguous_total"))
    }

    /// How many batches were sent, with that of the script in the beginning.
    fn batches(&self) -> u64 {
        self.metric("tollgate_store_batch_checks_count")
    }

    /// How often the script was called by its hash, and by its text.
    fn scripts(&self) -> (usize, usize) {
        (self.server.received("EVALSHA"), self.server.received("EVAL"))
    }
}

impl Callers {
    fn new() -> Self {
        Self { asking: JoinSet::new(), began: Instant::now() }
    }

    /// One whose only call is in flight on a slow connection.
    async fn behind_a_call(world: &World) -> Self {
        world.server.fail(Fault::Delay(ROUND_TRIP));
        let mut callers = Self::new();
        callers.ask(world, request_of([check("first")]));
        settle().await;
        callers
    }

    fn ask(&mut self, world: &World, request: CheckRequest) -> AbortHandle {
        let remote = world.remote.clone();
        let now = world.clock.now();
        let number = self.asking.len();
        let began = self.began;
        self.asking.spawn(async move {
            let decisions = remote.decide(&request, now, None).await;
            (number, (decisions, began.elapsed()))
        })
    }

    /// For each caller, in order, whether all its checks have verdicts, and how long after the
    /// first call that was; without those that were canceled.
    async fn answers(self) -> Vec<(Result<(), CheckError>, Duration)> {
        let verdict = |decisions: Decisions| {
            let mut decisions = decisions.into_iter();
            decisions.try_for_each(|decision| decision.map(drop))
        };
        let answers = in_order(self.asking).await.into_iter();
        answers.map(|(decisions, took)| (verdict(decisions), took)).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn single_requests_are_sent_at_once() {
    let world = world().await;
    world.server.fail(Fault::Delay(ROUND_TRIP));
    for call in 0..20 {
        let began = Instant::now();
        assert!(world.decide([check(&format!("{call}"))]).await[0].is_ok());
        assert_eq!((began.elapsed(), world.batches()), (ROUND_TRIP, 1 + call + 1));
    }
}

#[tokio::test(start_paused = true)]
async fn plain_batches_read_the_clock_once_in_10_ms() {
    let world = world().await;
    for read in 0..3 {
        for _ in 0..4 {
            assert!(world.decide([check("one")]).await[0].is_ok());
            assert_eq!(world.server.received("TIME"), read);
        }
        tokio::time::advance(millis(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn requests_behind_a_call_in_flight_share_the_next_one() {
    // How many wait, and how many batches that makes behind the first one.
    for (waiting, batches) in [(1, 1), (256, 1), (257, 2), (600, 3)] {
        let world = world().await;
        world.server.fail(Fault::Delay(ROUND_TRIP));
        let mut callers = Callers::new();
        for call in 0..=waiting {
            callers.ask(&world, request_of([check(&format!("{call}"))]));
            // So the first one is in flight before the others arrive.
            settle().await;
        }
        let answers = callers.answers().await;
        for (call, answer) in answers.iter().enumerate() {
            let batch = u32::try_from(call.div_ceil(256)).expect("few");
            assert_eq!(*answer, (Ok(()), ROUND_TRIP * (1 + batch)), "{call} of {waiting}");
        }
        assert_eq!(world.batches(), 1 + 1 + batches, "{waiting}");
        assert_eq!(world.metric("tollgate_store_batches_full_total"), batches - 1, "{waiting}");
        assert_eq!(world.server.hits(""), 1 + 1 + waiting, "each is counted once");
    }
}

/// Those that were sent stay in their batch.
#[tokio::test(start_paused = true)]
async fn canceled_requests_are_not_counted_unless_they_were_sent() {
    for (canceled_after, counted, outcomes) in
        [(Duration::ZERO, 4, (5, 0)), (ROUND_TRIP + millis(5), 9, (0, 5))]
    {
        let world = world().await;
        let mut callers = Callers::behind_a_call(&world).await;
        let handles: Vec<_> = (0..9)
            .map(|call| callers.ask(&world, request_of([check(&format!("waiting {call}"))])))
            .collect();
        settle().await;
        tokio::time::sleep(canceled_after).await;
        handles.iter().step_by(2).for_each(AbortHandle::abort);
        let mut expected = vec![(Ok(()), ROUND_TRIP * 2); 5];
        expected[0].1 = ROUND_TRIP;
        assert_eq!(callers.answers().await, expected);
        settle().await;
        assert_eq!(world.server.hits("waiting "), counted);
        assert_eq!(world.withdrawn_and_unknown(), outcomes);
    }
}

#[tokio::test(start_paused = true)]
async fn noscript_is_answered_with_the_script_once() {
    let world = world().await;
    world.server.forget_script();
    let decisions = world.decide((0..8).map(|number| scripted(&format!("{number}")))).await;
    assert!(
        decisions.iter().all(|decision| decision.is_ok_and(|verdict| verdict.used == 1)),
        "{decisions:?}"
    );
    assert_eq!(world.scripts(), (1, 1));
    assert!(world.decide([scripted("next")]).await[0].is_ok());
    assert_eq!(world.scripts(), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn noscript_retries_are_bounded() {
    let world = world().await;
    for command in ["EVALSHA", "EVAL"] {
        world.server.reply(command, Reply::error("NOSCRIPT No matching script."));
    }
    assert_eq!(world.decide([scripted("v")]).await[0], Err(StoreError::Rejected.not_counted()));
    assert_eq!(world.scripts(), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn check_errors_do_not_affect_neighbors() {
    for check in [check, scripted] {
        check_error_does_not_affect_neighbors(["a", "foreign", "b"].map(check)).await;
    }
}

async fn check_error_does_not_affect_neighbors(checks: [Check; 3]) {
    let world = world().await;
    world.server.set_foreign("foreign", true);
    for expected in 1..4 {
        let used: Vec<_> = world
            .decide(checks.clone())
            .await
            .into_iter()
            .map(|decision| decision.map(|verdict| verdict.used))
            .collect();
        assert_eq!(used, [Ok(expected), Err(StoreError::Rejected.not_counted()), Ok(expected)]);
    }
    // And if they are calls of their own.
    let mut callers = Callers::behind_a_call(&world).await;
    for check in checks {
        callers.ask(&world, request_of([check]));
    }
    let verdicts: Vec<_> =
        callers.answers().await.into_iter().map(|(verdict, _)| verdict).collect();
    assert_eq!(verdicts, [Ok(()), Ok(()), Err(StoreError::Rejected.not_counted()), Ok(())]);
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_are_bounded_in_number() {
    let world = world().await;
    world.server.fail(Fault::Delay(ROUND_TRIP));
    let mut callers = Callers::new();
    for _ in 0..2 {
        for call in 0..=WAITERS_MAX {
            callers.ask(&world, request_of([check(&format!("{call}"))]));
        }
        // The first call is in flight; then it is answered, and the next 256 are.
        settle().await;
        tokio::time::sleep(ROUND_TRIP + millis(1)).await;
    }
    let answers = callers.answers().await;
    let crowded = answers
        .iter()
        .filter(|(answer, _)| *answer == Err(StoreError::QueueFull.not_counted()))
        .count();
    assert!(crowded >= WAITERS_MAX - 256 * 2, "{crowded} of {}", answers.len());
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_are_bounded_in_bytes() {
    const KEY_BYTES: usize = 1 << 20;
    let world = world().await;
    let mut callers = Callers::behind_a_call(&world).await;
    let room = WAITERS_BYTES_MAX / KEY_BYTES;
    for call in 0..2 * room {
        callers.ask(&world, request_of([check(&format!("{call} {}", "x".repeat(KEY_BYTES)))]));
        settle().await;
    }
    tokio::time::sleep(millis(1)).await;
    let is_crowded = |(answer, _): &&(Result<(), CheckError>, Duration)| {
        *answer == Err(StoreError::QueueFull.not_counted())
    };
    let answers = callers.answers().await;
    let crowded = answers.iter().filter(is_crowded).count();
    assert!((room..=room + 1).contains(&crowded), "{crowded} of {}", 2 * room);
    assert!(world.decide([check("next")]).await[0].is_ok(), "they are gone");
}
