//! The latest responses of OVER_LIMIT, for readers of the admin listener.
//!
//! Without a reader a response costs one load of an atomic. Readers with the same [`Filter`] share a
//! channel: the first [`EVENTS_PER_SECOND_MAX`] events of a second that the filter includes are sent
//! to all of them, and a reader that is [`EVENTS_MAX`] behind loses the oldest.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;
use tokio::sync::broadcast::{self, error::RecvError};

use crate::base::sampling::PerSecond;
use crate::base::text::{Text, prefix};
use crate::base::time::{Span, Time};
use crate::check::DecidedBy;
use crate::limit::Limit;
use crate::observe::redact::Redaction;
use crate::report::json;
use crate::report::top::{EVENT_ENTRIES_MAX, OverLimitEvent};
use crate::rules::{Descriptor, Query, RuleSet, Step};
use crate::telemetry::metric::{Counter, Metrics};

/// Events of a filter in a second.
// bound events_per_second_max: the event is lost; tollgate_over_limit_events_dropped_total
pub(crate) const EVENTS_PER_SECOND_MAX: u32 = 10;
/// Events that wait for the slowest reader.
// bound events_max: the event is lost; tollgate_over_limit_events_dropped_total
const EVENTS_MAX: usize = 64;
/// Filters of all readers that differ: each response of OVER_LIMIT is compared with all of them.
// bound event_filters_max: the request of a reader with another one is answered with 503; -
const FILTERS_MAX: usize = 8;
/// Bytes of a key, a value or a domain in an event.
// bound event_part_bytes_max: truncated; -
const PART_BYTES_MAX: usize = 256;

/// The feed of the process. Clones share it.
#[derive(Debug, Clone)]
pub struct OverLimitFeed(Arc<Shared>);

/// A response of OVER_LIMIT.
#[derive(Debug)]
pub(crate) struct OverLimit<'o, 'q> {
    pub(crate) rules: &'o RuleSet,
    pub(crate) domain: &'q [u8],
    pub(crate) descriptor: &'o Descriptor<'q>,
    /// The step that decided it.
    pub(crate) step: &'o Step<'o>,
    pub(crate) limit: Limit,
    /// `None` is never.
    pub(crate) retry_after: Option<Span>,
    pub(crate) decided_by: DecidedBy,
    pub(crate) now: Time,
}

/// What a reader wants to read. The default is everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    pub(crate) domain: Option<Vec<u8>>,
    /// The path of a rule.
    pub(crate) rule: Option<String>,
    /// `KEY` or `KEY=VALUE` of an entry, as it was sent.
    pub(crate) entry: Option<Vec<u8>>,
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
    channels: Mutex<Vec<Channel>>,
    /// The name of this process.
    replica: Box<str>,
    /// `None` sends values as they are.
    redaction: Option<Arc<Redaction>>,
    dropped: Counter,
}

/// The readers with the same filter.
#[derive(Debug)]
struct Channel {
    filter: Filter,
    second: PerSecond,
    events: broadcast::Sender<Arc<str>>,
}

impl OverLimitFeed {
    /// Registers the metric. Events have the name of this process; without a redaction they have
    /// values as they are.
    pub fn new(replica: &str, redaction: Option<Arc<Redaction>>, metrics: &Metrics) -> Self {
        Self(Arc::new(Shared {
            replica: replica.into(),
            readers: AtomicUsize::new(0),
            channels: Mutex::default(),
            redaction,
            dropped: metrics.counter(
                "tollgate_over_limit_events_dropped_total",
                "Over-limit events that readers of /api/v1/over-limit did not get: more than 10 in a second (events_per_second_max), or the reader was slow (events_max).",
            ),
        }))
    }

    /// A reader of the events from now on; `None` if there are too many other filters.
    pub(crate) fn read(&self, filter: Filter) -> Option<Reader> {
        let mut channels = self.0.channels.lock();
        channels.retain(|channel| channel.events.receiver_count() > 0);
        let known = channels.iter().find(|channel| channel.filter == filter);
        let events = match known {
            Some(channel) => channel.events.subscribe(),
            None if channels.len() == FILTERS_MAX => return None,
            None => {
                let (sender, events) = broadcast::channel(EVENTS_MAX);
                channels.push(Channel {
                    filter,
                    second: PerSecond::default(),
                    events: sender,
                });
                events
            }
        };
        self.0.readers.fetch_add(1, Relaxed);
        let shared = self.0.clone();
        Some(Reader { shared, events })
    }

