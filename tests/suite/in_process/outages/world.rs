//! Plays a history: one Tollgate replica on a scripted Redis, and beside it a model of each
//! counter.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;
use tollgate::api::convert;
use tollgate::base::time::{Clock, Span, Time};
use tollgate::limiter::response::Response;
use tollgate::limits::algorithm::counter::Kind;
use tollgate::limits::algorithm::decide_all_or_nothing;
use tollgate::limits::check::{Check, Hits};
use tollgate::rules::KeyFormat;
use tollgate::rules::plan::{Modes, plan};
use tollgate::rules::query::{Descriptor, Entry, Query};
use tollgate::telemetry::metric::Metrics;

use super::model::{Checked, Model, Outcome};
use super::{Data, Disconnect, History, Hit, Loss, Step, Wait};
use crate::support::in_process::{ADDRESS, Rules, START, Service, millis, redis, single};
use crate::support::scripted_redis::{Fault, Network, ScriptedRedis, Snapshot};

/// Limits of every algorithm, all of a minute and so small that a history reaches them.
const RULES: [(&str, &str); 10] = [
    ("fixed", "algorithm: fixed_window"),
    ("fixed_drop", "over_limit_hits: drop"),
    ("sliding", "algorithm: sliding_window"),
    ("sliding_count", "algorithm: sliding_window, over_limit_hits: count"),
    ("sub_windows", "algorithm: sliding_window, buckets: 4"),
    ("log", "algorithm: sliding_log"),
    ("token", "algorithm: token_bucket"),
    ("token_count", "algorithm: token_bucket, over_limit_hits: count"),
    ("leaky", "algorithm: leaky_bucket, burst: 2"),
    ("slots", ""),
];
const SLOTS: &str = "  - key: slots
    descriptors:
      - key: id
        rate_limit: {unit: second, requests_per_unit: 3}
        metadata: {tollgate: {algorithm: concurrency, lease_by: id, lease: 60s}}
";
/// How many counters there are.
pub(super) const COUNTERS: usize = RULES.len();
const APART: &str = "apart";
const TOGETHER: &str = "all_or_nothing";
/// Failures in a row after which Redis is not asked.
const FAILURES_MAX: u32 = 3;
/// Longer than it takes to notice that Redis is there, and to write back.
const SETTLED_AFTER: Duration = Duration::from_millis(2_500);
/// How long a connection is idle before the next call waits for a close of it to be read.
const LOOKED_AT_AFTER: Span = Span::from_micros(500_000);
const HOLDERS: [&str; 4] = ["a", "b", "c", "d"];

/// Every counter, cached verdict and open breaker has expired after this time: the limits are of a
/// minute, and a sliding window keeps the minute before.
const BETWEEN_HISTORIES: Duration = Duration::from_secs(130);

/// A Tollgate replica and its Redis. Starting one takes as long as a history, so histories share it.
struct Replica {
    server: Arc<ScriptedRedis>,
    service: Service,
    clock: Clock,
}

/// Everything that a history changes.
struct World {
    replica: Replica,
    domain: &'static str,
    counters: Vec<Counting>,
    fault: Option<Fault>,
    failures: u32,
    /// Nothing is pending, and nothing has failed since then.
    is_settled: bool,
    /// Redis has decided a call since then.
    is_calm: bool,
    /// The next call may meet a connection that has ended without its knowledge.
    is_silent: bool,
    /// When the last call was made.
    called: Time,
    snapshot: Snapshot,
}

/// One counter, as the rules name it.
struct Counting {
    /// Its place among the rules.
    rule: usize,
    check: Check,
    model: Model,
}

thread_local! {
    /// Rules are read once for all histories.
    static LOADED: RefCell<Option<Rules>> = const { RefCell::new(None) };
    /// The replica of the last history that passed.
    static REPLICA: RefCell<Option<Replica>> = const { RefCell::new(None) };
}

