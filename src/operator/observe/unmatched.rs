//! Descriptors that no rule matches, by domain and keys: what a misspelled domain or key looks
//! like.
//!
//! Only calls with such a descriptor come here. Clients choose its keys, so the table is bounded:
//! the row with the fewest gives way to a new one.

use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashMap};
use parking_lot::Mutex;

use crate::base::text::{Text, nearest, prefix};
use crate::base::time::{Span, Time};
use crate::operator::observe::top_keys::entries::Entries;
use crate::rules::unmatched::why_no_rule;
use crate::rules::{Descriptor, Entry, Query, RuleSet, Step};
use crate::telemetry::metric::{Counter, Metrics};

/// Combinations of a domain and keys that are kept.
// bound unmatched_rows_max: one with the fewest descriptors is replaced;
// tollgate_unmatched_rows_replaced_total
const ROWS_MAX: usize = 100;
/// Entries of a descriptor that are kept, of up to 512 bytes each.
const ENTRIES_MAX: usize = 8;
/// Bytes of a domain that are kept.
const DOMAIN_BYTES_MAX: usize = 256;
/// Rows without a descriptor for this time are not shown.
const SHOWN_FOR: Span = Span::from_secs(3_600);
/// The time between two log lines about unknown domains.
const WARN_INTERVAL: Span = Span::from_secs(60);

/// The unmatched descriptors of the process. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Unmatched(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    kept: Mutex<Kept>,
    hasher: DefaultHashBuilder,
    replaced: Counter,
}

#[derive(Debug, Default)]
struct Kept {
    /// By the hash of domain and keys.
    rows: HashMap<u64, Row>,
    warned: Option<Time>,
    /// Calls for an unknown domain since then.
    unknown_calls: u64,
}

#[derive(Debug, Clone)]
struct Row {
    domain: Box<[u8]>,
    /// Of the first of them. Its values are never shown.
    entries: Entries,
    descriptors: u64,
    last: Time,
}

/// Descriptors with the same domain and keys.
#[derive(Debug)]
pub(crate) struct UnmatchedKeys {
    pub(crate) domain: String,
    /// Joined by commas.
    pub(crate) keys: String,
    /// With the nearest name of the rules, without values of clients.
    pub(crate) reason: String,
    pub(crate) descriptors: u64,
}

impl Unmatched {
    /// Registers the metric.
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Self(Arc::new(Shared {
            kept: Mutex::default(),
            hasher: DefaultHashBuilder::default(),
            replaced: metrics.counter(
                "tollgate_unmatched_rows_replaced_total",
                "Domains with keys that no rule matches that the console forgot for others, because there were too many (unmatched_rows_max).",
            ),
        }))
    }

    /// Records the descriptors of a call without a rule.
    pub(crate) fn record(&self, query: &Query<'_>, steps: &[Step<'_>], now: Time) {
        let steps = query.descriptors.iter().zip(steps);
        let mut kept = self.0.kept.lock();
        for (descriptor, _) in steps.filter(|(_, step)| matches!(step, Step::NoRule)) {
            let hash = self.hash(query.domain, descriptor);
            if let Some(row) = kept.rows.get_mut(&hash) {
                row.descriptors += 1;
                row.last = now;
                continue;
            }
            if kept.rows.len() >= ROWS_MAX {
                self.0.replaced.inc();
                // One that is not shown any more, else the one with the fewest.
                let rank = |row: &Row| (now.since(row.last) < SHOWN_FOR, row.descriptors);
                let least = kept.rows.iter().min_by_key(|(_, row)| rank(row));
                let least = least.map(|(hash, _)| *hash);
                least.and_then(|hash| kept.rows.remove(&hash));
            }
            kept.rows.insert(hash, Row::new(query.domain, descriptor, now));
        }
    }

    /// Logs that calls for an unknown domain are not limited: a line a minute.
    pub(crate) fn warn_of_domain(&self, rules: &RuleSet, domain: &[u8], now: Time) {
        let mut kept = self.0.kept.lock();
        kept.unknown_calls += 1;
        if kept.warned.is_some_and(|warned| now.since(warned) < WARN_INTERVAL) {
            return;
        }
        kept.warned = Some(now);
        let calls = std::mem::take(&mut kept.unknown_calls);
        drop(kept);
        let domain = Text(domain).shown();
        let known = rules.domains();
        let nearest = nearest(&domain, known.iter().map(|known| &*known.name));
        let domain = prefix(&domain, DOMAIN_BYTES_MAX);
        tracing::warn!(domain, nearest, calls, "unknown domain: its calls are not limited");
    }

    /// What these rules did not match most in the last hour, the most frequent first. Each takes a
    /// look at up to 1,000 names.
    pub(crate) fn read(&self, rules: &RuleSet, now: Time, rows_max: usize) -> Vec<UnmatchedKeys> {
        let mut rows: Vec<Row> = self.0.kept.lock().rows.values().cloned().collect();
        rows.retain(|row| now.since(row.last) < SHOWN_FOR);
        rows.sort_by(|a, b| (b.descriptors, &a.domain).cmp(&(a.descriptors, &b.domain)));
        rows.iter().filter_map(|row| row.shown(rules)).take(rows_max).collect()
    }

    fn hash(&self, domain: &[u8], descriptor: &Descriptor<'_>) -> u64 {
        let mut hasher = self.0.hasher.build_hasher();
        let keys = descriptor.entries.iter().map(|entry| entry.key);
        for part in std::iter::once(domain).chain(keys) {
            hasher.write_usize(part.len());
            hasher.write(part);
        }
        hasher.finish()
    }
}

