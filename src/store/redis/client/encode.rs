//! Encodes a check as Redis gets it: as commands, or as a key and an argument of the script.
//!
//! Most checks are hits on a fixed window that count whether they are admitted or not. INCR does
//! that, in a fifth of the script's time. `driver.lua` has the other side.

use redis::Pipeline;
use smallvec::SmallVec;

use crate::algorithm::charge::Charge;
use crate::algorithm::counter::Kind;
use crate::base::time::{MICROS_PER_SECOND, Span, Time};
use crate::check::{Check, Key};
use crate::limit::{EXACT_MAX, Limit, Months};
use crate::store::redis::client::repair::{KeyState, Repair, key_cmd};
use crate::store::redis::topology::lifetimes::Lifetime;

/// How the checks of a request are decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Each on its own.
    Independent,
    /// All or nothing.
    Atomic,
    /// Each on its own, without changing its counter.
    DryRun,
    /// Each on its own, after its counter was deleted.
    Reset,
    /// Each on its own. A refund also gives back what is spent over the limit.
    Grant,
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

/// The cost of a check in the script, in commands.
const SCRIPT_SIZE: usize = 4;

/// A check in the form in which it is sent to Redis.
#[derive(Debug, Clone)]
pub struct EncodedCheck {
    pub(crate) key: Key,
    /// For the script; empty if it is sent as commands.
    pub(crate) argument: SmallVec<[u8; 48]>,
    pub(crate) window: Option<Window>,
    pub(crate) route: Route,
    /// The time that chose the window in the key.
    pub(crate) at: Time,
    /// The counter's hash in the caches of this process.
    pub(crate) hash: u64,
    /// The price of a hit, in the counter's units.
    pub(crate) price: u64,
    /// Whether the check changes its counter if it is not over limit.
    has_cost: bool,
}

/// Hits on a fixed window that count even over limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) start: Time,
    pub(crate) hits: u64,
    pub(crate) lifetime_secs: u64,
    /// EXPIRE is sent with INCR, since the key may be new.
    pub(crate) expires_at_once: bool,
}

impl Route {
    pub(crate) fn is_isolated(self) -> bool {
        self != Self::Normal
    }
}