/// Plays a history.
///
/// # Errors
/// The first invariant that does not hold, and after which step.
pub(super) async fn play(history: &History) -> Result<(), String> {
    let mut world = World::start(history).await;
    for (index, step) in history.steps.iter().enumerate() {
        world.step(step).await.map_err(|error| format!("step {index}, {step:?}: {error}"))?;
    }
    world.end_outage().await;
    world.settle().await.map_err(|error| format!("at the end: {error}"))?;
    let immortal = world.replica.server.immortal_keys();
    // A server that takes over may have a key from before its expiry was set.
    let is_older = |step: &Step| matches!(step, Step::FailOver(Data::Older));
    if !immortal.is_empty() && !history.steps.iter().any(is_older) {
        return Err(format!("keys never expire: {immortal:?}"));
    }
    REPLICA.set(Some(world.replica));
    Ok(())
}

/// The key of a rule.
pub(super) fn name(counter: usize) -> &'static str {
    RULES[counter].0
}

fn rules() -> Rules {
    LOADED.with_borrow_mut(|loaded| {
        let load = || {
            let rule = |(key, options): &(&str, &str)| match *options {
                "" => SLOTS.to_owned(),
                options => format!("  - key: {key}\n    rate_limit: {{unit: minute, requests_per_unit: 4}}\n    metadata: {{tollgate: {{{options}}}}}\n"),
            };
            let rules: String = RULES.iter().map(rule).collect();
            let texts = [
                format!("domain: {APART}\ndescriptors:\n{rules}"),
                format!("domain: {TOGETHER}\nmetadata: {{tollgate: {{all_or_nothing: true}}}}\ndescriptors:\n{rules}"),
            ];
            Rules::load(KeyFormat::Reference, &texts, &Metrics::new())
        };
        loaded.get_or_insert_with(load).clone()
    })
}

impl Replica {
    async fn start() -> Self {
        let clock = Clock::starting_at(START);
        let network = Network::new(clock.clone());
        let server = network.server(ADDRESS);
        let metrics = Metrics::new();
        let redis = redis(&network, single(), &metrics, 0);
        let mut service = Service::with_redis(&network, redis, &rules(), metrics);
        service.start().await;
        Self { server, service, clock }
    }

    /// Ends all that the last history left behind.
    async fn reset(self) -> Self {
        self.server.evict("");
        self.server.close_connections();
        self.server.forget_received();
        jump(BETWEEN_HISTORIES).await;
        self
    }
}

impl World {
    async fn start(history: &History) -> Self {
        let replica = match REPLICA.take() {
            Some(replica) => replica.reset().await,
            None => Replica::start().await,
        };
        let now = replica.clock.now();
        let rules = rules();
        let domain = if history.all_or_nothing { TOGETHER } else { APART };
        let loaded = rules.live.load();
        let counters = history.counters.iter().map(|&counter| {
            let hit = Hit { counter, hits: Hits::Peek, holder: 0 };
            let query = Query {
                domain: domain.as_bytes(),
                descriptors: SmallVec::from_iter([descriptor(counter, &hit)]),
                ..Query::default()
            };
            let plan = plan(loaded.as_ref().expect("rules"), &query, Modes::default(), now)
                .expect("a request");
            let check = plan.request.checks[0].clone();
            Counting { rule: counter, model: Model::new(check.limit, now), check }
        });
        let counters = counters.collect();
        Self {
            replica,
            domain,
            counters,
            fault: None,
            failures: 0,
            is_settled: true,
            is_calm: false,
            is_silent: false,
            called: now,
            snapshot: Snapshot::default(),
        }
    }

    async fn step(&mut self, step: &Step) -> Result<(), String> {
        self.pass();
        match step {
            Step::Call { hits, loss } => self.call(hits, *loss).await?,
            Step::Outage(fault) => self.outage(*fault).await,
            Step::OutageEnds => self.end_outage().await,
            Step::Disconnect(disconnect) => self.disconnect(*disconnect).await,
            Step::Snapshot => self.snapshot = self.replica.server.snapshot(),
            Step::FailOver(data) => self.fail_over(*data).await,
            Step::Wait(wait) => self.wait(*wait).await?,
        }
        self.pass();
        self.risk_pending();
        let now = self.replica.clock.now();
        for counting in &self.counters {
            let held = self.replica.server.spent(&counting.key(now));
            counting
                .model
                .holds_at_most(held, now)
                .map_err(|error| format!("{}: {error}", counting.check.key))?;
        }
        Ok(())
    }

