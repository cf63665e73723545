//! Encodes a check as Redis gets it: as commands, or as a key and an argument of the script.
//!
//! Most checks are hits on a fixed window that count whether they are admitted or not. INCR does
//! that, in a fifth of the script's time. `driver.lua` has the other side.

use bb8_redis::redis::Pipeline;
use smallvec::SmallVec;

use crate::base::time::{Span, Time};
use crate::limits::algorithm::charge::Charge;
use crate::limits::algorithm::counter::Kind;
use crate::limits::check::{Check, HITS_MAX, Key};
use crate::limits::{EXACT_MAX, Limit, Windows};
use crate::store::redis::client::repair::{KeyState, Repair, key_cmd};
use crate::store::redis::client::size::script_size;
use crate::store::redis::topology::lifetimes::Lifetime;

/// How the checks of a request are decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Each group on its own.
    Independent,
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

/// Hits of a counter to take ahead, after a check. Not in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ahead {
    /// The most hits.
    pub hits: u64,
    /// The script takes at most one of this many equal parts of what is left. A command takes as
    /// much as is left.
    pub parts: u64,
}

/// What precedes a check in a call of the script.
#[derive(Debug, Clone, Copy, Default)]
struct Marks {
    ahead: Option<Ahead>,
    /// The check changes nothing from this time of the server on.
    until: Option<Time>,
}

/// A check in the form in which it is sent to Redis.
#[derive(Debug, Clone)]
pub struct EncodedCheck {
    pub(crate) key: Key,
    /// For the script; empty if it is sent as commands.
    pub(crate) argument: SmallVec<[u8; 48]>,
    pub(crate) window: Option<Window>,
    pub(crate) route: Route,
    /// See [`Check::group`]; 0 in modes that decide each on its own.
    pub(crate) group: u16,
    /// The time that chose the window in the key.
    pub(crate) at: Time,
    /// The counter's hash in the caches of this process.
    pub(crate) hash: u64,
    /// The price of a hit, in the counter's units.
    pub(crate) price: u64,
    /// The size in the script.
    script_size: usize,
    /// Boxed: few checks have some, and all are moved.
    marks: Option<Box<Marks>>,
    /// Whether the check changes its counter if it is not over limit.
    has_cost: bool,
}

