//! All or nothing over the counters of one request.
//!
//! If an enforcing check is over limit, nothing is consumed of the others: they answer as a peek.
//! Hits over a limit that enforces and counts them, and refunds there, stay. Pure, so that every
//! store runs the same code.

use smallvec::SmallVec;

use crate::base::time::Time;
use crate::limits::algorithm::counter::Counter;
use crate::limits::check::{Call, Check, Hits, Verdicts};

/// Decides all checks over `counters`, of which check `i` charges `counters[slots[i]]`: a key met
/// twice has one slot, and its second check sees what the first did. Gives the verdicts, and leaves
/// in `counters` what is to be kept.
pub fn decide_all_or_nothing(
    checks: &[Check],
    slots: &[usize],
    counters: &mut [Counter],
    now: Time,
) -> Verdicts {
    let before: SmallVec<[Counter; 4]> = counters.iter().cloned().collect();
    let mut verdicts = Verdicts::new();
    for (check, &slot) in checks.iter().zip(slots) {
        let (after, verdict) =
            std::mem::take(&mut counters[slot]).decide(&check.limit, now, check.call());
        counters[slot] = after;
        verdicts.push(verdict);
    }
    if !checks.iter().zip(&verdicts).any(|(check, verdict)| check.enforcing && verdict.over) {
        return verdicts;
    }
    counters.clone_from_slice(&before);
    for ((check, &slot), verdict) in checks.iter().zip(slots).zip(&mut verdicts) {
        let counter = std::mem::take(&mut counters[slot]);
        let charge = Counter::charge(&check.limit, check.call());
        // By itself, and not by the hits of a neighbor on the same key, which are undone.
        let is_over = || charge.is_over(counter.spent_at(&check.limit, now));
        counters[slot] = if verdict.over && check.is_charged(true, true) {
            // It stays over limit even if a neighbor's hits on the same key, now undone, caused it.
            counter.decide(&check.limit, now, check.call()).0
        } else if !verdict.over || (!charge.drops && is_over()) {
            let (counter, look) =
                counter.decide(&check.limit, now, Call { hits: Hits::Peek, ..check.call() });
            // The verdict is for the check's own hits, with which the caller may retry.
            let over = verdict.over || look.over;
            *verdict = counter.verdict(&check.limit, now, check.call(), over);
            counter
        } else {
            counter
        };
    }
    verdicts
}