impl EncodedCheck {
    /// Encodes a check for a server whose time is `at`. The counter has this `hash` in the caches
    /// of this process; keys of windows outlive them by `jitter`.
    pub fn new(
        check: &Check,
        charge: Charge,
        hash: u64,
        at: Time,
        mode: Mode,
        jitter: Span,
    ) -> Self {
        let limit = &check.limit;
        let charge = match mode {
            Mode::Grant if Kind::of(limit) != Kind::Concurrency => charge.granting(),
            _ => charge,
        };
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
                let (start, lifetime_secs) = encoded.append_window(limit, jitter);
                if mode == Mode::Independent && !charge.drops && charge.cost > 0 {
                    encoded.window = Some(Window {
                        start,
                        hits: charge.cost.unsigned_abs(),
                        lifetime_secs,
                        expires_at_once: false,
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
            Kind::SubWindows => (limit.sub_window().as_micros(), limit.buckets.into()),
            Kind::SlidingLog | Kind::Concurrency => (limit.period.as_micros(), 0),
        };
        let kind = Kind::of(limit);
        encoded.write_argument(kind, check.enforcing, charge, lifetime, rate);
        encoded.argument.extend_from_slice(check.call().holder);
        encoded
    }

    /// Appends the start of the window to the key, as envoyproxy/ratelimit does. Returns it, and
    /// the key's lifetime in seconds: a whole period, but only the rest of a calendar month.
    fn append_window(&mut self, limit: &Limit, jitter: Span) -> (Time, u64) {
        let window = limit.window(self.at);
        let start = window.start.as_micros() / MICROS_PER_SECOND;
        self.key.push(itoa::Buffer::new().format(start).as_bytes());
        let lifetime = match limit.months {
            Months::ThirtyDays => limit.period,
            Months::Calendar => window.end.since(self.at),
        };
        (window.start, lifetime.ceil_secs() + jitter.ceil_secs())
    }

    /// Writes FORMAT of `driver.lua`.
    fn write_argument(
        &mut self,
        kind: Kind,
        enforcing: bool,
        charge: Charge,
        lifetime: u64,
        rate: u64,
    ) {
        let code = kind as u8 + 1;
        let Charge {
            cost,
            drops,
            full,
            deepest,
        } = charge;
        self.argument
            .extend_from_slice(&[code, drops.into(), enforcing.into()]);
        let rest = [full, deepest, lifetime, rate].map(u64::cast_signed);
        for number in std::iter::once(cost).chain(rest) {
            self.argument
                .extend_from_slice(&double(number).to_le_bytes());
        }
    }

    /// The size of the check in a batch, in commands.
    pub(crate) fn size(&self) -> usize {
        if self.is_direct() { 1 } else { SCRIPT_SIZE }
    }

    /// Bytes on the heap, at most.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.key.len() + self.argument.len()
    }

    /// Sends a hit on a fixed window by the script. No effect on other checks.
    pub fn use_script(&mut self) {
        if let Some(window) = self.window.filter(|_| self.is_direct()) {
            // Hits that count are charged whether over limit or not. `decode.rs` compares with the
            // limit.
            let charge = Charge {
                cost: window.hits.cast_signed(),
                drops: false,
                full: EXACT_MAX,
                deepest: EXACT_MAX - 1,
            };
            self.write_argument(Kind::FixedWindow, false, charge, window.lifetime_secs, 0);
        }
    }

    /// Whether the check is sent as commands, without the script.
    pub fn is_direct(&self) -> bool {
        self.window.is_some() && self.argument.is_empty()
    }

    /// Whether INCR counts both on one key of one node.
    pub(crate) fn is_same_key(&self, other: &Self) -> bool {
        self.key == other.key && self.route == other.route
    }

    /// Adds the commands for hits on its key. Returns the index of the reply to INCR.
    pub fn increment(&self, hits: u64, commands: &mut Pipeline) -> usize {
        self.add_asking(commands);
        commands.add_command(match hits {
            1 => key_cmd("INCR", &self.key),
            hits => {
                let mut incrby = key_cmd("INCRBY", &self.key);
                incrby.arg(hits);
                incrby
            }
        });
        let reply = commands.len() - 1;
        if self.reply_to_expire(reply).is_some() {
            self.add_asking(commands);
            self.expire(commands);
        }
        reply
    }

    /// Adds EXPIRE for the key of a window.
    pub fn expire(&self, commands: &mut Pipeline) {
        if let Some(lifetime) = self.lifetime() {
            commands.add_command(Repair::expire(&lifetime));
        }
    }

    /// The index of the reply to EXPIRE, if it is sent with INCR, whose reply is at `incr`.
    pub(crate) fn reply_to_expire(&self, incr: usize) -> Option<usize> {
        // Later the node would not be asked for this key.
        let is_asking = self.route == Route::Asking;
        let expires = is_asking || self.window.is_some_and(|window| window.expires_at_once);
        expires.then_some(incr + 1 + usize::from(is_asking))
    }

    /// Sends EXPIRE with INCR.
    pub(crate) fn expire_at_once(&mut self) {
        if let Some(window) = &mut self.window {
            window.expires_at_once = true;
        }
    }

    /// Adds ASKING, which each command needs on a node that a slot migrates to.
    pub(crate) fn add_asking(&self, commands: &mut Pipeline) {
        if self.route == Route::Asking {
            commands.cmd("ASKING");
        }
    }

    /// The lifetime of its key, if it is sent as commands.
    pub(crate) fn lifetime(&self) -> Option<Lifetime> {
        let window = self.window.filter(|_| self.is_direct())?;
        Some(Lifetime {
            key: self.key.clone(),
            secs: window.lifetime_secs,
        })
    }

    /// The repair of its key after hits.
    pub(crate) fn repair(&self, state: KeyState, hits: u64) -> Option<Repair> {
        if state == KeyState::Known {
            return None;
        }
        Repair::of(state, self.lifetime()?, hits)
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
