//! The latest responses of OVER_LIMIT and warnings, for readers of the admin listener.
//!
//! Without a reader a response costs one load of an atomic. The first [`EVENTS_PER_SECOND_MAX`] of
//! a second of each type are sent to all readers; a reader that is [`EVENTS_MAX`] behind loses the
//! oldest.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;
use tokio::sync::broadcast::{self, error::RecvError};

use crate::base::sampling::PerSecond;
use crate::base::text::{Text, prefix};
use crate::base::time::{Span, Time};
use crate::limits::check::{Check, Verdict};
use crate::operator::observe::redact::{Redacted, Values};
use crate::report::json;
use crate::report::top::{EventType, OverLimitEvent};
use crate::rules::{Descriptor, Link, Query, RuleSet};
use crate::telemetry::metric::{Counter, Metrics};

/// Events of `/api/v1/over-limit` of one type in a second.
// bound events_per_second_max: the event is lost; tollgate_over_limit_events_dropped_total
const EVENTS_PER_SECOND_MAX: u32 = 10;
/// Events that wait for the slowest reader.
// bound events_max: the event is lost; tollgate_over_limit_events_dropped_total
const EVENTS_MAX: usize = 64;
/// Bytes of a key, a value or a domain in an event.
const PART_BYTES_MAX: usize = 256;
/// Entries of a descriptor in an event.
const ENTRIES_MAX: usize = 32;

/// The feed of the process. Clones share it.
#[derive(Debug, Clone)]
pub struct OverLimitFeed(Arc<Shared>);

/// A response of OVER_LIMIT, or a crossed threshold.
#[derive(Debug)]
pub(crate) struct Event<'o, 'q> {
    pub(crate) rules: &'o RuleSet,
    pub(crate) domain: &'q [u8],
    pub(crate) descriptor: &'o Descriptor<'q>,
    /// The limit that decided it, or whose threshold was crossed.
    pub(crate) link: &'o Link<'o>,
    pub(crate) check: &'o Check,
    pub(crate) verdict: &'o Verdict,
    /// `None` for a response of OVER_LIMIT.
    pub(crate) crossing: Option<Crossing>,
    pub(crate) now: Time,
}

/// A threshold that a request has crossed, and what is used since, in percent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Crossing {
    pub(crate) threshold_percent: u8,
    pub(crate) used_percent: u64,
}

/// A reader of the feed.
#[derive(Debug)]
pub(crate) struct Reader {
    shared: Arc<Shared>,
    events: broadcast::Receiver<Arc<str>>,
}

#[derive(Debug)]
struct Shared {
    readers: AtomicUsize,
    /// By type.
    seconds: [Mutex<PerSecond>; EventType::ALL.len()],
    /// Events with values as they are, and redacted ones.
    clear: broadcast::Sender<Arc<str>>,
    redacted: broadcast::Sender<Arc<str>>,
    /// The name of this process.
    replica: Box<str>,
    /// What readers without a token see.
    values: Values,
    dropped: Counter,
}

impl OverLimitFeed {
    /// Registers the metric. Events have the name of this process, and `values` for readers without
    /// a token.
    pub fn new(replica: &str, values: Values, metrics: &Metrics) -> Self {
        Self(Arc::new(Shared {
            replica: replica.into(),
            readers: AtomicUsize::new(0),
            seconds: <[Mutex<PerSecond>; EventType::ALL.len()]>::default(),
            clear: broadcast::Sender::new(EVENTS_MAX),
            redacted: broadcast::Sender::new(EVENTS_MAX),
            values,
            dropped: metrics.counter(
                "tollgate_over_limit_events_dropped_total",
                "Events that readers of /api/v1/over-limit did not get: more than 10 of their type in a second (events_per_second_max), or the reader was slow (events_max).",
            ),
        }))
    }

