//! What the scripted Redis does with the checks of a script: it loads, charges and keeps counters
//! by the Rust code of the algorithms, which `parity.rs` compares with the Lua.
//!
//! An argument names no limit, only the numbers that the Lua needs. [`Wanted::limit`] makes a limit
//! with the same numbers.

use std::collections::BTreeMap;

use tollgate::base::time::{MICROS_PER_SECOND, Span, Time};
use tollgate::limits::algorithm::charge::Charge;
use tollgate::limits::algorithm::{Counter, Decide};
use tollgate::limits::check::{Call, Hits};
use tollgate::limits::{Algorithm, EXACT_MAX, Limit, Terms, Unit};

use super::commands::{Database, WRONG_TYPE};
use super::resp::Reply;

/// Codes of the script's arguments: `Kind` plus one.
const FIXED_WINDOW: u8 = 1;
const BUCKET: u8 = 2;
const SLIDING_WINDOW: u8 = 3;
const SUB_WINDOWS: u8 = 4;
const SLIDING_LOG: u8 = 5;
const CONCURRENCY: u8 = 6;
/// Where in an argument the holder's name begins.
const HOLDER_FROM: usize = 43;

/// The state of one key.
#[derive(Debug, Clone)]
pub(super) enum State {
    /// A fixed window.
    Number(i64),
    /// What is spent, in credits, as of a tick, of which each gives `rate` back.
    Bucket { spent: u64, at: u64, tick: u64, rate: u64 },
    /// Any other.
    Counter(Limit, Counter),
}

/// One check, as its argument says it.
struct Wanted<'a> {
    code: u8,
    enforcing: bool,
    charge: Charge,
    life: u64,
    rate: u64,
    holder: &'a [u8],
}

/// What precedes a check in the arguments.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Marks {
    /// It changes nothing.
    pub(super) is_tried: bool,
    pub(super) ahead: Option<Ahead>,
}

/// Hits to take ahead after a check.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ahead {
    hits: u64,
    price: u64,
    parts: u64,
}

/// A counter as a check finds it.
#[derive(Clone)]
struct Slot {
    state: State,
    changed: bool,
    life: u64,
}

impl Ahead {
    pub(super) fn read(argument: &[u8]) -> Self {
        let [hits, price, parts] = whole_numbers(argument).map(i64::cast_unsigned);
        Self { hits, price, parts }
    }
}

impl<'a> Wanted<'a> {
    fn read(argument: &'a [u8]) -> Self {
        let [cost, full, deepest, life, rate] = whole_numbers(&argument[3..HOLDER_FROM]);
        let [full, deepest, life, rate] = [full, deepest, life, rate].map(i64::cast_unsigned);
        let charge = Charge { cost, drops: argument[1] == 1, full, deepest };
        Self {
            code: argument[0],
            enforcing: argument[2] == 1,
            charge,
            life,
            rate,
            holder: &argument[HOLDER_FROM..],
        }
    }

    /// A limit that counts as the Lua does with these numbers. The numbers of a bucket name none.
    fn limit(&self) -> Limit {
        let terms = |algorithm, micros: u64| {
            let requests = u32::try_from(self.charge.full).expect("a number of requests");
            let unit_multiplier = u32::try_from(micros / MICROS_PER_SECOND).expect("a period");
            Terms { unit_multiplier, ..Terms::new(requests.into(), Unit::Second, algorithm) }
        };
        let terms = match self.code {
            SLIDING_WINDOW => terms(Algorithm::SlidingWindow, self.life * self.rate),
            SUB_WINDOWS => {
                let buckets = Some(u32::try_from(self.rate).expect("a number of sub-windows"));
                Terms { buckets, ..terms(Algorithm::SlidingWindow, self.life * self.rate) }
            }
            SLIDING_LOG => terms(Algorithm::SlidingLog, self.life),
            CONCURRENCY => Terms {
                lease: Some(Span::from_micros(self.life)),
                ..terms(Algorithm::Concurrency, MICROS_PER_SECOND)
            },
            code => panic!("no algorithm has code {code}"),
        };
        Limit::new(&terms).expect("a limit that was counted by")
    }