/// Hits on a fixed window that are sent by INCR: those that count even over limit, and those of a
/// limit that may be leased, which are given back if they are over limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) start: Time,
    pub(crate) hits: u64,
    /// The most that may be used, if hits over it are dropped; `EXACT_MAX` if they count.
    pub(crate) full: u64,
    pub(crate) lifetime_secs: u64,
    /// EXPIRE is sent with INCR, since the key may be new.
    pub(crate) expires_at_once: bool,
    /// INCRBY is sent in place of INCR: the server has the commands of envoyproxy/ratelimit only.
    pub(crate) is_plain: bool,
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
            group: if mode == Mode::Independent { check.group } else { 0 },
            at,
            hash,
            price: 1,
            script_size: script_size(limit),
            marks: None,
            has_cost: charge.cost != 0,
        };
        let (lifetime, rate) = match Kind::of(limit) {
            Kind::FixedWindow => {
                let (start, lifetime_secs) = encoded.append_window(limit, jitter);
                // Sums of more would end in an error of INCRBY, beyond 2^63.
                let can_add = 1..=HITS_MAX.cast_signed();
                let counts = !charge.drops && can_add.contains(&charge.cost);
                // More hits than the limit would only disturb others until they are given back.
                let fits = || (0..=charge.full.cast_signed()).contains(&charge.cost);
                if mode == Mode::Independent
                    && encoded.group == 0
                    && (counts || (check.lease.is_some() && fits()))
                {
                    encoded.window = Some(Window {
                        start,
                        hits: charge.wanted(),
                        full: if counts { EXACT_MAX } else { charge.full },
                        lifetime_secs,
                        expires_at_once: false,
                        is_plain: false,
                    });
                    // The script reads a window that may not exist, until hits are taken.
                    if charge.cost > 0 {
                        return encoded;
                    }
                }
                (lifetime_secs, 0)
            }
            Kind::Bucket => {
                encoded.price = limit.period_ticks();
                (limit.tick.span().as_micros(), limit.requests)
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

    /// Appends the window to the key. Returns its start, and the lifetime of the key in seconds: a
    /// whole period, but only the rest of a calendar period.
    fn append_window(&mut self, limit: &Limit, jitter: Span) -> (Time, u64) {
        let window = limit.window(self.at);
        self.key.push_window(&window);
        let lifetime = match limit.windows {
            Windows::Aligned => limit.period,
            Windows::UtcMonths(_) | Windows::Calendar(_) => window.end.since(self.at),
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
        let Charge { cost, drops, full, deepest } = charge;
        self.argument.extend_from_slice(&[code, drops.into(), enforcing.into()]);
        let rest = [full, deepest, lifetime, rate].map(u64::cast_signed);
        for number in std::iter::once(cost).chain(rest) {
            self.argument.extend_from_slice(&double(number).to_le_bytes());
        }
    }

    /// The size of the check in a batch, in commands.
    pub(crate) fn size(&self) -> usize {
        if self.is_direct() { 1 } else { self.script_size }
    }

    /// Bytes on the heap, at most.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.key.len() + self.argument.len()
    }

    /// Takes hits ahead after the check, which may have none.
    pub fn take_ahead(&mut self, hits: u64, parts: u64) {
        let hits = hits.min(HITS_MAX);
        let parts = parts.clamp(1, HITS_MAX);
        self.marks.get_or_insert_default().ahead = Some(Ahead { hits, parts });
        if self.window.is_some() && hits > 0 {
            self.argument.clear();
        }
    }

    /// Lets the check change nothing from this time of the server on.
    pub fn until(&mut self, end: Time) {
        self.marks.get_or_insert_default().until = Some(end);
    }

    /// The hits to take ahead.
    pub(crate) fn ahead(&self) -> Option<Ahead> {
        self.marks.as_ref()?.ahead
    }

    /// See [`Self::until`].
    pub(crate) fn end(&self) -> Option<Time> {
        self.marks.as_ref()?.until
    }

    /// Whether the script applies the check at this time of the server, which is in its reply.
    pub fn applies_at(&self, now: Time) -> bool {
        self.end().is_none_or(|end| now < end)
    }

    /// Whether its reply has the usage of this time: not if it was too late, or is for the next
    /// window.
    pub(crate) fn has_usage_of(&self, now: Time) -> bool {
        let is_early = |_| self.window.is_some_and(|window| now < window.start);
        self.applies_at(now) && !self.ahead().is_some_and(is_early)
    }

    /// Sends a hit on a fixed window by the script, with the hits to take ahead. No effect on other
    /// checks.
    pub fn use_script(&mut self) {
        if let Some(window) = self.window.filter(|_| self.is_direct()) {
            // Hits that count are charged whether over limit or not. `decode.rs` compares with the
            // limit.
            self.write_window(window.hits.cast_signed(), window.full, window.lifetime_secs);
        }
    }

    fn write_window(&mut self, cost: i64, full: u64, lifetime_secs: u64) {
        let charge = Charge { cost, drops: full < EXACT_MAX, full, deepest: EXACT_MAX - 1 };
        self.write_argument(Kind::FixedWindow, false, charge, lifetime_secs, 0);
    }

    /// A refund of hits on its fixed window, by the script, which creates no key.
    pub(crate) fn refund(&self, hits: u64) -> Self {
        let mut refund = self.clone();
        refund.marks = None;
        refund.write_window(-hits.cast_signed(), EXACT_MAX, 0);
        refund
    }

    /// The time whose window was charged, for a server whose time was `now`.
    pub(crate) fn charged_at(&self, check: &Check, now: Time) -> Time {
        match Kind::of(&check.limit) {
            Kind::FixedWindow => self.at,
            _ => now,
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
            1 if !self.window.is_some_and(|window| window.is_plain) => key_cmd("INCR", &self.key),
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
        Some(Lifetime { key: self.key.clone(), secs: window.lifetime_secs })
    }

    /// The repair of its key after hits.
    pub(crate) fn repair(&self, state: KeyState, hits: u64) -> Option<Repair> {
        match state {
            KeyState::Known => None,
            KeyState::New => self.lifetime().map(Repair::Expire),
            KeyState::Negative => {
                Some(Repair::Reset { lifetime: self.lifetime()?, hits: hits.cast_signed() })
            }
        }
    }

    /// Whether a check that was, or was not, over limit has changed its counter.
    pub(crate) fn is_written(&self, over: bool) -> bool {
        let counts = self.window.is_some_and(|window| window.full == EXACT_MAX);
        counts || self.is_direct() || (self.has_cost && !over && self.end().is_none())
    }
}

impl Ahead {
    /// The mark in a call of the script, for a counter in which a hit has this price.
    pub(crate) fn argument(self, price: u64) -> Vec<u8> {
        let numbers = [self.hits, price, self.parts].map(|number| double(number.cast_signed()));
        let bytes = numbers.map(f64::to_le_bytes);
        [&b"A"[..], bytes.as_flattened()].concat()
    }
}

/// Exact: a limit's numbers are whole and below 2^53.
#[expect(clippy::cast_precision_loss, reason = "numbers below 2^53 are exact doubles")]
fn double(number: i64) -> f64 {
    number as f64
}
