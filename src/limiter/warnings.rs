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
use crate::check::{Blocked, HITS_MAX, Hits, Source};
use crate::limit::{OverLimitHits, used_percent};
use crate::limiter::decision::{Counted, Decision};

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
        self.limits().filter_map(|(place, counted)| {
            let warn_at = counted.link.warn_at()?;
            let verdict = counted.verdict;
            let (limit, used) = (counted.check.limit.capacity, verdict.used);
            let threshold = warn_at.reached(limit, used);
            Some(Warning {
                counted,
                place,
                used_percent: used_percent(limit, used),
                threshold_percent: threshold.filter(|_| verdict.source != Source::Fallback)?,
            })
        })
    }
}

impl Counted<'_, '_> {
    /// The thresholds that the hits of this request have crossed, in percent.
    pub(crate) fn crossed(&self, blocked: &Blocked) -> impl Iterator<Item = u8> {
        let warn_at = self.link.warn_at();
        warn_at.into_iter().flat_map(move |warn_at| {
            let used = self.verdict.used;
            let before = used.saturating_sub(self.charged(blocked));
            warn_at.crossed(self.check.limit.capacity, before, used)
        })
    }

    /// The hits that the counter has more, as far as its verdict tells.
    fn charged(&self, blocked: &Blocked) -> u64 {
        let (check, verdict) = (self.check, self.verdict);
        let limit = &check.limit;
        let Hits::Add(hits) = check.hits else {
            return 0;
        };
        // A slot that began too late is over limit, and stays charged.
        let is_booked = verdict.start_after > Span::ZERO;
        // A bucket takes of hits over limit only as many as it has room for.
        let counts_over =
            limit.over_limit_hits == OverLimitHits::Count && !limit.algorithm.is_bucket();
        let is_charged = if verdict.over {
            is_booked || counts_over
        } else {
            !blocked.has(check)
        };
        let is_known = matches!(verdict.source, Source::Store | Source::Lease);
        // A present holder renews its lease by such a hit.
        if is_charged && is_known && !limit.algorithm.counts_holders() {
            hits.min(HITS_MAX)
        } else {
            0
        }
    }
}