    fn call(&self) -> Call<'a> {
        let hits = match self.charge.cost {
            0 => Hits::Peek,
            1.. => Hits::Add(self.charge.cost.unsigned_abs()),
            _ => Hits::Refund(self.charge.cost.unsigned_abs()),
        };
        Call { hits, holder: self.holder, book_ahead: Span::ZERO }
    }

    /// A state as of now.
    fn load(&self, found: Option<State>, now: Time) -> Result<State, String> {
        match (self.code, found) {
            (FIXED_WINDOW, None) => Ok(State::Number(0)),
            (FIXED_WINDOW, Some(State::Number(used))) => Ok(State::Number(used.max(0))),
            (BUCKET, None) => Ok(State::Bucket {
                spent: 0,
                at: now.as_micros() / self.life,
                tick: self.life,
                rate: self.rate,
            }),
            (BUCKET, Some(State::Bucket { spent, at, .. })) => {
                let tick = now.as_micros() / self.life;
                let spent = spent
                    .min(self.charge.deepest)
                    .saturating_sub(tick.saturating_sub(at) * self.rate);
                Ok(State::Bucket { spent, at: tick, tick: self.life, rate: self.rate })
            }
            (SLIDING_WINDOW.., found) => {
                let limit = self.limit();
                let counter = match found {
                    None => Counter::new(&limit),
                    Some(State::Counter(_, counter)) => counter,
                    Some(_) => return Err(WRONG_TYPE.to_owned()),
                };
                Ok(State::Counter(limit, counter.decide(&limit, now, Hits::Peek).0))
            }
            _ => Err(WRONG_TYPE.to_owned()),
        }
    }

    /// The state after this check, whether that was over, and whether there is anything to keep.
    /// The state is as of now.
    fn charge(&self, state: State, now: Time) -> (State, bool, bool) {
        let spent = state.spent_at(now);
        match state {
            State::Number(_) | State::Bucket { .. } => {
                let over = self.charge.is_over(spent);
                let after =
                    if over && self.charge.drops { spent } else { self.charge.charged(spent) };
                (state.with_spent(after), over, after != spent)
            }
            State::Counter(limit, counter) => {
                let call = self.call();
                let mut charge = self.charge;
                if let Counter::Concurrency(state) = &counter {
                    Charge { cost: charge.cost, full: charge.full, .. } =
                        state.charge_here(&limit, call);
                }
                let over = charge.is_over(spent);
                let mut after = counter.clone();
                if !over || !charge.drops {
                    after.apply(&limit, now, call, charge);
                }
                let changed =
                    after != counter || (self.code == CONCURRENCY && self.charge.cost > 0 && !over);
                (State::Counter(limit, after), over, changed)
            }
        }
    }

    /// `driver.lua`, `take`: the state after it, the hits, and whether there is anything to keep.
    fn take(&self, state: State, ahead: Ahead, now: Time) -> (State, u64, bool) {
        let left = self.charge.full.saturating_sub(state.spent_at(now)) / ahead.price;
        let hits = ahead.hits.min(left / ahead.parts);
        let taken = Self {
            charge: Charge { cost: (hits * ahead.price).cast_signed(), drops: true, ..self.charge },
            ..*self
        };
        let (state, _, changed) = taken.charge(state, now);
        (state, hits, changed)
    }

    /// What is replied to it.
    fn reply(&self, state: &State, over: bool, now: Time) -> Reply {
        let spent = state.spent_at(now).cast_signed();
        let number = Reply::Int(if over { -1 - spent } else { spent });
        let State::Counter(limit, counter) = state else {
            return number;
        };
        let leaving = || (spent + self.charge.cost.max(0) - self.charge.full.cast_signed()).max(0);
        let besides: Vec<i64> = match counter {
            Counter::SlidingWindow(window) => vec![window.parts().2.into()],
            Counter::SubWindows(windows) => {
                windows.parts().1.iter().map(|count| count.cast_signed()).collect()
            }
            Counter::SlidingLog(log) => {
                let newest = log.entries().next_back().map_or(0, |(at, _)| micros(at));
                let mut reached = 0;
                let left = log.entries().find(|(_, hits)| {
                    reached += hits.cast_signed();
                    over && reached >= leaving()
                });
                let (hits, at) = left
                    .filter(|_| over && leaving() <= spent)
                    .map_or((0, 0), |(at, _)| (reached, micros(at)));
                vec![hits, at, newest, i64::try_from(log.len()).expect("few")]
            }
            Counter::Concurrency(holders) => {
                let nth = usize::try_from(leaving())
                    .ok()
                    .and_then(|leaving| holders.leases().nth(leaving.checked_sub(1)?));
                let (room, last) =
                    (nth.unwrap_or(now), holders.leases().next_back().unwrap_or(now));
                vec![
                    if over { micros(room.min(now.plus(limit.period))) } else { micros(now) },
                    micros(last),
                ]
            }
            Counter::FixedWindow(_) | Counter::Bucket(_) => {
                unreachable!("they have states of their own")
            }
        };
        Reply::List([number].into_iter().chain(besides.into_iter().map(Reply::Int)).collect())
    }
}

