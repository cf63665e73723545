//! `on_limit: queue` on Redis: a request waits until its slot begins, however long Redis takes to
//! book it. See also `over_limit.rs`.

use std::mem;
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};
use tollgate::base::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollgate::limiter::queue::QUEUE_WAITERS_MAX;

use crate::support::in_process::{
    Called, Service, Verdict, decide, millis, network, pass, settle, single,
};
use crate::support::remote::in_order;
use crate::support::request;
use crate::support::scripted_redis::Fault;

/// `turn` has a slot each 100 ms, and five requests may wait; `line` is the same for ten minutes.
const RULES: &str = "
domain: d
descriptors:
  - key: turn
    rate_limit: {unit: second, requests_per_unit: 10}
    metadata: {tollgate: {algorithm: leaky_bucket, on_limit: queue, max_wait: 500ms}}
  - key: line
    rate_limit: {unit: second, requests_per_unit: 10}
    metadata: {tollgate: {algorithm: leaky_bucket, on_limit: queue, max_wait: 10m}}
  - key: slow
    rate_limit: {unit: second, requests_per_unit: 1}
    metadata: {tollgate: {algorithm: leaky_bucket, on_limit: queue, max_wait: 5s}}
  - key: hour
    rate_limit: {unit: hour, requests_per_unit: 1}
";
const OVER_LIMIT: (Verdict, Duration) = (Verdict::OverLimit, Duration::ZERO);

struct World {
    service: Service,
    callers: JoinSet<(usize, Called)>,
}

async fn world() -> World {
    let service = Service::with_rules(&network(), single(), RULES);
    service.ask("turn", "start").await;
    let callers = JoinSet::new();
    World { service, callers }
}

impl World {
    async fn ask(&mut self, grpc_timeout: Option<&'static str>) -> AbortHandle {
        self.spawn(request_of(&["turn"]), grpc_timeout).await
    }

    async fn spawn(
        &mut self,
        request: RateLimitRequest,
        grpc_timeout: Option<&'static str>,
    ) -> AbortHandle {
        let limiter = self.service.limiter.clone();
        let number = self.callers.len();
        let called = async move { (number, decide(&limiter, &request, grpc_timeout).await) };
        let handle = self.callers.spawn(called);
        // The next one comes later.
        settle().await;
        handle
    }

    /// Sends three requests, and one that Redis decides 70 ms later, too late for its slot.
    async fn ask_during_an_outage(&mut self) {
        for _ in 0..3 {
            self.ask(None).await;
        }
        self.service.server.fail(Fault::Stopped);
        self.ask(Some("300m")).await;
        tokio::time::sleep(millis(70)).await;
        self.service.server.recover();
        settle().await;
    }

    /// The answer to one hit on each, awaited.
    async fn decide(&self, keys: &[&str]) -> (Verdict, Duration) {
        let called = decide(&self.service.limiter, &request_of(keys), None).await;
        (called.verdict, called.took)
    }

    fn wasted_slots(&self, cause: &str) -> u64 {
        let series = format!("tollgate_queue_wasted_slots_total{{cause=\"{cause}\"}}");
        self.service.metric(&series)
    }

    /// What callers saw, in the order in which they came, without those that were canceled.
    async fn answers(&mut self) -> Vec<(Verdict, Duration)> {
        let called = in_order(mem::take(&mut self.callers)).await;
        let seen = called.into_iter().map(|called| (called.verdict, called.took));
        seen.collect()
    }
}

fn request_of(keys: &[&str]) -> RateLimitRequest {
    let descriptors: Vec<[(&str, &str); 1]> = keys.iter().map(|&key| [(key, "v")]).collect();
    let descriptors: Vec<&[(&str, &str)]> = descriptors.iter().map(|one| &one[..]).collect();
    request("d", &descriptors)
}

/// Responses of OK after these times in ms.
fn served(millis_after: &[u64]) -> Vec<(Verdict, Duration)> {
    millis_after.iter().map(|&after| (Verdict::Ok, millis(after))).collect()
}

#[tokio::test(start_paused = true)]
async fn requests_wait_for_their_slot_up_to_max_wait() {
    let mut world = world().await;
    for _ in 0..7 {
        world.ask(None).await;
    }
    // A request over one limit consumes nothing of the others.
    assert_eq!(world.decide(&["turn", "hour"]).await, OVER_LIMIT);
    assert_eq!([world.decide(&["hour"]).await][..], served(&[0]));
    assert_eq!(
        world.answers().await,
        [served(&[0, 100, 200, 300, 400, 500]), vec![OVER_LIMIT]].concat()
    );
}

#[tokio::test(start_paused = true)]
async fn the_later_of_two_slots_decides_the_wait() {
    let world = world().await;
    for after in [0, 1_000] {
        assert_eq!([world.decide(&["turn", "slow"]).await][..], served(&[after]));
    }
    for key in ["turn", "slow"] {
        let queued = format!("tollgate_rule_queued_hits_total{{domain=\"d\",key1=\"{key}\"}}");
        assert_eq!(world.service.metric(&queued), 1, "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn peeks_and_refunds_do_not_wait() {
    let mut world = world().await;
    for _ in 0..4 {
        world.ask(None).await;
    }
    for (hits, is_negative_hits) in [(0, false), (1, true)] {
        let mut request = request_of(&["turn"]);
        request.descriptors[0].hits_addend = Some(hits);
        request.descriptors[0].is_negative_hits = is_negative_hits;
        let called = decide(&world.service.limiter, &request, None).await;
        assert_eq!(called.took, Duration::ZERO);
    }
    // What was given back is a slot for the next one.
    world.ask(None).await;
    assert_eq!(world.answers().await, served(&[0, 100, 200, 300, 300]));
}

#[tokio::test(start_paused = true)]
async fn queue_waiters_are_bounded() {
    let mut world = world().await;
    let waiters = |world: &World| world.service.metric("tollgate_queue_waiters");
    let line = || request_of(&["line"]);
    for _ in 0..=QUEUE_WAITERS_MAX {
        // The first one need not wait.
        world.spawn(line(), None).await;
    }
    assert_eq!(waiters(&world), 1_024);
    assert_eq!(world.decide(&["line"]).await, OVER_LIMIT);
    // There is a slot at once, so there is no need for a place.
    assert_eq!([world.decide(&["turn"]).await][..], served(&[0]));
    assert_eq!(world.decide(&["turn"]).await, OVER_LIMIT);
    assert_eq!([world.decide(&["hour"]).await][..], served(&[0]));
    assert_eq!(world.service.metric("tollgate_queue_full_total"), 3);

    // The next turn leaves a place for one more.
    pass(millis(100)).await;
    assert_eq!(waiters(&world), 1_023);
    let last = world.spawn(line(), None).await;
    assert_eq!(waiters(&world), 1_024);
    last.abort();
    let times: Vec<u64> = (0..=QUEUE_WAITERS_MAX as u64).map(|slot| slot * 100).collect();
    assert_eq!(world.answers().await, served(&times));
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
    assert_eq!(answers[4], OVER_LIMIT);
    assert_eq!([&answers[..4], &answers[5..]].concat(), served(&[0, 100, 200, 300, 400]));
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
    world.ask_during_an_outage().await;
    world.ask(None).await;
    let late = vec![(Verdict::OverLimit, millis(70))];
    // The last one has the slot at 400 ms, and came at 70 ms.
    assert_eq!(world.answers().await, [served(&[0, 100, 200]), late, served(&[330])].concat());
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