    pub(crate) fn is_read(&self) -> bool {
        self.0.readers.load(Relaxed) > 0
    }

    /// Sends a response of OVER_LIMIT to the readers whose filter includes it.
    pub(crate) fn send(&self, over: &OverLimit<'_, '_>) {
        let shared = &*self.0;
        // Made for the first channel that needs it.
        let mut event = None;
        for channel in &mut *shared.channels.lock() {
            if channel.events.receiver_count() == 0 || !channel.filter.includes(over) {
                continue;
            }
            let admitted = channel.second.admit(over.now, EVENTS_PER_SECOND_MAX);
            if admitted.is_none() {
                shared.dropped.inc();
                continue;
            }
            let event = event.get_or_insert_with(|| Arc::<str>::from(shared.shown(over)));
            // The last reader may have left.
            let _ = channel.events.send(event.clone());
        }
    }
}

impl Filter {
    fn includes(&self, over: &OverLimit<'_, '_>) -> bool {
        let has = |wanted: &[u8]| {
            let mut entries = over.descriptor.entries.iter();
            entries.any(|entry| match wanted.strip_prefix(entry.key) {
                Some([]) => true,
                Some([b'=', value @ ..]) => value == entry.value,
                _ => false,
            })
        };
        let is_domain = |domain: &Vec<u8>| domain == over.domain;
        let is_rule = |rule: &String| over.step.path().as_deref() == Some(rule);
        self.domain.as_ref().is_none_or(is_domain)
            && self.rule.as_ref().is_none_or(is_rule)
            && self.entry.as_deref().is_none_or(has)
    }
}

impl Shared {
    /// An event with values as readers may see them: one line of JSON.
    fn shown(&self, over: &OverLimit<'_, '_>) -> String {
        let mut descriptor = over.descriptor.clone();
        descriptor.entries.truncate(EVENT_ENTRIES_MAX);
        let query = Query {
            domain: over.domain,
            descriptors: [descriptor].into_iter().collect(),
            ..Query::default()
        };
        match &self.redaction {
            None => self.event(&query, over),
            Some(redaction) => self.event(&redaction.of(&query, over.rules).query(), over),
        }
    }

