//! Runs the load: connects, warms up, measures, waits for the last answers.
//!
//! A worker per place in flight, each asking one question at a time, all in one thread. A worker is
//! a task that lives as long as the run, so that a request costs no task, no channel and no timer
//! of its own.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use h2::Reason;
use http::Request;
use tokio::task::JoinSet;
use tokio::time;

use crate::load::args::Args;
use crate::load::link::{Connections, Link, Sender};
use crate::load::process::Process;
use crate::load::request::{Requests, head, read_answer};
use crate::load::schedule::{Part, Schedule, now};
use crate::load::tally::{Fate, LimitCheck, Tally, Timeline, Times};

/// What a run came to.
pub struct Outcome {
    /// Requests due in the warm-up, and in the measured part.
    pub warmup: Tally,
    pub measured: Tally,
    /// Answers that came within the measured part, whenever they were asked for: what throughput
    /// and CPU time per request are reckoned by.
    pub answered: u64,
    pub connections: Rc<Connections>,
    /// Each process with the CPU time of the measured part; nothing if it ended before.
    pub processes: Vec<(u32, Option<Process>)>,
    /// CPU time of the generator itself.
    pub own_cpu_us: u64,
    pub origin: Instant,
    pub timeline: Option<Timeline>,
    pub limit_check: Option<[usize; 3]>,
}

/// What all workers share.
struct Run {
    head: Request<()>,
    requests: RefCell<Requests>,
    schedule: Schedule,
    timeout: Duration,
    descriptors: u32,
    tallies: RefCell<[Tally; 2]>,
    answered: Cell<u64>,
    timeline: Option<RefCell<Timeline>>,
    limit_check: Option<RefCell<LimitCheck>>,
}

/// gRPC (proposal A6) lets a client repeat what a server says it has not looked at; once, since the
/// server did see it.
const ATTEMPTS_MAX: u64 = 2;
/// What workers may take beyond the timeout to notice that the run is over.
const GRACE: Duration = Duration::from_millis(200);

impl Outcome {
    pub fn is_clean(&self) -> bool {
        self.measured.is_clean()
            && self.limit_check.is_none_or(|[_, over, under]| over + under == 0)
    }
}

/// Runs the load by its options.
pub async fn run(args: &Args) -> anyhow::Result<Outcome> {
    let connections = Rc::new(Connections::default());
    let mut keepers = JoinSet::new();
    let mut links = Vec::new();
    for _ in 0..args.connections {
        let link = Link::new(&args.target, &connections);
        let opened = link.open().await?;
        keepers.spawn_local(Rc::clone(&link).keep(opened));
        links.push(link);
    }
    // So that their handshakes do not fall into the first request's latency.
    for link in &links {
        link.sender().await;
    }

    let run = Rc::new(Run::begin(args)?);
    let mut workers = JoinSet::new();
    for (_, link) in (0..args.in_flight()).zip(links.iter().cycle()) {
        workers.spawn_local(Rc::clone(&run).work(Rc::clone(link)));
    }
    let pids: Vec<String> = args.pids.iter().map(ToString::to_string).collect();
    time::sleep_until(run.schedule.measured_from.into()).await;
    let own_before = Process::read("self")?.cpu_us;
    let before: Vec<Process> =
        pids.iter().map(|pid| Process::read(pid)).collect::<Result<_, _>>()?;
    time::sleep_until(run.schedule.ends_at.into()).await;
    let own_cpu_us = Process::read("self")?.cpu_us - own_before;
    let cost = |(pid, before): (&String, Process)| {
        let mut process = Process::read(pid).ok()?;
        process.cpu_us -= before.cpu_us;
        Some(process)
    };
    let costs = pids.iter().zip(before).map(cost);
    let processes = args.pids.iter().copied().zip(costs).collect();

    // Twice the timeout: in an open loop the last request may wait that long for a place and as
    // long again for its answer.
    let ended = time::timeout(args.timeout * 2 + GRACE, async {
        while workers.join_next().await.is_some() {}
    })
    .await;
    if ended.is_err() {
        // They wait for a connection, without a request: those that have one give it up in time.
        workers.shutdown().await;
    }
    keepers.shutdown().await;
    drop(links);

    let run = Rc::into_inner(run).context("end all workers")?;
    let [warmup, mut measured] = run.tallies.into_inner();
    measured.unsent += run.schedule.untaken();
    for tally in [&warmup, &measured] {
        let sent = tally.sent;
        let accounted = tally.accounted();
        ensure!(sent == accounted, "lost track: {sent} requests sent, {accounted} accounted for");
    }
    Ok(Outcome {
        warmup,
        measured,
        answered: run.answered.get(),
        connections,
        processes,
        own_cpu_us,
        origin: run.schedule.origin,
        timeline: run.timeline.map(RefCell::into_inner),
        limit_check: run.limit_check.map(|check| check.borrow().verdict()),
    })
}