    /// A reader of the events from now on, for a caller that sees values this way.
    pub(crate) fn read(&self, values: Values) -> Reader {
        self.0.readers.fetch_add(1, Relaxed);
        let events = match values {
            Values::Clear => &self.0.clear,
            Values::Dropped => &self.0.redacted,
        };
        Reader { events: events.subscribe(), shared: self.0.clone() }
    }

    pub(crate) fn is_read(&self) -> bool {
        self.0.readers.load(Relaxed) > 0
    }

    /// Sends an event to the readers.
    pub(crate) fn send(&self, event: &Event<'_, '_>) {
        let shared = &*self.0;
        let second = &shared.seconds[event.r#type() as usize];
        let admitted = second.lock().admit(event.now, EVENTS_PER_SECOND_MAX);
        if admitted.is_none() {
            return shared.dropped.inc();
        }
        // A send fails if the last reader has left.
        if shared.clear.receiver_count() > 0 {
            let _ = shared.clear.send(shared.json(&event.query(), event));
        }
        if shared.redacted.receiver_count() > 0 {
            let json = self.redacted(event, |query| shared.json(query, event));
            let _ = shared.redacted.send(json);
        }
    }

    /// Shows the request of an event as ADMIN_REDACT says.
    pub(crate) fn redacted<T>(
        &self,
        event: &Event<'_, '_>,
        show: impl FnOnce(&Query<'_>) -> T,
    ) -> T {
        self.redacted_query(&event.query(), event.rules, show)
    }

    /// Shows a request as ADMIN_REDACT says, with these rules in force.
    pub(crate) fn redacted_query<T>(
        &self,
        query: &Query<'_>,
        rules: &RuleSet,
        show: impl FnOnce(&Query<'_>) -> T,
    ) -> T {
        match self.0.values {
            Values::Clear => show(query),
            Values::Dropped => show(&Redacted::of(query, rules).query()),
        }
    }
}

impl<'q> Event<'_, 'q> {
    fn r#type(&self) -> EventType {
        match self.crossing {
            None => EventType::OverLimit,
            Some(_) => EventType::Warning,
        }
    }

    fn query(&self) -> Query<'q> {
        let mut descriptor = self.descriptor.clone();
        descriptor.entries.truncate(ENTRIES_MAX);
        Query::of(self.domain, descriptor)
    }
}

impl Shared {
    /// An event of a request with one descriptor: one line of JSON.
    fn json(&self, query: &Query<'_>, event: &Event<'_, '_>) -> Arc<str> {
        let shown = |bytes: &[u8]| prefix(&Text(bytes).shown(), PART_BYTES_MAX).to_owned();
        let entries = query.descriptors.iter().flat_map(|one| &one.entries);
        let verdict = event.verdict;
        let crossing = event.crossing;
        json(&OverLimitEvent {
            r#type: event.r#type(),
            replica: &self.replica,
            time: event.now.to_rfc3339_millis(),
            domain: shown(query.domain),
            rule: &event.link.path(),
            descriptor: entries.map(|entry| [shown(entry.key), shown(entry.value)]).collect(),
            limit_name: event.link.name(),
            limit: event.check.limit.to_string(),
            used_percent: crossing.map(|crossing| crossing.used_percent),
            threshold_percent: crossing.map(|crossing| crossing.threshold_percent),
            retry_after_seconds: verdict.retry_after.map(Span::ceil_secs),
            source: verdict.source,
        })
        .into()
    }
}

impl Reader {
    /// The next event, or `None` at the end of the process.
    pub(crate) async fn next(&mut self) -> Option<Arc<str>> {
        loop {
            match self.events.recv().await {
                Ok(event) => return Some(event),
                Err(RecvError::Lagged(events)) => self.shared.dropped.inc_by(events),
                Err(RecvError::Closed) => return None,
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.readers.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use serde_json::json;

    use super::*;
    use crate::base::time::Span;
    use crate::limits::check::Source;
    use crate::rules::plan::{Modes, plan};
    use crate::rules::tree::tests::rules_of;

    const RULES: &str = "
domain: d
descriptors:
  - {key: plan, value: free, descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 5}}]}
";