impl Row {
    fn new(domain: &[u8], descriptor: &Descriptor<'_>, now: Time) -> Self {
        let mut entries = Entries::default();
        entries.set(descriptor.entries.iter().take(ENTRIES_MAX).copied());
        let domain = domain[..domain.len().min(DOMAIN_BYTES_MAX)].into();
        Self { domain, entries, descriptors: 1, last: now }
    }

    /// `None` if there is a rule by now.
    fn shown(&self, rules: &RuleSet) -> Option<UnmatchedKeys> {
        let entries: Vec<Entry<'_>> = self.entries.iter().collect();
        let keys = entries.iter().map(|entry| Text(entry.key).shown());
        Some(UnmatchedKeys {
            domain: Text(&self.domain).shown().into_owned(),
            keys: keys.collect::<Vec<_>>().join(", "),
            reason: why_no_rule(rules, &self.domain, &Descriptor::new(entries))?,
            descriptors: self.descriptors,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::plan::{Modes, plan};
    use crate::rules::tree::tests::rules_of;

    const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: plan, value: free, rate_limit: {unit: day, requests_per_unit: 5}}
";

    fn record(unmatched: &Unmatched, rules: &RuleSet, domain: &str, entry: &str, now: Time) {
        let query = Query::of_entries(domain, [entry]).expect("an entry");
        let plan = plan(rules, &query, Modes::default(), now).expect("it is valid");
        unmatched.record(&query, &plan.steps, now);
    }

    #[test]
    fn keys_without_a_rule_are_counted_with_the_nearest_name() {
        let rules = rules_of(RULES);
        let unmatched = Unmatched::new(&Metrics::new());
        let now = Time::from_micros(1_700_000_000_000_000);
        for (domain, entry, times) in [
            ("shop", "usr=ann", 3),
            ("shop", "usr=bob", 1),
            ("shop", "plan=secret", 2),
            ("shopp", "user=ann", 1),
            ("shop", "user=ann", 9),
        ] {
            for _ in 0..times {
                record(&unmatched, &rules, domain, entry, now);
            }
        }
        let shown = |rules, now| {
            let rows = unmatched.read(rules, now, ROWS_MAX).into_iter();
            rows.map(|row| {
                format!("{} {} {} {}", row.domain, row.keys, row.descriptors, row.reason)
            })
            .collect::<Vec<_>>()
        };
        let expected = [
            "shop usr 4 no rule for key usr, nearest is user",
            "shop plan 2 no rule for this value of plan, nearest is free",
            "shopp user 1 no rule: unknown domain, nearest is shop",
        ];
        assert_eq!(shown(&rules, now), expected);
        let repaired = rules_of(&RULES.replace("key: user", "key: usr"));
        assert_eq!(shown(&repaired, now), expected[1..]);
        assert!(shown(&rules, now.plus(SHOWN_FOR)).is_empty());
    }

    #[test]
    fn unknown_domains_are_logged_once_a_minute() {
        let rules = rules_of(RULES);
        let unmatched = Unmatched::new(&Metrics::new());
        let start = Time::from_micros(1_700_000_000_000_000);
        for (secs, waiting) in [(0, 0), (1, 1), (59, 2), (60, 0), (119, 1)] {
            unmatched.warn_of_domain(&rules, b"shopp", start.plus(Span::from_secs(secs)));
            assert_eq!(unmatched.0.kept.lock().unknown_calls, waiting, "after {secs} s");
        }
    }

    #[test]
    fn frequent_keys_stay_among_many_others() {
        let rules = rules_of(RULES);
        let unmatched = Unmatched::new(&Metrics::new());
        let now = Time::default();
        for number in 0..ROWS_MAX * 3 {
            record(&unmatched, &rules, "shop", "usr=ann", now);
            record(&unmatched, &rules, "shop", &format!("k{number}=v"), now);
        }
        let rows = unmatched.read(&rules, now, ROWS_MAX);
        assert_eq!((rows.len(), &*rows[0].keys), (ROWS_MAX, "usr"));
        assert_eq!(rows[0].descriptors, ROWS_MAX as u64 * 3);
        assert_eq!(unmatched.0.replaced.get(), ROWS_MAX as u64 * 2 + 1);
    }
}