    /// One request.
    async fn call(&mut self, hits: &[Hit], loss: Loss) -> Result<(), String> {
        let hits: Vec<Hit> = hits
            .iter()
            .map(|hit| Hit { counter: hit.counter % self.counters.len(), ..*hit })
            .collect();
        let now = self.replica.clock.now();
        let expected = self.expected(&hits, now);
        let short = convert::timeout("1u").map(|timeout| convert::deadline_after(timeout, now));
        let deadline = if loss == Loss::NoTime { short } else { None };
        let fault = match loss {
            Loss::BeforeRunning => Some(Fault::CloseBeforeRunning),
            Loss::Reply => Some(Fault::CloseInReply),
            Loss::ReplyLate => Some(Fault::NoReply),
            Loss::Nothing | Loss::NoTime => None,
        };
        let fault = fault.filter(|_| self.fault.is_none());
        if let Some(fault) = fault {
            self.replica.server.fail_next(1, fault);
        }
        let decided = self.replica.server.decided();
        let began = Instant::now();
        let answer = self.ask(&hits, deadline).await;
        let (is_instant, has_decided) =
            (began.elapsed().is_zero(), self.replica.server.decided() > decided);
        if fault.is_some() {
            self.replica.server.recover();
            if self.is_silent {
                // While the call waited on a half-open connection, a write-back met the fault.
                self.lose_pending();
            }
        }
        let is_lost = fault.is_some() || self.fault.is_some();
        let outcome = match () {
            () if loss == Loss::NoTime => Outcome::NotSent,
            // They closed the connections, so nothing was written into one.
            () if self.fault == Some(Fault::RefuseConnections) => Outcome::NotSent,
            () if self.failures >= FAILURES_MAX && !has_decided && fault.is_none() => {
                Outcome::NotSent
            }
            () if !is_lost && is_instant && has_decided => Outcome::Served,
            () if self.fault.is_some_and(keeps_input) => Outcome::MayArriveLater,
            () => Outcome::Unknown,
        };
        let is_disturbed = is_lost || loss == Loss::NoTime;
        self.is_settled &= !is_disturbed;
        if self.is_calm && !is_disturbed && !self.is_silent && outcome != Outcome::Served {
            return Err(format!("nothing fails, but the call is {outcome:?}"));
        }
        self.is_silent &= outcome == Outcome::NotSent;
        self.called = self.replica.clock.now();
        self.is_calm = self.is_settled && (self.is_calm || outcome == Outcome::Served);
        match outcome {
            Outcome::Served => self.failures = 0,
            Outcome::Unknown | Outcome::MayArriveLater => {
                self.failures += 1;
                // The breaker opens, also if connections were only lost in silence.
                if self.failures >= FAILURES_MAX {
                    (self.is_settled, self.is_calm) = (false, false);
                }
            }
            Outcome::NotSent => {}
        }
        self.pass();
        self.learn(&hits, &answer, outcome);
        if let (Outcome::Served, Some(expected)) = (outcome, expected) {
            for (index, (hit, (over, remaining))) in hits.iter().zip(expected).enumerate() {
                let status = &answer.statuses[index];
                let over = over && !matches!(hit.hits, Hits::Refund(_));
                if (status.over_limit, status.remaining) != (over, remaining) {
                    return Err(format!(
                        "check {index}: {status:?}, but over is {over}, and {remaining} remain"
                    ));
                }
            }
        }
        let now = self.replica.clock.now();
        for counting in &self.counters {
            counting
                .model
                .admits_at_most(now)
                .map_err(|error| format!("{}: {error}", counting.check.key))?;
        }
        Ok(())
    }

