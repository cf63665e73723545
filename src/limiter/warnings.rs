//! Limits that are used from a threshold of their `warn_at` on, and the requests that cross one.
//!
//! A warning is a state: all responses have it from the threshold on. A crossing belongs to the one
//! request whose hits reached the threshold, which knows it from its own reply, so that replicas
//! need not agree on it:
//!
//! ```text
//!  used       70 ──▶ 79 ─────▶ 83 ──▶ 91        warn_at: 80%
//!  hits           +9      +4       +8
//!  crossing                80
//!  warning                 83     91
//! ```

use crate::base::time::Span;
use crate::limiter::decision::{Counted, Decision};
use crate::limits::check::{Blocked, Check, Hits, Source, Verdict};
use crate::limits::{WarnAt, used_percent};
use crate::rules::Step;

/// A limit that is used from a threshold on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Warning<'d, 'r> {
    pub(crate) counted: Counted<'d, 'r>,
    /// Its name in structured fields is made from it: see [`Decision::limits`].
    pub(crate) place: [usize; 2],
    pub(crate) used_percent: u64,
    /// The highest that is reached.
    pub(crate) threshold_percent: u8,
}

impl<'d, 'r> Decision<'d, '_, 'r> {
    /// Each limit of the request, with the index of its descriptor and its index there.
    pub(crate) fn limits(&self) -> impl Iterator<Item = ([usize; 2], Counted<'d, 'r>)> {
        let steps = self.plan.steps.iter().enumerate();
        steps.flat_map(|(index, step)| {
            let links = self.links(step).enumerate();
            links.map(move |(nth, counted)| ([index, nth], counted))
        })
    }

    /// The fallback does not know what is used.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = Warning<'d, 'r>> {
        let mut links = self.plan.steps.iter().map(Step::links);
        // Most requests have none, which a look at the rules finds sooner.
        let warns = links.any(|links| links.iter().any(|link| link.warn_at().is_some()));
        let limits = warns.then(|| self.limits()).into_iter().flatten();
        limits.filter_map(|(place, counted)| {
            let warn_at = counted.link.warn_at()?;
            let verdict = counted.verdict;
            let limit = counted.check.limit.capacity;
            let used = verdict.used;
            let threshold = warn_at.reached(limit, used);
            Some(Warning {
                counted,
                place,
                used_percent: counted.used_percent(),
                threshold_percent: threshold.filter(|_| verdict.source != Source::Fallback)?,
            })
        })
    }
}

impl Counted<'_, '_> {
    /// What is used of the limit, rounded down.
    pub(crate) fn used_percent(&self) -> u64 {
        used_percent(self.check.limit.capacity, self.verdict.used)
    }

    /// The thresholds that the hits of this request have crossed, in percent.
    pub(crate) fn crossed(&self, warn_at: &WarnAt, blocked: &Blocked) -> impl Iterator<Item = u8> {
        let used = self.verdict.used;
        let before = used.saturating_sub(charged(self.check, self.verdict, blocked));
        warn_at.crossed(self.check.limit.capacity, before, used)
    }
}

/// The hits that a check has added to its counter, by its verdict.
fn charged(check: &Check, verdict: &Verdict, blocked: &Blocked) -> u64 {
    let limit = &check.limit;
    // A slot that begins too late is over limit, and stays charged.
    let is_booked = verdict.over && verdict.start_after > Span::ZERO;
    // At the deepest debt it is not known how many hits led there. It was over limit before, unless
    // one call had hits for more than a burst of debt.
    let spent = verdict.used.saturating_mul(limit.period_ticks());
    let is_deepest = limit.algorithm.is_bucket() && spent >= limit.deepest();
    let is_charged =
        is_booked || (!is_deepest && check.is_charged(verdict.over, blocked.has(check)));
    let is_known = matches!(verdict.source, Source::Store | Source::Lease);
    // The hit of a holder that is present renews its lease.
    let is_hit = matches!(check.hits, Hits::Add(_));
    if is_hit && is_charged && is_known && !limit.algorithm.counts_holders() {
        check.counted_hits()
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::base::time::Time;
    use crate::limits::algorithm::Counter;
    use crate::limits::check::Key;
    use crate::limits::{Algorithm, Limit, OverLimitHits, Terms, Unit};

    const ALGORITHMS: [Algorithm; 4] = [
        Algorithm::FixedWindow,
        Algorithm::SlidingWindow,
        Algorithm::SlidingLog,
        Algorithm::TokenBucket,
    ];

    fn hits() -> impl Strategy<Value = Hits> {
        prop_oneof![
            4 => (0_u64..12).prop_map(Hits::Add),
            1 => Just(Hits::Peek),
            1 => (0_u64..12).prop_map(Hits::Refund),
        ]
    }

    proptest! {
        /// Of any history of one counter, in which the calls of all replicas are in some order.
        #[test]
        fn each_crossing_belongs_to_the_call_that_made_it(
            algorithm in prop::sample::select(&ALGORITHMS[..]),
            counts in any::<bool>(),
            calls in prop::collection::vec(hits(), 1..60),
        ) {
            let mut limit = Limit::new(&Terms::new(20, Unit::Day, algorithm)).expect("a limit");
            if counts {
                limit.over_limit_hits = OverLimitHits::Count;
            }
            let warn_at = WarnAt::new(&[30, 80]).expect("percentages");
            let now = Time::from_micros(0);
            let mut counter = Counter::new(&limit);
            let mut before = 0;
            for hits in calls {
                let (next, verdict) = counter.decide(&limit, now, hits);
                counter = next;
                let check = Check::new(Key::default(), limit, hits);
                let charged = charged(&check, &verdict, &Blocked::default());
                let found: Vec<u8> = warn_at
                    .crossed(20, verdict.used - charged.min(verdict.used), verdict.used)
                    .collect();
                let made: Vec<u8> = warn_at.crossed(20, before, verdict.used).collect();
                prop_assert_eq!(found, made, "{:?} {:?} {:?}", hits, verdict, before);
                before = verdict.used;
            }
        }
    }

    #[test]
    fn hits_that_the_store_did_not_charge_cross_nothing() {
        let limit = Limit::new(&Terms::new(9, Unit::Day, Algorithm::FixedWindow)).expect("a limit");
        let mut check = Check::new(Key::default(), limit, Hits::Add(3));
        check.group = 1;
        let verdict = |source| Verdict { used: 3, source, ..Verdict::default() };
        let unblocked = Blocked::default();
        let found = Source::ALL.map(|source| charged(&check, &verdict(source), &unblocked));
        assert_eq!(found, [3, 0, 3, 0], "by {:?}", Source::ALL);
        let blocked = Blocked::of([(&check, true)].into_iter());
        assert_eq!(charged(&check, &verdict(Source::Store), &blocked), 0);
        // A slot that was booked, and begins after the deadline.
        let late =
            Verdict { over: true, start_after: Span::from_secs(1), ..verdict(Source::Store) };
        check.limit.over_limit_hits = OverLimitHits::Drop;
        assert_eq!(charged(&check, &late, &unblocked), 3);
    }
}