    /// An event of a request with one descriptor.
    fn event(&self, query: &Query<'_>, over: &OverLimit<'_, '_>) -> String {
        let shown = |bytes: &[u8]| prefix(&Text(bytes).shown(), PART_BYTES_MAX).to_owned();
        let entries = query.descriptors.iter().flat_map(|one| &one.entries);
        json(&OverLimitEvent {
            replica: self.replica.to_string(),
            time: over.now.to_rfc3339_millis(),
            domain: shown(query.domain),
            // A step without a rule decides nothing.
            rule: over.step.path().unwrap_or_default().to_string(),
            descriptor: entries
                .map(|entry| [shown(entry.key), shown(entry.value)])
                .collect(),
            limit: over.limit.to_string(),
            retry_after_seconds: over.retry_after.map(Span::ceil_secs),
            decided_by: over.decided_by,
        })
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

    fn feed(redaction: Option<Redaction>) -> OverLimitFeed {
        OverLimitFeed::new("a", redaction.map(Arc::new), &Metrics::new())
    }

    fn read(feed: &OverLimitFeed) -> Reader {
        feed.read(Filter::default()).expect("there is one filter")
    }

    fn send(feed: &OverLimitFeed, user: &str, now: Time) {
        let rules = rules_of(RULES);
        let user = format!("user={user}");
        let query = Query::of_entries("d", ["plan=free", &*user]).expect("two entries");
        let plan = plan(&rules, &query, Modes::default(), now).expect("it is valid");
        feed.send(&OverLimit {
            rules: &rules,
            domain: query.domain,
            descriptor: &query.descriptors[0],
            step: &plan.steps[0],
            limit: plan.request.checks[0].limit,
            retry_after: Some(Span::from_micros(1_500_000)),
            decided_by: DecidedBy::Memory,
            now,
        });
    }

    fn next(reader: &mut Reader) -> Option<serde_json::Value> {
        let event = reader.next().now_or_never()??;
        assert!(!event.contains('\n'), "{event}");
        Some(serde_json::from_str(&event).expect("it is JSON"))
    }

    #[test]
    fn events_have_domain_rule_and_descriptor() {
        let feed = feed(None);
        send(&feed, "before", at(0));
        let mut reader = read(&feed);
        send(&feed, "a\nb", at(0));
        let expected = json!({
            "replica": "a", "time": "2023-11-14T22:13:20.000Z", "domain": "d", "rule": "d.plan_free.user",
            "descriptor": [["plan", "free"], ["user", "a\nb"]],
            "limit": "5 per day, fixed_window", "retry_after_seconds": 2, "decided_by": "memory",
        });
        assert_eq!(next(&mut reader), Some(expected));
        assert_eq!(next(&mut reader), None);
        assert_eq!(feed.0.dropped.get(), 0);
    }

    #[test]
    fn values_are_redacted_except_for_those_of_rules() {
        let user = |redaction, user: &str| {
            let feed = feed(Some(redaction));
            let mut reader = read(&feed);
            send(&feed, user, at(0));
            let event = next(&mut reader).expect("an event");
            assert_eq!(event["descriptor"][0], json!(["plan", "free"]));
            event["descriptor"][1][1].as_str().map(str::to_owned)
        };
        assert_eq!(user(Redaction::dropping(), "ann").as_deref(), Some(""));
        let hashed = user(Redaction::hashing(None), "ann").expect("a hash");
        assert!(hashed.len() == 16 && hashed != "ann", "{hashed}");
    }

    #[test]
    fn events_beyond_ten_a_second_are_dropped() {
        let feed = feed(None);
        let mut reader = read(&feed);
        for _ in 0..25 {
            send(&feed, "ann", at(0));
        }
        send(&feed, "bob", at(1));
        let received = std::iter::from_fn(|| next(&mut reader)).count();
        assert_eq!((received, feed.0.dropped.get()), (11, 15));
    }

    #[test]
    fn slow_reader_loses_the_oldest_events() {
        let feed = feed(None);
        let (mut slow, mut fast) = (read(&feed), read(&feed));
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

    #[test]
    fn filtered_reader_gets_its_events_although_others_exceed_the_rate() {
        let feed = feed(None);
        let filter = |domain: &str, rule: &str, entry: &str| {
            let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
            Filter {
                domain: some(domain).map(String::into_bytes),
                rule: some(rule),
                entry: some(entry).map(String::into_bytes),
            }
        };
        let read = |filter| feed.read(filter).expect("there are few filters");
        let wanted = [
            filter("d", "", "user=bob"),
            filter("d", "d.plan_free.user", "user=bob"),
        ];
        let mut wanted = wanted.map(read);
        let unwanted = [
            filter("other", "", "user=bob"),
            filter("", "d.user", "user=bob"),
            filter("", "", "user=bo"),
            filter("", "", "use=bob"),
            filter("", "", "bob"),
        ];
        let mut unwanted = unwanted.map(read);
        let mut of_key = read(filter("", "", "user"));
        for _ in 0..25 {
            send(&feed, "ann", at(0));
        }
        send(&feed, "bob", at(0));
        for reader in &mut wanted {
            let event = next(reader).expect("an event");
            assert_eq!(event["descriptor"][1][1], "bob");
            assert_eq!(next(reader), None);
        }
        assert!(unwanted.iter_mut().all(|reader| next(reader).is_none()));
        let of_key = std::iter::from_fn(|| next(&mut of_key)).count();
        assert_eq!(of_key, 10);

        assert!(feed.read(Filter::default()).is_none(), "event_filters_max");
        drop(wanted);
        assert!(feed.read(Filter::default()).is_some());
    }
}
