//! Runs the load: connects, warms up, measures, waits for the last answers.
//!
//! A worker per place in flight, each asking one question at a time, all in one thread. A worker is
//! a task that lives as long as the run, so that a request costs no task, no channel and no timer
//! of its own.

use std::cell::{Cell, RefCell, RefMut};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::{Bytes, BytesMut};
use h2::{Reason, RecvStream};
use http::HeaderMap;
use tokio::task::JoinSet;
use tokio::time;

use crate::load::answer::{self, Answer};
use crate::load::args::{Args, Pick};
use crate::load::clock::now;
use crate::load::limit_check::{LimitCheck, Told, Verdict};
use crate::load::link::{Connections, Link, Sender};
use crate::load::process::{self, CpuTime, Memory};
use crate::load::request::{Bodies, Body, Head};
use crate::load::schedule::{Part, Schedule, Turn, Turns};
use crate::load::tally::{Fate, Loss, Tally, Timeline};

/// What a run came to.
pub struct Outcome {
    /// Requests due in the warm-up, and in the measured part.
    pub warmup: Tally,
    pub measured: Tally,
    /// Length of the measured part.
    pub span: Duration,
    /// Answers that came within it, whenever they were asked for: what throughput and CPU time per
    /// request are reckoned by.
    pub answered: u64,
    pub connections: Rc<Connections>,
    pub processes: Vec<ProcessCost>,
    /// CPU time of the generator itself.
    pub own_cpu_us: u64,
    /// When the first turn was due.
    pub origin: Instant,
    pub timeline: Option<Timeline>,
    pub limit_check: Option<Verdict>,
}

/// What a process cost during the measured part.
pub struct ProcessCost {
    pub pid: u32,
    pub name: String,
    /// Nothing if the process ended before the measured part did.
    pub cpu_us: Option<u64>,
    pub memory: Option<Memory>,
}

/// What all workers share.
struct Run {
    head: Head,
    bodies: RefCell<Bodies>,
    turns: Turns,
    /// Nothing before the run and after it.
    part: Rc<Cell<Option<Part>>>,
    timeout: Duration,
    descriptors: usize,
    warmup: RefCell<Tally>,
    measured: RefCell<Tally>,
    answered: Cell<u64>,
    timeline: Option<RefCell<Timeline>>,
    limit_check: Option<RefCell<LimitCheck>>,
}

/// How often a request went out.
#[derive(Default)]
struct Attempts {
    made: u64,
}

/// gRPC (proposal A6) lets a client repeat what a server says it has not looked at; once, since the
/// server did see it.
const RESENDS_MAX: u64 = 1;
/// What workers may take beyond the timeout to notice that the run is over.
const GRACE: Duration = Duration::from_millis(200);

impl Outcome {
    pub fn is_clean(&self) -> bool {
        let counted_right = self
            .limit_check
            .as_ref()
            .is_none_or(|check| check.over_granted + check.under_granted == 0);
        self.measured.is_clean() && counted_right
    }
}

/// Runs the load as told.
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

    let origin = now();
    let run = Rc::new(Run::new(args, origin)?);
    let mut workers = JoinSet::new();
    for place in 0..args.in_flight() {
        workers.spawn_local(Rc::clone(&run).work(Rc::clone(&links[place % links.len()])));
    }
    if matches!(run.turns, Turns::Open(_)) {
        let run = Rc::clone(&run);
        workers.spawn_local(async move { run.announce().await });
    }

    let measure_from = origin + args.warmup;
    time::sleep_until(measure_from.into()).await;
    run.part.set(Some(Part::Measured));
    let began = now();
    let cpu_before = cpu_times(&args.pids)?;
    let own_before = CpuTime::of("self").context("read the CPU time of this process")?;
    time::sleep_until((measure_from + args.duration).into()).await;
    run.part.set(None);
    let span = now() - began;
    let own_cpu_us = CpuTime::of("self")
        .context("read the CPU time of this process")?
        .since_us(own_before);
    let processes = args
        .pids
        .iter()
        .zip(cpu_before)
        .map(|(&pid, before)| ProcessCost::since(pid, &before))
        .collect();

    // Twice the timeout: in an open loop the last turn may wait that long for a place and as long
    // again for its answer.
    let ended = time::timeout(args.timeout * 2 + GRACE, async {
        while workers.join_next().await.is_some() {}
    })
    .await;
    let untaken = run.turns.close();
    if ended.is_err() {
        // They wait for a connection, without a turn: those that have one give it up in time.
        workers.shutdown().await;
    }
    keepers.shutdown().await;
    drop(links);

    let run = Rc::into_inner(run).context("end all workers")?;
    let (warmup, mut measured) = (run.warmup.into_inner(), run.measured.into_inner());
    measured.unsent += untaken;
    for tally in [&warmup, &measured] {
        ensure!(
            tally.sent == tally.accounted(),
            "lost track: {} requests sent, {} accounted for",
            tally.sent,
            tally.accounted()
        );
    }
    Ok(Outcome {
        warmup,
        measured,
        span,
        answered: run.answered.get(),
        connections,
        processes,
        own_cpu_us,
        origin,
        timeline: run.timeline.map(RefCell::into_inner),
        limit_check: run.limit_check.map(|check| check.into_inner().verdict()),
    })
}

