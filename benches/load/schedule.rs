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
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, Semaphore};

use crate::load::clock::now;

/// The parts of a run.
#[derive(Clone, Copy, PartialEq)]
pub enum Part {
    WarmUp,
    Measured,
}

/// A request that is due.
pub struct Turn {
    pub part: Part,
    pub due_at: Instant,
}

/// Gives out turns.
pub enum Turns {
    /// Whoever asks has a turn, until the run is over.
    Closed(Rc<Cell<Option<Part>>>),
    /// By the clock.
    Open(Schedule),
}

/// The turns of an open loop.
pub struct Schedule {
    pace: Pace,
    warmup_turns: u64,
    /// A permit per turn that is due and not taken.
    due: Semaphore,
    taken: Cell<u64>,
}

/// When which turn is due.
#[derive(Clone, Copy)]
struct Pace {
    origin: Instant,
    per_second: f64,
    turns: u64,
}

/// Turns closer together than this are announced together: at 9 000 per second a wake-up each,
/// beyond 20 000 not, as a wake-up costs about as much as a request.
const ANNOUNCE_INTERVAL_MIN: Duration = Duration::from_micros(50);

impl Turns {
    /// The next turn, once there is one; nothing when the run is over.
    pub async fn next(&self) -> Option<Turn> {
        match self {
            Self::Closed(part) => part.get().map(|part| Turn {
                part,
                due_at: now(),
            }),
            Self::Open(schedule) => schedule.next().await,
        }
    }

    /// Ends the run for those who wait for a turn, and says how many of the measured part nobody
    /// took.
    pub fn close(&self) -> u64 {
        match self {
            Self::Closed(_) => 0,
            Self::Open(schedule) => schedule.close(),
        }
    }
}

impl Schedule {
    pub fn new(origin: Instant, per_second: f64, warmup: Duration, duration: Duration) -> Self {
        let turns_in = |span: Duration| (span.as_secs_f64() * per_second).round() as u64;
        let warmup_turns = turns_in(warmup);
        let pace = Pace {
            origin,
            per_second,
            turns: warmup_turns + turns_in(duration),
        };
        Self {
            pace,
            warmup_turns,
            due: Semaphore::new(0),
            taken: Cell::new(0),
        }
    }

    async fn next(&self) -> Option<Turn> {
        self.due.acquire().await.ok()?.forget();
        let turn = self.taken.get();
        self.taken.set(turn + 1);
        if turn + 1 == self.pace.turns {
            self.due.close();
        }
        let part = if turn < self.warmup_turns {
            Part::WarmUp
        } else {
            Part::Measured
        };
        Some(Turn {
            part,
            due_at: self.pace.due_at(turn),
        })
    }

    /// Makes turns available as they fall due; ends after the last.
    ///
    /// A thread does the sleeping, because tokio's timers count in milliseconds, and a millisecond
    /// is what is to be measured.
    pub async fn announce(&self) {
        let tick = Arc::new(Notify::new());
        let (pace, ticking) = (self.pace, Arc::clone(&tick));
        let sleeper = thread::spawn(move || pace.tick(&ticking));
        let mut announced = 0;
        while announced < self.pace.turns {
            tick.notified().await;
            let due = self.pace.due_by(now());
            self.due.add_permits((due - announced) as usize);
            announced = due;
        }
        sleeper
            .join()
            .expect("the sleeper does not panic, and sleeps no longer than the schedule");
    }

    fn close(&self) -> u64 {
        self.due.close();
        self.pace.turns - self.taken.get().max(self.warmup_turns)
    }
}

impl Pace {
    fn due_at(self, turn: u64) -> Instant {
        self.origin + Duration::from_secs_f64(turn as f64 / self.per_second)
    }

    /// How many turns are due by then.
    fn due_by(self, time: Instant) -> u64 {
        let since = time.saturating_duration_since(self.origin).as_secs_f64();
        ((since * self.per_second) as u64 + 1).min(self.turns)
    }

    fn tick(self, tick: &Notify) {
        sleep_precisely();
        loop {
            let due = self.due_by(now());
            tick.notify_one();
            if due == self.turns {
                return;
            }
            thread::sleep(
                self.due_at(due)
                    .saturating_duration_since(now())
                    .max(ANNOUNCE_INTERVAL_MIN),
            );
        }
    }
}

/// Asks Linux to wake this thread when it said, not up to 50 µs later. Where that is refused turns
/// are that much later, and the report's "late ms" shows it.
fn sleep_precisely() {
    if let Ok(task) = fs::read_link("/proc/thread-self")
        && let Some(tid) = task.file_name()
    {
        _ = fs::write(format!("/proc/{}/timerslack_ns", tid.display()), "1");
    }
}
