//! Says when a request is due: as soon as the one before it is answered (closed loop), or by the
//! clock (open loop).
//!
//! ```text
//!   due        0     1     2     3     4        even spacing: 1 / rate, whatever the server does
//!   sent       0     1       . . . . . 2 3 4    places were taken: the server stalled
//!   answered     0     1              2  3 4
//!                              |------|         the latency of 2 counts from when it was due
//! ```
//!
//! A closed loop would have sent nothing during the stall and seen one slow request: "coordinated
//! omission" (G. Tene).

use std::cell::Cell;
use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use crate::load::args::Args;

/// The parts of a run.
#[derive(Clone, Copy, PartialEq)]
pub enum Part {
    WarmUp,
    Measured,
}

/// The times of a run, and in an open loop its requests.
pub struct Schedule {
    pub origin: Instant,
    pub measured_from: Instant,
    pub ends_at: Instant,
    open: Option<Open>,
}

/// The requests of an open loop.
struct Open {
    pace: Pace,
    /// A permit per request that is due and not taken.
    due: Arc<Semaphore>,
    taken: Cell<u64>,
}

#[derive(Clone, Copy)]
struct Pace {
    origin: Instant,
    per_second: f64,
    requests: u64,
}

/// Requests closer together than this are announced together: at 9 000 per second a wake-up each,
/// beyond 20 000 not, as a wake-up costs about as much as a request.
const ANNOUNCE_INTERVAL_MIN: Duration = Duration::from_micros(50);

/// Now, on the monotonic clock.
#[expect(
    clippy::disallowed_methods,
    reason = "the library's clock is for decisions; a stopwatch needs the real one"
)]
pub fn now() -> Instant {
    Instant::now()
}

impl Schedule {
    /// Begins now.
    pub fn begin(args: &Args) -> Self {
        let origin = now();
        let open = args.rate.map(|per_second| {
            let span = args.warmup + args.duration;
            let pace = Pace {
                origin,
                per_second,
                requests: (span.as_secs_f64() * per_second).ceil() as u64,
            };
            let due = Arc::new(Semaphore::new(0));
            let announced = due.clone();
            // A thread does the sleeping, because tokio's timers count in milliseconds. It ends
            // with the last request.
            thread::spawn(move || pace.announce(&announced));
            let taken = Cell::new(0);
            Open { pace, due, taken }
        });
        let measured_from = origin + args.warmup;
        Self { origin, measured_from, ends_at: measured_from + args.duration, open }
    }

    /// When the next request is due, once it is; nothing when the run is over.
    pub async fn next(&self) -> Option<Instant> {
        let Some(open) = &self.open else {
            return Some(now()).filter(|now| *now < self.ends_at);
        };
        open.due.acquire().await.ok()?.forget();
        let number = open.taken.get();
        open.taken.set(number + 1);
        if number + 1 == open.pace.requests {
            open.due.close();
        }
        Some(open.pace.due_at(number))
    }

    /// The part that a time belongs to; nothing after the end.
    pub fn part(&self, time: Instant) -> Option<Part> {
        if time < self.measured_from {
            Some(Part::WarmUp)
        } else {
            (time < self.ends_at).then_some(Part::Measured)
        }
    }

    /// How many requests of the measured part were not taken.
    pub fn untaken(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| {
            let untaken = open.taken.get()..open.pace.requests;
            let is_measured = |number: &u64| open.pace.due_at(*number) >= self.measured_from;
            untaken.filter(is_measured).count() as u64
        })
    }
}

impl Pace {
    fn due_at(self, number: u64) -> Instant {
        self.origin + Duration::from_secs_f64(number as f64 / self.per_second)
    }

    fn announce(self, due: &Semaphore) {
        sleep_precisely();
        let mut announced = 0;
        while announced < self.requests {
            let since = now().saturating_duration_since(self.origin).as_secs_f64();
            let due_by_now = ((since * self.per_second) as u64 + 1).min(self.requests);
            due.add_permits((due_by_now - announced) as usize);
            announced = due_by_now;
            let next = self.due_at(announced).saturating_duration_since(now());
            thread::sleep(next.max(ANNOUNCE_INTERVAL_MIN));
        }
    }
}

/// Asks Linux to wake this thread when it said, not up to 50 µs later. Where that is denied,
/// requests are that much later, and the report's "late ms" shows it.
fn sleep_precisely() {
    if let Ok(task) = fs::read_link("/proc/thread-self")
        && let Some(tid) = task.file_name()
    {
        _ = fs::write(format!("/proc/{}/timerslack_ns", tid.display()), "1");
    }
}