    fn at(secs: u64) -> Time {
        Time::from_micros(1_700_000_000_000_000).plus(Span::from_secs(secs))
    }

    fn feed(values: Values) -> OverLimitFeed {
        OverLimitFeed::new("a", values, &Metrics::new())
    }

    fn send(feed: &OverLimitFeed, user: &str, now: Time) {
        let rules = rules_of(RULES);
        let user = format!("user={user}");
        let query = Query::of_entries("d", ["plan=free", &*user]).expect("two entries");
        let plan = plan(&rules, &query, Modes::default(), now).expect("it is valid");
        let link = &plan.steps[0].links()[0];
        let descriptor = &query.descriptors[0];
        if feed.is_read() {
            feed.send(&Event {
                rules: &rules,
                domain: query.domain,
                descriptor,
                link,
                check: &plan.request.checks[link.check],
                verdict: &Verdict {
                    retry_after: Some(Span::from_micros(1_500_000)),
                    source: Source::Lease,
                    ..Verdict::default()
                },
                crossing: None,
                now,
            });
        }
    }

    fn next(reader: &mut Reader) -> Option<serde_json::Value> {
        let event = reader.next().now_or_never()??;
        assert!(!event.contains('\n'), "{event}");
        Some(serde_json::from_str(&event).expect("it is JSON"))
    }

    #[test]
    fn events_have_domain_rule_and_descriptor() {
        let feed = feed(Values::Clear);
        send(&feed, "before", at(0));
        let mut reader = feed.read(Values::Dropped);
        send(&feed, "a\nb", at(0));
        let expected = json!({
            "type": "over_limit", "replica": "a", "time": "2023-11-14T22:13:20.000Z", "domain": "d", "rule": "d.plan_free.user",
            "descriptor": [["plan", "free"], ["user", "a\nb"]],
            "limit": "5 per day, fixed_window, over-limit hits count", "retry_after_seconds": 2, "source": "lease",
        });
        assert_eq!(next(&mut reader), Some(expected));
        assert_eq!(next(&mut reader), None);
        assert_eq!(feed.0.dropped.get(), 0);
    }

    #[test]
    fn redacted_readers_see_values_of_rules_only() {
        let feed = feed(Values::Dropped);
        let mut reader = feed.read(Values::Dropped);
        let mut clear = feed.read(Values::Clear);
        send(&feed, "ann", at(0));
        let event = next(&mut clear).expect("an event");
        assert_eq!(event["descriptor"][1], json!(["user", "ann"]));
        let event = next(&mut reader).expect("an event");
        assert_eq!(event["descriptor"], json!([["plan", "free"], ["user", ""]]));
    }

    #[test]
    fn events_beyond_ten_a_second_are_dropped() {
        let feed = feed(Values::Clear);
        let mut reader = feed.read(Values::Dropped);
        for _ in 0..25 {
            send(&feed, "ann", at(0));
        }
        send(&feed, "bob", at(1));
        let received = std::iter::from_fn(|| next(&mut reader)).count();
        assert_eq!((received, feed.0.dropped.get()), (11, 15));
    }

    #[test]
    fn slow_reader_loses_the_oldest_events() {
        let feed = feed(Values::Clear);
        let mut slow = feed.read(Values::Dropped);
        let mut fast = feed.read(Values::Dropped);
        let events = EVENTS_MAX as u64 + 6;
        for second in 0..events {
            send(&feed, &second.to_string(), at(second));
            assert!(next(&mut fast).is_some());
        }
        let first = next(&mut slow).expect("an event");
        assert_eq!(first["descriptor"][1][1], "6");
        let rest = std::iter::from_fn(|| next(&mut slow)).count();
        assert_eq!((rest, feed.0.dropped.get()), (EVENTS_MAX - 1, 6));
    }
}
