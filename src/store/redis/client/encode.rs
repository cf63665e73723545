//! Encodes a check as Redis gets it: as commands, or as a key and an argument of the script.
//!
//! Most checks are hits on a fixed window that count whether they are admitted or not. INCRBY does that, so
//! such a check is a command if its key is known to exist. `driver.lua` has the other side.

use redis::{Cmd, Pipeline};
use smallvec::SmallVec;

use crate::algorithm::charge::Charge;
use crate::algorithm::counter::Kind;
use crate::algorithm::sub_windows;
use crate::check::{Check, Key};
use crate::limit::{Limit, Months};
use crate::store::redis::client::lifetimes::Repair;
use crate::time::{MICROS_PER_SECOND, Span, Time};

/// Bytes of a command beside its key: names, and a number of at most 20 digits.
const NUMBERS_BYTES: usize = 32;

/// How the checks of a request are decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Each on its own.
    Independent,
    /// All or nothing.
    Atomic,
    /// Each on its own, without changing its counter.
    DryRun,
}

/// How a check of a cluster is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// In one call with others of its slot.
    Normal,
    /// In its own call: the slot is migrating and its keys are split between nodes.
    Isolated,
    /// In its own call and after ASKING, to the node that the slot migrates to.
    Asking,
}

/// How a hit on a fixed window is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowCommand {
    /// In the script, with others.
    Script,
    /// INCRBY: its key is known to exist.
    Incr,
    /// SET NX with the lifetime, and INCRBY: its key may not exist. This costs more than a share of a
    /// script call and less than a call of its own.
    SetNxIncr,
}

/// One check as Redis gets it.
#[derive(Debug, Clone)]
pub struct EncodedCheck {
    pub(crate) key: Key,
    /// For the script, unless it is a [`Window`].
    pub(crate) argument: SmallVec<[u8; 48]>,
    pub(crate) window: Option<Window>,
    pub(crate) route: Route,
    /// The time that chose the window in the key.
    pub(crate) at: Time,
    /// The counter's hash in the caches of this process.
    pub(crate) hash: u64,
    /// What one hit costs, in the counter's units.
    pub(crate) price: u64,
    /// Whether it changes its counter if it is not over limit.
    has_cost: bool,
}

/// Hits on a fixed window that count even over limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) hits: u64,
    pub(crate) lifetime_secs: u64,
    command: WindowCommand,
}

impl Route {
    pub(crate) fn is_isolated(self) -> bool {
        self != Self::Normal
    }
}

impl EncodedCheck {
    /// Encodes a check for a server whose time is `at`. The counter has this `hash` in the caches of
    /// this process; keys of windows outlive them by `jitter`.
    pub fn new(
        check: &Check,
        charge: Charge,
        hash: u64,
        at: Time,
        mode: Mode,
        jitter: Span,
    ) -> Self {
        let limit = &check.limit;
        let mut encoded = Self {
            key: check.key.clone(),
            argument: SmallVec::new(),
            window: None,
            route: Route::Normal,
            at,
            hash,
            price: 1,
            has_cost: charge.cost != 0,
        };
        let (lifetime, rate) = match Kind::of(limit) {
            Kind::FixedWindow => {
                let lifetime_secs = encoded.append_window(limit, jitter);
                if mode == Mode::Independent && !charge.drops && charge.cost > 0 {
                    encoded.window = Some(Window {
                        hits: charge.cost.unsigned_abs(),
                        lifetime_secs,
                        command: WindowCommand::Script,
                    });
                    return encoded;
                }
                (lifetime_secs, 0)
            }
            Kind::Bucket => {
                encoded.price = limit.period_ticks();
                (limit.tick.span().as_micros(), limit.requests.into())
            }
            Kind::SlidingWindow => (limit.period_ticks(), limit.tick.span().as_micros()),
            Kind::SubWindows => (sub_windows::width(limit).as_micros(), limit.buckets.into()),
            Kind::SlidingLog | Kind::Concurrency => (limit.period.as_micros(), 0),
        };
        encoded.write_argument(check, charge, lifetime, rate);
        encoded
    }

