//! Plans one request: a step for each descriptor, and the checks to make.

use std::collections::HashSet;

use smallvec::SmallVec;

use crate::base::text::Text;
use crate::base::time::{Span, Time};
use crate::limits::check::{Check, CheckRequest, Hits};
use crate::limits::{Limit, OverLimitHits};
use crate::rules::key::{self, KeyTail};
use crate::rules::lookup::{Hop, counted_by};
use crate::rules::metric_name;
use crate::rules::plan::matched::Matched;
use crate::rules::query::{Descriptor, Query};
use crate::rules::rule::{FurtherLimit, Naming, Rule};
use crate::rules::step::{Link, Step};
use crate::rules::tree::{Domain, RuleSet};

pub use matched::InvalidRequest;

mod matched;

/// Checks of one request: its descriptors times the limits and the levels of their rules.
// bound checks_max: INVALID_ARGUMENT; 400; tollgate_invalid_requests_total
pub const CHECKS_MAX: usize = 1_000;

/// A request matched with the rules.
#[derive(Debug, Default)]
pub struct Plan<'r> {
    /// Whether the domain has rules at all.
    pub domain_known: bool,
    /// Whether a descriptor has no rule.
    pub has_unmatched: bool,
    /// Whether all descriptors consume, or none.
    pub all_or_nothing: bool,
    /// A step for each descriptor, in order.
    pub steps: SmallVec<[Step<'r>; 2]>,
    /// The checks of the steps that count.
    pub request: CheckRequest,
}

/// Modes of the process.
#[derive(Debug, Clone, Copy, Default)]
pub struct Modes {
    /// SHADOW_MODE: count and report, never reject.
    pub shadow: bool,
    /// QUOTA_MODE: every rule is a quota.
    pub quota: bool,
    /// STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT: all or nothing, in every domain.
    pub all_or_nothing: bool,
}

/// A limit to check.
struct Counted<'p, 'r> {
    rule: Option<&'r Rule>,
    further: Option<&'r FurtherLimit>,
    limit: &'p Limit,
    is_override: bool,
    hops: &'p [Hop<'r>],
    /// The number of entries that it is counted by.
    entries: usize,
}

/// Makes the checks of one request.
struct Planner<'a, 'q, 'r> {
    domain: &'r Domain,
    query: &'a Query<'q>,
    modes: Modes,
    now: Time,
    replaced: HashSet<&'r str>,
    plan: &'a mut Plan<'r>,
}

/// Plans a request that came `now`.
///
/// # Errors
/// Those of [`Plan::make`].
pub fn plan<'r>(
    rules: &'r RuleSet,
    query: &Query<'_>,
    modes: Modes,
    now: Time,
) -> Result<Plan<'r>, InvalidRequest> {
    let mut plan = Plan::default();
    plan.make(rules, query, modes, now)?;
    Ok(plan)
}