    /// What the algorithms say of a request whose counters are all known.
    fn expected(&self, hits: &[Hit], now: Time) -> Option<Vec<(bool, u64)>> {
        let is_exact = |hit: &Hit| self.counters[hit.counter].model.is_exact(now);
        if !hits.iter().all(is_exact) {
            return None;
        }
        let checks: Vec<Check> =
            hits.iter().map(|hit| self.counters[hit.counter].asked(hit)).collect();
        let mut counters = Vec::new();
        let mut slots = Vec::new();
        let mut firsts = Vec::new();
        for hit in hits {
            let slot =
                firsts.iter().position(|&first| first == hit.counter).unwrap_or(firsts.len());
            if slot == firsts.len() {
                firsts.push(hit.counter);
                counters.push(self.counters[hit.counter].model.counter().clone());
            }
            slots.push(slot);
        }
        if self.domain == TOGETHER && hits.len() > 1 {
            let verdicts = decide_all_or_nothing(&checks, &slots, &mut counters, now);
            return Some(
                verdicts.iter().map(|verdict| (verdict.over, verdict.remaining)).collect(),
            );
        }
        let verdicts = checks.iter().zip(slots).map(|(check, slot)| {
            let (after, verdict) =
                std::mem::take(&mut counters[slot]).decide(&check.limit, now, check.call());
            counters[slot] = after;
            (verdict.over, verdict.remaining)
        });
        Some(verdicts.collect())
    }

    async fn ask(&self, hits: &[Hit], deadline: Option<Time>) -> Response {
        let rule = |hit: &Hit| self.counters[hit.counter].rule;
        let descriptors = hits.iter().map(|hit| descriptor(rule(hit), hit)).collect();
        let query = Query { domain: self.domain.as_bytes(), descriptors, hits_addend: 0, deadline };
        self.replica.service.limiter.decide(&query, None).await.expect("an answer")
    }

    fn learn(&mut self, hits: &[Hit], answer: &Response, outcome: Outcome) {
        let now = self.replica.clock.now();
        let blocked = self.domain == TOGETHER && hits.len() > 1 && answer.over_limit;
        for (hit, status) in hits.iter().zip(&answer.statuses) {
            let counting = &mut self.counters[hit.counter];
            let check = counting.asked(hit);
            let checked = Checked { call: check.call(), over: status.over_limit, blocked };
            counting.model.answered(checked, outcome, now);
        }
    }

    async fn outage(&mut self, fault: Fault) {
        if !(self.fault.is_some_and(keeps_input) && keeps_input(fault)) {
            self.arrive();
        }
        self.replica.server.fail(fault);
        self.fault = Some(fault);
        (self.is_settled, self.is_calm) = (false, false);
        settle().await;
    }

    async fn end_outage(&mut self) {
        self.replica.server.recover();
        (self.fault, self.failures) = (None, 0);
        settle().await;
        self.arrive();
    }

    async fn disconnect(&mut self, disconnect: Disconnect) {
        // What a stopped server has not read is lost with its connection.
        self.arrive();
        match disconnect {
            Disconnect::Silent => {
                self.replica.server.lose_connections();
                self.is_silent = true;
            }
            Disconnect::Closing => {
                self.replica.server.close_connections();
                // A connection that was just used is not looked at first.
                let idle = self.replica.clock.now().since(self.called);
                self.is_silent |= idle <= LOOKED_AT_AFTER;
            }
            Disconnect::Closed => {
                self.replica.server.close_connections();
                settle().await;
            }
        }
    }

    async fn fail_over(&mut self, data: Data) {
        let now = self.replica.clock.now();
        let before: Vec<u64> = self
            .counters
            .iter()
            .map(|counting| self.replica.server.spent(&counting.key(now)))
            .collect();
        let snapshot = match data {
            Data::Same => self.replica.server.snapshot(),
            Data::Older => self.snapshot.clone(),
            Data::None => Snapshot::default(),
        };
        self.arrive();
        self.replica.server.fail_over(snapshot);
        let losing = self.counters.iter_mut().filter(|_| !matches!(data, Data::Same));
        for (counting, before) in losing.zip(before) {
            let found = self.replica.server.counter(&counting.key(now), &counting.check.limit);
            counting.model.fail_over(before, &found, now);
        }
        settle().await;
    }