    /// Appends the start of the window to the key, as envoyproxy/ratelimit does. Returns the key's
    /// lifetime in seconds: a whole period, but only the rest of a calendar month.
    fn append_window(&mut self, limit: &Limit, jitter: Span) -> u64 {
        let window = limit.window(self.at);
        let start = window.start.as_micros() / MICROS_PER_SECOND;
        self.key.push(itoa::Buffer::new().format(start).as_bytes());
        let lifetime = match limit.months {
            Months::ThirtyDays => limit.period,
            Months::Calendar => window.end.since(self.at),
        };
        lifetime.ceil_secs() + jitter.ceil_secs()
    }

    /// Writes FORMAT of `driver.lua`, then the holder.
    fn write_argument(&mut self, check: &Check, charge: Charge, lifetime: u64, rate: u64) {
        let code = Kind::of(&check.limit) as u8 + 1;
        let Charge {
            cost,
            drops,
            full,
            deepest,
        } = charge;
        self.argument
            .extend_from_slice(&[code, drops.into(), check.enforcing.into()]);
        let rest = [full, deepest, lifetime, rate].map(u64::cast_signed);
        for number in std::iter::once(cost).chain(rest) {
            self.argument
                .extend_from_slice(&double(number).to_le_bytes());
        }
        self.argument.extend_from_slice(check.call().holder);
    }

    /// Bytes on the heap, at most.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.key.len() + self.argument.len()
    }

    /// Chooses how a hit on a fixed window is sent. No effect on other checks.
    pub fn set_command(&mut self, command: WindowCommand) {
        if let Some(window) = &mut self.window {
            window.command = command;
        }
    }

    /// Whether it is sent as commands, without the script.
    pub fn is_direct(&self) -> bool {
        self.window
            .is_some_and(|window| window.command != WindowCommand::Script)
    }

    /// Adds its commands. The last reply is that of INCRBY.
    pub fn increment(&self, commands: &mut Pipeline) {
        let Some(window) = self.window else { return };
        let key = self.key.as_bytes();
        let mut add = |command: Cmd| {
            self.add_asking(commands);
            commands.add_command(command);
        };
        if window.command == WindowCommand::SetNxIncr {
            let mut set = Cmd::with_capacity(6, key.len() + NUMBERS_BYTES);
            set.arg("SET").arg(key).arg(0);
            set.arg("EX").arg(window.lifetime_secs).arg("NX");
            add(set);
        }
        let mut incr = Cmd::with_capacity(3, key.len() + NUMBERS_BYTES);
        incr.arg("INCRBY").arg(key).arg(window.hits);
        add(incr);
    }

    /// Adds ASKING, which each command needs on a node that a slot migrates to.
    pub(crate) fn add_asking(&self, commands: &mut Pipeline) {
        if self.route == Route::Asking {
            commands.cmd("ASKING");
        }
    }

    /// The index of the reply to SET, if the one to INCRBY is at `reply`.
    pub(crate) fn reply_to_set(&self, reply: usize) -> Option<usize> {
        let window = self.window?;
        (window.command == WindowCommand::SetNxIncr)
            .then(|| reply - 1 - usize::from(self.route == Route::Asking))
    }

    /// Sets the lifetime of its key, if it is sent as commands.
    pub(crate) fn lifetime(&self) -> Option<Repair> {
        let window = self.window.filter(|_| self.is_direct())?;
        Some(Repair::Expire {
            key: self.key.clone(),
            lifetime_secs: window.lifetime_secs,
        })
    }

    /// Whether a check that was, or was not, over limit has changed its counter.
    pub(crate) fn is_written(&self, over: bool) -> bool {
        self.window.is_some() || (self.has_cost && !over)
    }
}

/// Exact: a limit's numbers are whole and below 2^53.
#[expect(
    clippy::cast_precision_loss,
    reason = "numbers below 2^53 are exact doubles"
)]
fn double(number: i64) -> f64 {
    number as f64
}
