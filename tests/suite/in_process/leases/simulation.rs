//! Random histories of leases without a server: the real state machines of up to 16 replicas, the
//! algorithms of the store, and a network that delays, loses and reorders.
//!
//! `make test` plays some, others for each commit; `make leases HISTORIES=1000000 SEED=7` plays more of
//! them, optimized. A failure prints the seed of its history, and the shortest part of it that
//! fails.

mod beside_exact;
mod history;
mod laws;
mod replica;
mod store;
mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use beside_exact::{Calm, Class};
use history::History;
use laws::{Broken, Kept};
use world::World;

/// Histories of a run, unless HISTORIES is set.
const HISTORIES: u64 = 2_000;
/// Histories for each one without faults that is played beside `exact`.
const CALM_PART: u64 = 100;
/// How many of those are played at least: what they admit is compared as a mean.
const CALM_MIN: u64 = 600;
/// A mistake is found within this many histories.
const FOUND_WITHIN: u64 = 1_000;

/// Mistakes in the code of leases that a law must detect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    /// Hits are used after the end of their window.
    OutliveWindow,
    /// The store grants more than the limit.
    GrantAboveLimit,
    /// A give-back is sent again after a lost reply.
    GiveBackAgain,
    /// A take is used although its reply was lost.
    UseUnknownTake,
    /// Takes of eight times the size.
    LargeTakes,
}

#[test]
fn laws_hold_in_random_histories() {
    let seed = number("SEED").or_else(|| number("PROPTEST_RNG_SEED"));
    let first_seed = seed.unwrap_or(1);
    let failed = first_failure(first_seed, histories(), |seed| play(&History::random(seed), None));
    if let Some((seed, broken)) = failed {
        panic!("{}", story(seed, &broken));
    }
}

#[test]
fn leases_admit_what_exact_admits() {
    let figures = Mutex::new(Vec::new());
    let (first_seed, count) =
        (number("SEED").unwrap_or(1), histories().div_ceil(CALM_PART).max(CALM_MIN));
    let failed = first_failure(first_seed, count, |seed| {
        let compared = Calm::random(seed).compare()?;
        figures.lock().expect("no panic").extend(compared);
        Ok(())
    });
    assert!(failed.is_none(), "{failed:?}");
    let figures = figures.into_inner().expect("no panic");
    for class in Class::ALL {
        println!("{}", class.check(&figures));
    }
}

#[test]
fn mistakes_are_found() {
    for mistake in [
        Mistake::OutliveWindow,
        Mistake::GrantAboveLimit,
        Mistake::GiveBackAgain,
        Mistake::UseUnknownTake,
        Mistake::LargeTakes,
    ] {
        let mut seeds = 1..=FOUND_WITHIN;
        let found = seeds.find(|seed| play(&History::random(*seed), Some(mistake)).is_err());
        println!("{mistake:?}: seed {found:?}");
        assert!(found.is_some(), "{mistake:?}");
    }
}

/// Plays `histories` on all processors. Returns the first seed that fails, and why.
fn first_failure(
    first_seed: u64,
    histories: u64,
    play: impl Fn(u64) -> Kept + Sync,
) -> Option<(u64, Broken)> {
    let next = AtomicU64::new(0);
    let failures = Mutex::new(Vec::new());
    let run = || {
        loop {
            let index = next.fetch_add(1, Relaxed);
            if index >= histories {
                break;
            }
            if let Err(broken) = play(first_seed + index) {
                // Those before it are played or being played.
                next.fetch_max(histories, Relaxed);
                let mut failures = failures.lock().expect("no panic");
                failures.push((first_seed + index, broken));
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, Into::into) {
            scope.spawn(run);
        }
    });
    let failures = failures.into_inner().expect("no panic");
    failures.into_iter().min_by_key(|(seed, _)| *seed)
}

fn play(history: &History, mistake: Option<Mistake>) -> Kept {
    World::new(history, mistake).play()
}

/// The history of a seed, shortened, and what happens in it.
fn story(seed: u64, Broken(law): &Broken) -> String {
    let history = History::random(seed).shortened(|history| play(history, None).is_err());
    let mut world = World::new(&history, None);
    world.trace = Some(Vec::new());
    let shortened = world.play();
    let trace = world.trace.unwrap_or_default().join("\n");
    format!(
        "{law}\nmake leases HISTORIES=1 SEED={seed}\nshortened: {shortened:?}, {} replicas, {:?}, {:?}\n{trace}",
        history.replicas, history.limits, history.network
    )
}

fn histories() -> u64 {
    number("HISTORIES").unwrap_or(HISTORIES)
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().expect(name))
}