impl State {
    /// What is spent of it, in its own units.
    pub(super) fn spent_at(&self, now: Time) -> u64 {
        match self {
            Self::Number(used) => u64::try_from(*used).unwrap_or(0).min(EXACT_MAX - 1),
            Self::Bucket { spent, at, tick, rate } => {
                spent.saturating_sub((now.as_micros() / tick).saturating_sub(*at) * rate)
            }
            Self::Counter(limit, counter) => counter.spent_at(limit, now),
        }
    }

    fn with_spent(self, spent: u64) -> Self {
        match self {
            Self::Number(_) => Self::Number(spent.cast_signed()),
            Self::Bucket { at, tick, rate, .. } => Self::Bucket { spent, at, tick, rate },
            Self::Counter(..) => unreachable!("it is more than a number"),
        }
    }
}

/// `driver.lua`, decide.
pub(super) fn decide(
    database: &mut Database,
    key: &[u8],
    argument: &[u8],
    marks: Marks,
    error: Option<&str>,
    now: Time,
) -> Result<Reply, String> {
    let wanted = Wanted::read(argument);
    let state = wanted.load(database.find(key, now)?, now)?;
    let (mut state, over, mut changed) = wanted.charge(state, now);
    let mut reply = wanted.reply(&state, over, now);
    if let Some(ahead) = marks.ahead {
        let (after, hits, more) = wanted.take(state, ahead, now);
        (state, changed) = (after, changed || more);
        let mut replies = match reply {
            Reply::List(replies) => replies,
            number => vec![number],
        };
        replies.push(Reply::Int(hits.cast_signed()));
        reply = Reply::List(replies);
    }
    if changed && !marks.is_tried {
        if let Some(error) = error {
            return Err(error.to_owned());
        }
        database.keep(key, state, wanted.life, now);
    }
    Ok(reply)
}

/// `driver.lua`, `decide_all_or_nothing`.
pub(super) fn decide_all_or_nothing(
    database: &mut Database,
    checks: &[(&[u8], &[u8])],
    error: Option<&str>,
    now: Time,
) -> Result<Vec<Reply>, String> {
    let mut loaded: BTreeMap<&[u8], Slot> = BTreeMap::new();
    for (key, argument) in checks {
        let wanted = Wanted::read(argument);
        let state = wanted.load(database.find(key, now)?, now)?;
        loaded.entry(key).or_insert(Slot { state, changed: false, life: wanted.life });
    }
    let mut slots = loaded.clone();
    let charge = |slots: &mut BTreeMap<&[u8], Slot>, key: &[u8], wanted: &Wanted<'_>| {
        let slot = slots.get_mut(key).expect("it was loaded");
        let (state, over, changed) = wanted.charge(slot.state.clone(), now);
        *slot = Slot { state, changed: slot.changed || changed, life: slot.life };
        over
    };
    let mut blocked = false;
    let mut decided = Vec::new();
    for (key, argument) in checks {
        let wanted = Wanted::read(argument);
        let over = charge(&mut slots, key, &wanted);
        blocked |= over && wanted.enforcing;
        decided.push((over, wanted.reply(&slots[key].state, over, now)));
    }
    if blocked {
        slots = loaded;
        for ((key, argument), (over, reply)) in checks.iter().zip(&mut decided) {
            let wanted = Wanted::read(argument);
            let charged = wanted.charge;
            let counts =
                !charged.drops && charged.cost != 0 && (wanted.enforcing || charged.cost < 0);
            let state = &slots[key].state;
            let spent = state.spent_at(now);
            if *over && counts {
                charge(&mut slots, key, &wanted);
            } else if !*over || (!charged.drops && charged.is_over(spent)) {
                *reply = wanted.reply(state, *over || spent > charged.full, now);
            }
        }
    }
    for (key, slot) in slots.into_iter().filter(|(_, slot)| slot.changed) {
        if let Some(error) = error {
            return Err(error.to_owned());
        }
        database.keep(key, slot.state, slot.life, now);
    }
    Ok(decided.into_iter().map(|(_, reply)| reply).collect())
}

/// Doubles that are whole numbers below 2^53.
fn whole_numbers<const N: usize>(bytes: &[u8]) -> [i64; N] {
    let (doubles, _) = bytes.as_chunks::<8>();
    #[expect(clippy::cast_possible_truncation, reason = "whole numbers below 2^53")]
    std::array::from_fn(|index| f64::from_le_bytes(doubles[index]) as i64)
}

fn micros(time: Time) -> i64 {
    time.as_micros().cast_signed()
}