impl<'r> Plan<'r> {
    /// Makes an empty plan that of a request: where it stays, since it is large to move.
    ///
    /// # Errors
    /// [`InvalidRequest`], for what cannot be counted. In an unknown domain nothing is counted, so
    /// nothing is invalid.
    pub(crate) fn make(
        &mut self,
        rules: &'r RuleSet,
        query: &Query<'_>,
        modes: Modes,
        now: Time,
    ) -> Result<(), InvalidRequest> {
        let Some(domain) = rules.domain(query.domain) else {
            self.has_unmatched = true;
            self.steps.extend(query.descriptors.iter().map(|_| Step::NoRule));
            return Ok(());
        };
        let count = query.descriptors.len();
        let mut matches: SmallVec<[Matched<'r>; 2]> = SmallVec::with_capacity(count);
        for (index, descriptor) in query.descriptors.iter().enumerate() {
            matches.push(Matched::new(domain, descriptor, index)?);
        }
        self.domain_known = true;
        self.all_or_nothing = modes.all_or_nothing || domain.all_or_nothing;
        self.request.deadline = query.deadline;
        self.request.checks.reserve(count);
        self.steps.reserve(count);
        let mut planner = Planner {
            domain,
            query,
            modes,
            now,
            // The order does not matter: two rules that replace each other are both out, and one
            // that is replaced still replaces.
            replaced: matches.iter().flat_map(Matched::replaces).collect(),
            plan: self,
        };
        let mut settling = SmallVec::<[usize; 2]>::new();
        for (index, matched) in matches.iter().enumerate() {
            let step = if matched.settles() {
                settling.push(index);
                Step::NoRule
            } else {
                planner.step(index, matched)?
            };
            planner.plan.steps.push(step);
        }
        planner.join();
        // What is known afterwards is charged whatever other descriptors answer, so it comes after
        // them.
        for index in settling {
            planner.plan.steps[index] = planner.step(index, &matches[index])?;
        }
        Ok(())
    }
}

impl<'p, 'r> Counted<'p, 'r> {
    /// Its own limit. No values share the counter of a limit in the request.
    fn own(matched: &'p Matched<'r>, limit: &'p Limit) -> Self {
        let is_override = matched.stated.is_some();
        let hops: &[_] = if is_override { &[] } else { &matched.hops };
        Self { rule: matched.rule, further: None, limit, is_override, hops, entries: usize::MAX }
    }
}

impl<'r> Planner<'_, '_, 'r> {
    /// Adds the checks of a descriptor.
    fn step(&mut self, index: usize, matched: &Matched<'r>) -> Result<Step<'r>, InvalidRequest> {
        let is_replaced =
            |rule: &Rule| matched.stated.is_none() && self.replaced.contains(&*rule.name);
        Ok(match (matched.found, matched.limit()) {
            (Some(rule), _) if rule.is_chained() && !is_replaced(rule) => {
                self.chain(index, matched, rule)?
            }
            (_, Some(limit)) => match matched.rule {
                Some(rule) if is_replaced(rule) => Step::Replaced(rule),
                _ => {
                    let link = self.count(index, &Counted::own(matched, limit))?;
                    let check = &mut self.plan.request.checks[link.check];
                    // Leases admit no hits over the limit.
                    if let Some(lease) = matched.lease(limit).filter(|_| !link.passes) {
                        check.lease = Some(lease.clone());
                        // Hits that come back must be usable. The key stays: counts survive a
                        // change.
                        check.limit.over_limit_hits = OverLimitHits::Drop;
                    }
                    Step::Counted(link)
                }
            },
            (Some(rule), None) => Step::Unlimited(rule),
            (None, None) => {
                self.plan.has_unmatched = true;
                Step::NoRule
            }
        })
    }

    /// Adds the checks of all limits that decide a descriptor with this rule: those of the rules
    /// above first. Hits over limit are dropped where they are not admitted; a settlement is
    /// charged to all, each on its own.
    fn chain(
        &mut self,
        index: usize,
        matched: &Matched<'r>,
        rule: &'r Rule,
    ) -> Result<Step<'r>, InvalidRequest> {
        let (hops, last) = (&matched.hops, matched.hops.len() - 1);
        let first = self.plan.request.checks.len();
        let mut links = Vec::new();
        for (at, hop) in hops.iter().enumerate() {
            let level = hop.node.rule.as_deref();
            let applies = |level: &&Rule| {
                at == last || (rule.parents && !self.replaced.contains(&*level.name))
            };
            let Some(level) = level.filter(applies) else {
                continue;
            };
            // A limit in the request replaces the rule's own.
            let stated = matched.stated.as_deref().filter(|_| at == last);
            let counters = level.counters();
            let counters = counters.filter(|(further, ..)| stated.is_none() || further.is_some());
            let counters = counters.map(|(further, limit, _)| Counted {
                rule: Some(level),
                further,
                limit,
                is_override: false,
                hops: &hops[..=at],
                entries: at + 1,
            });
            let stated = stated.map(|limit| Counted::own(matched, limit));
            for counted in stated.into_iter().chain(counters) {
                let link = self.count(index, &counted)?;
                links.push(link);
                self.merge_last(&mut links);
            }
        }
        if links.is_empty() {
            return Ok(Step::Unlimited(rule));
        }
        for (check, link) in self.plan.request.checks[first..].iter_mut().zip(&links) {
            check.limit.chained = true;
            check.settles = rule.settles() || link.passes;
            check.limit.over_limit_hits =
                if check.settles { OverLimitHits::Count } else { OverLimitHits::Drop };
            if links.len() > 1 && !rule.settles() {
                check.group = u16::try_from(index + 1).unwrap_or(u16::MAX);
            }
        }
        Ok(Step::Chain { rule, links: links.into() })
    }

    /// All or nothing of the checks so far.
    fn join(&mut self) {
        if self.plan.all_or_nothing && self.plan.request.checks.len() > 1 {
            for check in &mut self.plan.request.checks {
                check.group = 1;
            }
        }
    }