impl Run {
    fn new(args: &Args, origin: Instant) -> anyhow::Result<Self> {
        let part = Rc::new(Cell::new(Some(if args.warmup.is_zero() {
            Part::Measured
        } else {
            Part::WarmUp
        })));
        let turns = match args.rate {
            None => Turns::Closed(Rc::clone(&part)),
            Some(rate) => Turns::Open(Schedule::new(origin, rate, args.warmup, args.duration)),
        };
        let values = if args.pick == Pick::One { 1 } else { args.keys };
        let limit_check = args
            .check_limit
            .map(|limit| LimitCheck::new(limit, args.hits.unwrap_or(1).into(), values));
        Ok(Self {
            head: Head::new(args)?,
            bodies: RefCell::new(Bodies::new(args)?),
            turns,
            part,
            timeout: args.timeout,
            descriptors: args.descriptors,
            warmup: RefCell::new(Tally::new(args.deadline)),
            measured: RefCell::new(Tally::new(args.deadline)),
            answered: Cell::new(0),
            timeline: args.timeline.then(|| RefCell::new(Timeline::new(origin))),
            limit_check: limit_check.map(RefCell::new),
        })
    }

    async fn announce(&self) {
        if let Turns::Open(schedule) = &self.turns {
            schedule.announce().await;
        }
    }

    /// Takes turns, one at a time, until the run is over.
    async fn work(self: Rc<Self>, link: Rc<Link>) {
        let mut sender = link.sender().await;
        // One timer for all of this worker's requests: moving it further away, as each request
        // does, touches no timer wheel.
        let mut patience = pin!(time::sleep(Duration::ZERO));
        while let Some(turn) = self.turns.next().await {
            let started = now();
            let late = started.saturating_duration_since(turn.due_at);
            if late > self.timeout {
                self.tally(turn.part)
                    .record(Fate::Unsent, turn.due_at, started, started);
                continue;
            }
            let body = self.bodies.borrow_mut().next();
            let mut attempts = Attempts::default();
            patience.as_mut().reset((started + self.timeout).into());
            let fate = tokio::select! {
                biased;
                fate = self.ask(turn.part, &link, &mut sender, &body, &mut attempts) => fate,
                () = patience.as_mut() => if attempts.made > 0 { Fate::Unanswered(Loss::Timeout) } else { Fate::Unsent },
            };
            self.settle(&turn, &body, fate, started, &attempts);
            // Before the next turn, so that a place without a connection takes none away from the
            // others.
            if !link.is_current(&sender) {
                sender = link.sender().await;
            }
        }
    }

    /// Sends the request until it has been looked at.
    async fn ask(
        &self,
        part: Part,
        link: &Link,
        sender: &mut Sender,
        body: &Body,
        attempts: &mut Attempts,
    ) -> Fate {
        loop {
            if poll_fn(|context| sender.requests.poll_ready(context))
                .await
                .is_err()
            {
                link.end(sender.generation);
                *sender = link.sender().await;
                continue;
            }
            if attempts.made == 0 {
                self.tally(part).sent += 1;
            }
            attempts.made += 1;
            match self.attempt(sender, body.bytes.clone()).await {
                Ok(answer) => return Fate::Answered(answer),
                Err(error) => match loss(&error) {
                    Loss::Refused if attempts.made <= RESENDS_MAX => {}
                    loss => return Fate::Unanswered(loss),
                },
            }
        }
    }

