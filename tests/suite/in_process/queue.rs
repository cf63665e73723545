//! `on_limit: queue` on Redis: a request waits until its slot begins, however long Redis takes to
//! book it. See also `over_limit.rs`.

use std::mem;
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};

use crate::support::in_process::{Called, Service, Verdict, ask, millis, network, settle, single};
use crate::support::remote::in_order;
use crate::support::scripted_redis::Fault;

/// A slot each 100 ms. Five requests may wait.
const RULES: &str = "
domain: d
descriptors:
  - key: turn
    rate_limit: {unit: second, requests_per_unit: 10}
    metadata: {tollgate: {algorithm: leaky_bucket, on_limit: queue, max_wait: 500ms}}
";

struct World {
    service: Service,
    callers: JoinSet<(usize, Called)>,
}

async fn world() -> World {
    let service = Service::with_rules(&network(), single(), RULES);
    ask(&service.limiter, "turn", "start", None).await;
    let callers = JoinSet::new();
    World { service, callers }
}

impl World {
    async fn ask(&mut self, grpc_timeout: Option<&'static str>) -> AbortHandle {
        let (limiter, number) = (self.service.limiter.clone(), self.callers.len());
        let handle = self
            .callers
            .spawn(async move { (number, ask(&limiter, "turn", "v", grpc_timeout).await) });
        // The next one comes later.
        settle().await;
        handle
    }

    fn wasted_slots(&self, cause: &str) -> u64 {
        let series = format!("tollgate_queue_wasted_slots_total{{cause=\"{cause}\"}}");
        self.service.metric(&series)
    }

    /// What callers saw, in the order in which they came, without those that were canceled.
    async fn answers(&mut self) -> Vec<(Verdict, Duration)> {
        let called = in_order(mem::take(&mut self.callers)).await;
        let seen = called
            .into_iter()
            .map(|called| (called.verdict, called.took));
        seen.collect()
    }
}

/// Responses of OK after these times in ms.
fn served(millis_after: &[u64]) -> Vec<(Verdict, Duration)> {
    millis_after
        .iter()
        .map(|&after| (Verdict::Ok, millis(after)))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn requests_wait_for_their_slot_up_to_max_wait() {
    let mut world = world().await;
    for _ in 0..7 {
        world.ask(None).await;
    }
    let over_limit = vec![(Verdict::OverLimit, Duration::ZERO)];
    assert_eq!(
        world.answers().await,
        [served(&[0, 100, 200, 300, 400, 500]), over_limit].concat()
    );
}

#[tokio::test(start_paused = true)]
async fn latency_of_redis_is_part_of_the_wait() {
    let mut world = world().await;
    world.ask(None).await;
    world.service.server.fail(Fault::Delay(millis(30)));
    // Booked at once, known after 30 ms.
    world.ask(None).await;
    // Booked when the call before it was answered, known after 60 ms.
    world.ask(None).await;
    assert_eq!(world.answers().await, served(&[0, 100, 200]));
}

#[tokio::test(start_paused = true)]
async fn slots_after_the_deadline_are_not_booked() {
    let mut world = world().await;
    // 400 ms leave 320 ms for the answer.
    let in_time = Some("400m");
    for grpc_timeout in [None, in_time, in_time, in_time, in_time, None] {
        world.ask(grpc_timeout).await;
    }
    let answers = world.answers().await;
    assert_eq!(answers[4], (Verdict::OverLimit, Duration::ZERO));
    assert_eq!(
        [&answers[..4], &answers[5..]].concat(),
        served(&[0, 100, 200, 300, 400])
    );
    assert_eq!(world.wasted_slots("late"), 0);
}

/// ```text
///  asked: a slot within 240 ms       deadline   slot
///    |--------- Redis is stopped --------|-------|----> time
///    0           70 ms: booked        240 ms  300 ms
/// ```
#[tokio::test(start_paused = true)]
async fn slots_booked_too_late_are_rejected_and_lost() {
    let mut world = world().await;
    for _ in 0..3 {
        world.ask(None).await;
    }
    world.service.server.fail(Fault::Stopped);
    world.ask(Some("300m")).await;
    tokio::time::sleep(millis(70)).await;
    world.service.server.recover();
    settle().await;
    world.ask(None).await;
    let late = vec![(Verdict::OverLimit, millis(70))];
    // The last one has the slot at 400 ms, and came at 70 ms.
    assert_eq!(
        world.answers().await,
        [served(&[0, 100, 200]), late, served(&[330])].concat()
    );
    assert_eq!(world.wasted_slots("late"), 1);
}

#[tokio::test(start_paused = true)]
async fn canceled_requests_keep_their_slot() {
    let mut world = world().await;
    world.ask(None).await;
    let canceled = world.ask(None).await;
    world.ask(None).await;
    canceled.abort();
    world.ask(None).await;
    assert_eq!(world.answers().await, served(&[0, 200, 300]));
    assert_eq!(world.wasted_slots("gone"), 1);
}