    /// Adds the check of a limit.
    fn count(
        &mut self,
        index: usize,
        counted: &Counted<'_, 'r>,
    ) -> Result<Link<'r>, InvalidRequest> {
        let &Counted { rule, further, limit, is_override, hops, .. } = counted;
        // Whose shadow_mode, quota_mode, names and keys apply: no rule's to a limit in a request,
        // as in envoyproxy/ratelimit.
        let own = rule.filter(|_| !is_override);
        let descriptor = &self.query.descriptors[index];
        let entries = &descriptor.entries[..counted.entries.min(descriptor.entries.len())];
        let stated;
        let tail = match (further, own) {
            (Some(further), _) => &further.key_tail,
            (None, Some(rule)) => &rule.key_tail,
            (None, None) => {
                stated = KeyTail::new(self.domain.key_head.format(), limit, 1);
                &stated
            }
        };
        let key_entries = || counted_by(entries, hops, rule);
        let tagged = rule.map_or(0, |rule| rule.tagged_entries);
        let key = key::counter_key(&self.domain.key_head, key_entries(), tagged, tail);
        let mut check = Check::new(key, *limit, descriptor.hits);
        if further.is_none() && rule.is_some_and(Rule::names_holders) {
            check.holder = Some(holder(descriptor, index)?);
            check.hits = match check.hits {
                Hits::Add(_) => Hits::Add(1),
                Hits::Refund(_) => Hits::Refund(1),
                Hits::Peek => Hits::Peek,
            };
        }
        let domain = &self.domain.name;
        let enforced = rule.is_none_or(|rule| rule.enforced_share.includes(domain, key_entries()));
        let in_shadow = self.modes.shadow || !enforced || own.is_some_and(|rule| rule.shadow_mode);
        let is_quota = self.modes.quota || own.is_some_and(|rule| rule.quota_mode);
        let passes = in_shadow || is_quota || rule.is_some_and(Rule::degrades);
        check.enforcing = !passes && !matches!(descriptor.hits, Hits::Refund(_));
        // Hits over the limit that pass are usage.
        check.settles = passes || rule.is_some_and(Rule::counts_over_limit);
        if passes && !limit.algorithm.counts_holders() {
            check.limit.over_limit_hits = OverLimitHits::Count;
        }
        // A queue is only at the end of a chain.
        if !in_shadow && entries.len() == descriptor.entries.len() {
            check.book_ahead = self.book_ahead(limit);
        }
        // A slot must not be booked for a request that another limit rejects.
        self.plan.all_or_nothing |=
            check.book_ahead > Span::ZERO && matches!(check.hits, Hits::Add(_));
        let metric_name = match own {
            Some(rule) => (rule.naming != Naming::Fixed)
                .then(|| metric_name::of_rule(self.domain, entries, hops, rule)),
            None => Some(metric_name::of_override(self.domain, key_entries())),
        };
        Ok(Link {
            rule,
            further,
            is_override,
            check: self.push(check)?,
            entries: entries.len(),
            enforced,
            passes,
            key_format: tail.format(),
            metric_name: metric_name.map(String::into_boxed_str),
        })
    }

    /// A limit in the request and the last of the rule may have one counter: the lower decides.
    fn merge_last(&mut self, links: &mut Vec<Link<'r>>) {
        let checks = &mut self.plan.request.checks;
        let (Some((_, others)), Some(check)) = (links.split_last(), checks.last()) else {
            return;
        };
        let is_same = |link: &Link<'_>| link.is_override && checks[link.check].key == check.key;
        let Some(own) = others.iter().position(is_same) else {
            return;
        };
        let stated = others[own].check;
        let rate = |check: &Check| (check.limit.requests, check.limit.capacity);
        let is_lower = rate(check) < rate(&checks[stated]);
        if let (Some(link), Some(check), true) = (links.pop(), checks.pop(), is_lower) {
            links[own] = Link { check: stated, ..link };
            checks[stated] = check;
        }
    }

    /// Adds a check. Returns its index.
    fn push(&mut self, check: Check) -> Result<usize, InvalidRequest> {
        let checks = &mut self.plan.request.checks;
        if checks.len() == CHECKS_MAX {
            return Err(InvalidRequest(format!(
                "more than the {CHECKS_MAX} checks that one request may have (checks_max): one for each limit of each descriptor and of the levels above; send fewer descriptors"
            )));
        }
        checks.push(check);
        Ok(checks.len() - 1)
    }

    /// The longest delay of the call: `max_wait` of the limit, at most until the caller's deadline.
    /// A peek books nothing; its verdict says whether hits would be held back.
    fn book_ahead(&self, limit: &Limit) -> Span {
        let max_wait = limit.max_wait;
        self.query.deadline.map_or(max_wait, |deadline| max_wait.min(deadline.since(self.now)))
    }
}

/// The name of the holder that takes or releases a slot: the value of the last entry.
fn holder(descriptor: &Descriptor<'_>, index: usize) -> Result<Box<[u8]>, InvalidRequest> {
    let last = descriptor.entries.last().expect("a rule was met by its last entry");
    if last.value.is_empty() {
        return Err(InvalidRequest(format!(
            "descriptors[{index}] has no value for {}, which names the holder of a slot; send one that no other request has",
            Text(last.key)
        )));
    }
    Ok(key::holder(last.value))
}

#[cfg(test)]
mod tests;