    async fn wait(&mut self, wait: Wait) -> Result<(), String> {
        let now = self.replica.clock.now().as_micros();
        if self.fault.is_none() {
            // A probe may succeed meanwhile, and then Redis is asked again.
            self.failures = 0;
        }
        match wait {
            Wait::Millis(millis) => pass(Duration::from_millis(millis)).await,
            Wait::WindowEnd => {
                self.jump(Duration::from_micros(60_000_000 - now % 60_000_000)).await;
            }
            Wait::Seconds(seconds) => self.jump(Duration::from_secs(seconds)).await,
            Wait::Settled if self.fault.is_none() => self.settle().await?,
            Wait::Settled => pass(SETTLED_AFTER).await,
        }
        Ok(())
    }

    /// Redis has been there for long enough, and holds what it should.
    async fn settle(&mut self) -> Result<(), String> {
        pass(SETTLED_AFTER).await;
        (self.failures, self.is_settled) = (0, true);
        self.pass();
        let now = self.replica.clock.now();
        for counting in &mut self.counters {
            let (key, name) = (counting.key(now), counting.check.key.to_string());
            counting
                .model
                .holds_all(self.replica.server.spent(&key), now)
                .map_err(|error| format!("{name}: {error}"))?;
            counting.model.settle(self.replica.server.counter(&key, &counting.check.limit));
        }
        Ok(())
    }

    fn pass(&mut self) {
        let now = self.replica.clock.now();
        for counting in &mut self.counters {
            counting.model.pass(now);
        }
    }

    fn arrive(&mut self) {
        let now = self.replica.clock.now();
        for counting in &mut self.counters {
            counting.model.pass(now);
            counting.model.arrive(now);
        }
    }

    /// As long as Redis is asked although it fails, what is written back may be lost.
    fn risk_pending(&mut self) {
        if self.fault.is_some() && self.failures < FAILURES_MAX {
            self.lose_pending();
        }
    }

    fn lose_pending(&mut self) {
        for counting in &mut self.counters {
            counting.model.lose_pending();
        }
    }

    /// Lets much time pass at once: what is due in it happens at its end, and what is on its way to
    /// Redis times out.
    async fn jump(&mut self, time: Duration) {
        self.lose_pending();
        jump(time).await;
    }
}

impl Counting {
    /// Its key in Redis.
    fn key(&self, now: Time) -> String {
        let key = self.check.key.to_string();
        match self.model.kind() {
            Kind::FixedWindow => {
                format!("{key}{}", self.check.limit.window(now).start.as_micros() / 1_000_000)
            }
            _ => key,
        }
    }

    fn asked(&self, hit: &Hit) -> Check {
        let holder = (self.model.kind() == Kind::Concurrency)
            .then(|| HOLDERS[hit.holder % HOLDERS.len()].as_bytes().into());
        let enforcing = !matches!(hit.hits, Hits::Refund(_));
        Check { hits: hit.hits, holder, enforcing, ..self.check.clone() }
    }
}

fn descriptor(rule: usize, hit: &Hit) -> Descriptor<'static> {
    let (key, options) = RULES[rule];
    let mut entries = SmallVec::from_iter([Entry::new(key, "")]);
    if options.is_empty() {
        entries.push(Entry::new("id", HOLDERS[hit.holder % HOLDERS.len()]));
    }
    Descriptor { entries, limit: None, hits: hit.hits, hits_addend: None }
}

/// Whether Redis reads what it was sent once the fault is over.
fn keeps_input(fault: Fault) -> bool {
    matches!(fault, Fault::Stopped | Fault::Unreachable)
}

/// Lets this much time pass, with everything that happens in it.
async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
    settle().await;
}

/// Lets much time pass at once: what is due in it happens at its end.
async fn jump(time: Duration) {
    tokio::time::advance(time).await;
    settle().await;
}

/// Lets all tasks do what they can do now: a paused clock moves on only when all of them wait.
async fn settle() {
    tokio::time::sleep(millis(1)).await;
}
