//! Random histories of leases without a server: the real state machines of up to 16 replicas, the
//! algorithms of the store, and a network that delays, loses and reorders.
//!
//! `make leases HISTORIES=1000000 SEED=7` plays more of them. A failure prints the seed of its history.

mod history;
mod laws;
mod replica;
mod store;
mod world;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use history::History;
use laws::Broken;
use world::World;

/// Histories of a run, unless HISTORIES is set.
const HISTORIES: u64 = 100_000;
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
    let seed = number("SEED").unwrap_or(1);
    let histories = number("HISTORIES").unwrap_or(HISTORIES);
    let next = AtomicU64::new(0);
    let first_failure = AtomicU64::new(u64::MAX);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, Into::into) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Relaxed);
                    if index >= histories.min(first_failure.load(Relaxed)) {
                        break;
                    }
                    if play(&History::random(seed + index), None).is_err() {
                        first_failure.fetch_min(index, Relaxed);
                    }
                }
            });
        }
    });
    let failed = first_failure.into_inner();
    assert_eq!(failed, u64::MAX, "{}", story(seed.wrapping_add(failed)));
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
        let found =
            seeds.find_map(|seed| Some((seed, play(&History::random(seed), Some(mistake)).err()?)));
        println!("{mistake:?} {found:?}");
        assert!(found.is_some(), "{mistake:?}");
    }
}

fn play(history: &History, mistake: Option<Mistake>) -> Result<(), Broken> {
    World::new(history, mistake).play()
}

/// The history of a seed, shortened, and what happens in it.
fn story(seed: u64) -> String {
    let history = History::random(seed).shortened(|history| play(history, None).is_err());
    let mut world = World::new(&history, None);
    world.trace = Some(Vec::new());
    let Err(Broken(law)) = world.play() else {
        return String::new();
    };
    let trace = world.trace.unwrap_or_default().join("\n");
    format!(
        "{law}\nmake leases HISTORIES=1 SEED={seed}\n{} replicas, {:?}, {:?}\n{trace}",
        history.replicas, history.limits, history.network
    )
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().expect(name))
}