impl Run {
    fn begin(args: &Args) -> anyhow::Result<Self> {
        let head = head(args)?;
        let requests = RefCell::new(Requests::new(args));
        let schedule = Schedule::begin(args);
        let timeline = args.timeline.then(|| Timeline::new(schedule.origin));
        let limit_check =
            args.check_limit.map(|limit| LimitCheck::new(limit, args.hits.unwrap_or(1).into()));
        Ok(Self {
            head,
            requests,
            schedule,
            timeout: args.timeout,
            descriptors: args.descriptors,
            tallies: RefCell::new([(); 2].map(|()| Tally::new(args.deadline))),
            answered: Cell::new(0),
            timeline: timeline.map(RefCell::new),
            limit_check: limit_check.map(RefCell::new),
        })
    }

    /// Makes requests, one at a time, until the run is over.
    async fn work(self: Rc<Self>, link: Rc<Link>) {
        let mut sender = link.sender().await;
        // One timer for all of this worker's requests: moving it further away, as each request
        // does, touches no timer wheel.
        let mut patience = pin!(time::sleep(Duration::ZERO));
        while let Some(due_at) = self.schedule.next().await {
            let part = self.schedule.part(due_at).unwrap_or(Part::Measured) as usize;
            let sent_at = now().max(due_at);
            let (value, body) = self.requests.borrow_mut().next();
            let attempts = Cell::new(0);
            patience.as_mut().reset((sent_at + self.timeout).into());
            let fate = if sent_at - due_at > self.timeout {
                Fate::Unsent
            } else {
                tokio::select! {
                    biased;
                    fate = self.ask(part, &link, &mut sender, &body, &attempts) => fate,
                    () = patience.as_mut() => match attempts.get() {
                        0 => Fate::Unsent,
                        _ => Fate::Unanswered("timeout".to_owned()),
                    },
                }
            };
            let ended_at = now();
            let times = Times { due: due_at, sent: sent_at, ended: ended_at };
            if let Some(check) = &self.limit_check {
                check.borrow_mut().record(value, &fate);
            }
            if let Some(timeline) = &self.timeline {
                timeline.borrow_mut().record(&fate, times);
            }
            if !matches!(fate, Fate::Unanswered(_) | Fate::Unsent)
                && self.schedule.part(ended_at) == Some(Part::Measured)
            {
                self.answered.set(self.answered.get() + 1);
            }
            {
                let tally = &mut self.tallies.borrow_mut()[part];
                tally.resent += attempts.get().saturating_sub(1);
                tally.record(fate, times);
            }
            // Before the next request, so that a place without a connection takes none away from
            // the others.
            if !link.is_current(&sender) {
                sender = link.sender().await;
            }
        }
    }

    /// Sends the request until it has been looked at.
    async fn ask(
        &self,
        part: usize,
        link: &Link,
        sender: &mut Sender,
        body: &Bytes,
        attempts: &Cell<u64>,
    ) -> Fate {
        loop {
            if poll_fn(|context| sender.requests.poll_ready(context)).await.is_err() {
                link.end(sender.generation);
                *sender = link.sender().await;
                continue;
            }
            if attempts.get() == 0 {
                self.tallies.borrow_mut()[part].sent += 1;
            }
            attempts.set(attempts.get() + 1);
            match self.attempt(sender, body.clone()).await {
                Ok(fate) => return fate,
                Err(error) if is_unprocessed(&error) && attempts.get() < ATTEMPTS_MAX => {}
                Err(error) => return Fate::Unanswered(why(&error)),
            }
        }
    }

    /// Sends the request once and reads the answer.
    async fn attempt(&self, sender: &mut Sender, body: Bytes) -> Result<Fate, h2::Error> {
        let (response, mut stream) = sender.requests.send_request(self.head.clone(), false)?;
        stream.send_data(body, true)?;
        read_answer(response.await?, self.descriptors).await
    }
}

/// Whether the server promises that it did not process the request. A GOAWAY without an error ends
/// only the streams that the server did not begin.
fn is_unprocessed(error: &h2::Error) -> bool {
    match error.reason() {
        Some(Reason::NO_ERROR) => error.is_go_away(),
        reason => reason == Some(Reason::REFUSED_STREAM),
    }
}

/// Why an attempt has no answer.
fn why(error: &h2::Error) -> String {
    match error.reason() {
        _ if is_unprocessed(error) => "refused unprocessed".to_owned(),
        Some(reason) if error.is_reset() => format!("stream reset: {reason:?}"),
        Some(reason) if error.is_go_away() => format!("connection ended by GOAWAY: {reason:?}"),
        _ => "connection lost".to_owned(),
    }
}