    /// Sends the request once and reads the answer.
    async fn attempt(&self, sender: &mut Sender, body: Bytes) -> Result<Answer, h2::Error> {
        let (response, mut stream) = sender.requests.send_request(self.head.request(), false)?;
        stream.send_data(body, true)?;
        let (head, mut body) = response.await?.into_parts();
        if let Some(failure) = failure(&head.headers) {
            return Ok(failure);
        }
        if head.status != http::StatusCode::OK {
            return Ok(Answer::Http(head.status.as_u16()));
        }
        let message = read_to_end(&mut body).await?;
        Ok(match body.trailers().await? {
            None => Answer::Malformed("no trailers"),
            Some(trailers) if !trailers.contains_key(GRPC_STATUS) => {
                Answer::Malformed("no grpc-status")
            }
            Some(trailers) => {
                failure(&trailers).unwrap_or_else(|| answer::read(&message, self.descriptors))
            }
        })
    }

    fn settle(&self, turn: &Turn, body: &Body, fate: Fate, sent_at: Instant, attempts: &Attempts) {
        let answered_at = now();
        if let Some(check) = &self.limit_check {
            let told = match &fate {
                Fate::Answered(Answer::Ok) => Some(Told::Ok),
                Fate::Answered(Answer::OverLimit) => Some(Told::Refused),
                Fate::Answered(_) | Fate::Unanswered(_) => Some(Told::Unknown),
                Fate::Unsent => None,
            };
            if let Some(told) = told {
                check.borrow_mut().record(body.value, &told);
            }
        }
        if let Some(timeline) = &self.timeline {
            timeline
                .borrow_mut()
                .record(&fate, turn.due_at, sent_at, answered_at);
        }
        if matches!(fate, Fate::Answered(_)) && self.part.get() == Some(Part::Measured) {
            self.answered.set(self.answered.get() + 1);
        }
        let mut tally = self.tally(turn.part);
        tally.resent += attempts.made.saturating_sub(1);
        tally.record(fate, turn.due_at, sent_at, answered_at);
    }

    fn tally(&self, part: Part) -> RefMut<'_, Tally> {
        match part {
            Part::WarmUp => self.warmup.borrow_mut(),
            Part::Measured => self.measured.borrow_mut(),
        }
    }
}

impl ProcessCost {
    fn since(pid: u32, before: &Before) -> Self {
        let process = pid.to_string();
        Self {
            pid,
            name: before.name.clone(),
            cpu_us: CpuTime::of(&process).map(|after| after.since_us(before.cpu)),
            memory: Memory::of(&process),
        }
    }
}

/// A process at the beginning of the measured part.
struct Before {
    name: String,
    cpu: CpuTime,
}

fn cpu_times(pids: &[u32]) -> anyhow::Result<Vec<Before>> {
    let before = |pid: &u32| {
        let process = pid.to_string();
        Some(Before {
            name: process::name(&process)?,
            cpu: CpuTime::of(&process)?,
        })
    };
    pids.iter()
        .map(|pid| before(pid).with_context(|| format!("read the CPU time of process {pid}")))
        .collect()
}

const GRPC_STATUS: &str = "grpc-status";

/// The gRPC status, if there is one and it is not OK.
fn failure(headers: &HeaderMap) -> Option<Answer> {
    let status = headers.get(GRPC_STATUS)?;
    match status.to_str().ok().and_then(|status| status.parse().ok()) {
        Some(0) => None,
        Some(code) => Some(Answer::Grpc(code)),
        None => Some(Answer::Malformed("grpc-status is no number")),
    }
}

/// The whole body; of the usual one, which comes in one piece, no byte is copied.
async fn read_to_end(body: &mut RecvStream) -> Result<Bytes, h2::Error> {
    let Some(first) = body.data().await.transpose()? else {
        return Ok(Bytes::new());
    };
    // h2 gives the bytes back to the connection's window when the stream is dropped, and no answer
    // fills a stream's own window.
    let mut whole = None;
    while let Some(more) = body.data().await {
        whole
            .get_or_insert_with(|| BytesMut::from(&first[..]))
            .extend_from_slice(&more?);
    }
    Ok(whole.map_or(first, BytesMut::freeze))
}

/// Why an attempt has no answer.
fn loss(error: &h2::Error) -> Loss {
    match error.reason() {
        // A GOAWAY without an error ends only the streams that the server did not begin.
        Some(Reason::NO_ERROR) if error.is_go_away() => Loss::Refused,
        Some(Reason::REFUSED_STREAM) => Loss::Refused,
        Some(reason) if error.is_reset() => Loss::Reset(reason.into()),
        Some(reason) if error.is_go_away() => Loss::GoAway(reason.into()),
        _ => Loss::Disconnected,
    }
}
