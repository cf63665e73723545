//! `/api/v1/usage?rule=`: the usage of all keys of a rule in the current period.
//!
//! Redis walks through the names of its keys, which costs time of all its clients, so the walk
//! pauses: 19 times as long as it took. Usage is sorted, so nothing is sent before the end, and
//! until then a key takes no more memory than its name and its verdict.

use std::collections::HashMap;
use std::convert::Infallible;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use futures_util::future::try_join_all;
use futures_util::stream;
use http::{HeaderMap, HeaderName, StatusCode, header};
use tokio::sync::OwnedSemaphorePermit;

use crate::admin::api::answer::{JSON_TYPE, Rejected};
use crate::admin::api::counters::{Counters, no_rules};
use crate::admin::api::rule_keys::{RuleKeys, common_end};
use crate::admin::api::viewer::Viewer;
use crate::admin::query_string::Pairs;
use crate::base::text::Text;
use crate::base::time::{Span, Time};
use crate::check::{Key, Reading};
use crate::http::response_budget::RETRY_AFTER_SECS;
use crate::observe::redact::Values;
use crate::report::counter::{CountedIn, Entries};
use crate::report::json;
use crate::report::usage::{CSV_HEAD, LimitUsage};
use crate::rules::key::is_hash;
use crate::rules::{Descriptor, Entry, Query, RuleSet};

/// Keys of a list.
// bound usage_rows_max: the most used are kept, and the list is not complete; -
const ROWS_MAX: usize = 100_000;
/// Time that Redis reads keys for one list.
// bound usage_time_max: the list is not complete; -
const TIME_MAX: Span = Span::from_secs(60);
/// A pause is as many times as long as what it follows: a server has 5 % of its time for lists.
const PAUSES: u32 = 19;
/// Shorter pauses are added up. A timer may be 1 ms late: with pauses of 4 ms a list took 1.3 times
/// as long.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// Counters that are read at once.
const READ_AT_ONCE: usize = 64;
/// Rows that are written at once.
const WRITTEN_AT_ONCE: usize = 500;
/// Whether a list in CSV has all keys.
const COMPLETE: HeaderName = HeaderName::from_static("tollgate-complete");
const CSV_TYPE: &str = "text/csv; charset=utf-8";

/// The form of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Json,
    Csv,
}

/// A key of a rule.
struct Row {
    /// The index of its limit.
    limit: usize,
    /// Without the start of a window.
    key: Key,
    reading: Reading,
}

/// A list, until it is sent.
struct List {
    rules: Arc<RuleSet>,
    domain: String,
    rule: String,
    rows: Vec<Row>,
    is_complete: bool,
    /// When its periods were the current ones.
    at: Time,
    _permit: OwnedSemaphorePermit,
}

impl Form {
    /// As a client accepts it.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let accepted = headers
            .get(header::ACCEPT)
            .and_then(|accepted| accepted.to_str().ok());
        if accepted.is_some_and(|accepted| accepted.contains("text/csv")) {
            Self::Csv
        } else {
            Self::Json
        }
    }
}

impl Counters {
    /// The response to a GET: all keys of `rule`.
    pub(super) async fn list(
        self: Arc<Self>,
        replica: &str,
        pairs: &Pairs,
        viewer: Viewer,
        form: Form,
    ) -> Result<Response, Rejected> {
        let list = self.read_list(pairs).await?;
        let complete = if list.is_complete { "true" } else { "false" };
        let (content_type, head, end) = match form {
            Form::Csv => (CSV_TYPE, CSV_HEAD.to_owned(), String::new()),
            Form::Json => {
                let (replica, domain) = (json(&replica), json(&list.domain));
                let head = format!(r#"{{"replica":{replica},"domain":{domain},"limits":["#);
                (JSON_TYPE, head, format!(r#"],"complete":{complete}}}"#))
            }
        };
        let chunks = list.rows.len().div_ceil(WRITTEN_AT_ONCE);
        let rows = (0..chunks).map(move |chunk| {
            let rows = list
                .rows
                .chunks(WRITTEN_AT_ONCE)
                .nth(chunk)
                .unwrap_or_default();
            self.written(&list, rows, chunk == 0, &viewer, form)
        });
        let texts = [head].into_iter().chain(rows).chain([end]);
        let body = Body::from_stream(stream::iter(texts.map(Ok::<_, Infallible>)));
        let headers = [(header::CONTENT_TYPE, content_type), (COMPLETE, complete)];
        Ok((headers, body).into_response())
    }

    async fn read_list(&self, pairs: &Pairs) -> Result<List, Rejected> {
        let text = |name| Text(pairs.first(name)).shown().into_owned();
        let (domain, rule) = (text("domain"), text("rule"));
        let permit = self
            .listings
            .clone()
            .try_acquire_owned()
            .map_err(|_| busy())?;
        let rules = Option::clone(&self.rules.load()).ok_or_else(no_rules)?;
        let keys = RuleKeys::find(&rules, &domain, &rule).ok_or_else(no_rule)?;
        let redis = self.store().named().ok_or_else(in_memory)?;
        let (began, at) = (self.clock.now(), redis.scan_time());
        let ends = keys.ends(at);
        let mut scan = redis.scan(keys.start().as_bytes(), common_end(&ends));
        let (mut rows, mut new) = (HashMap::new(), Vec::new());
        let (mut is_complete, mut pause) = (true, Duration::ZERO);
        while let Some(found) = scan.next().await {
            let (names, took) = found.map_err(|error| unread(&error))?;
            let found_at = self.clock.now();
            new.extend(names.into_iter().filter_map(|name| {
                let (limit, key) = keys.limit_of(&name, &ends)?;
                (!rows.contains_key(&name)).then_some((name, limit, key))
            }));
            if new.len() >= READ_AT_ONCE {
                is_complete &= self.read_rows(&keys, &mut new, &mut rows).await?;
            }
            let now = self.clock.now();
            if now.since(began) >= TIME_MAX {
                is_complete = false;
                break;
            }
            // The reads of counters take less of the server than this.
            pause += (Duration::from(took) + Duration::from(now.since(found_at))) * PAUSES;
            if pause >= PAUSE_MIN {
                let left = TIME_MAX.less(now.since(began));
                tokio::time::sleep(pause.min(left.into())).await;
                pause = Duration::ZERO;
            }
        }
        is_complete &= self.read_rows(&keys, &mut new, &mut rows).await?;
        is_complete &= keep_most_used(&mut rows, ROWS_MAX);
        let mut rows: Vec<(Vec<u8>, Row)> = rows.into_iter().collect();
        let used = |row: &Row| std::cmp::Reverse(row.reading.verdict.used);
        rows.sort_unstable_by(|(a, row), (b, other)| (used(row), a).cmp(&(used(other), b)));
        Ok(List {
            rows: rows.into_iter().map(|(_, row)| row).collect(),
            rules: rules.clone(),
            domain,
            rule,
            is_complete,
            at,
            _permit: permit,
        })
    }

    /// Reads the counters of these names, each with the index of its limit, and takes them. Returns
    /// whether all rows were kept.
    async fn read_rows(
        &self,
        keys: &RuleKeys<'_>,
        new: &mut Vec<(Vec<u8>, usize, Key)>,
        rows: &mut HashMap<Vec<u8>, Row>,
    ) -> Result<bool, Rejected> {
        for some in mem::take(new).chunks(READ_AT_ONCE) {
            let now = self.clock.now();
            let read = some.iter().map(|(_, limit, key)| async {
                let check = keys.check(*limit, key.clone());
                self.store().peek(&check, now).await
            });
            let readings = try_join_all(read).await;
            let readings = readings.map_err(|error| unread(&error.error.to_string()))?;
            for ((name, limit, key), reading) in some.iter().zip(readings) {
                let row = Row {
                    limit: *limit,
                    key: key.clone(),
                    reading,
                };
                rows.insert(name.clone(), row);
            }
        }
        Ok(rows.len() < 2 * ROWS_MAX || keep_most_used(rows, ROWS_MAX))
    }

    fn written(
        &self,
        list: &List,
        rows: &[Row],
        is_first: bool,
        viewer: &Viewer,
        form: Form,
    ) -> String {
        let keys = RuleKeys::find(&list.rules, &list.domain, &list.rule);
        let usages = keys.iter().flat_map(|keys| {
            rows.iter().map(|row| {
                let check = keys.check(row.limit, row.key.clone());
                let (link, ..) = &keys.limits[row.limit];
                let usage = LimitUsage::new(link, &check, &row.reading, CountedIn::Redis, list.at);
                LimitUsage {
                    entries: keys
                        .entries(&row.key, row.limit)
                        .and_then(|entries| self.shown(list, &entries, viewer)),
                    ..usage
                }
            })
        });
        let mut text = String::new();
        for usage in usages {
            match form {
                Form::Csv => text += &usage.csv(&list.domain),
                Form::Json => {
                    let comma = if is_first && text.is_empty() { "" } else { "," };
                    text += comma;
                    text += &json(&usage);
                }
            }
        }
        text
    }

    /// Entries as the caller sees them.
    fn shown(&self, list: &List, entries: &[[Vec<u8>; 2]], viewer: &Viewer) -> Option<Entries> {
        let entries = entries.iter().map(|[key, value]| match viewer.values() {
            // It has no key that a list of all users would have to be hashed with.
            Values::Redacted if is_hash(key) => Entry::new(b"#", b""),
            _ => Entry::new(key, value),
        });
        let query = Query {
            domain: list.domain.as_bytes(),
            descriptors: [Descriptor::new(entries)].into_iter().collect(),
            ..Query::default()
        };
        self.top.entries_for(&query, viewer)
    }
}

/// Removes all rows but those with the most hits. Returns whether there are no more.
fn keep_most_used(rows: &mut HashMap<Vec<u8>, Row>, max: usize) -> bool {
    if rows.len() <= max {
        return true;
    }
    let used = |row: &Row| row.reading.verdict.used;
    let mut all: Vec<u64> = rows.values().map(used).collect();
    let (_, least, _) = all.select_nth_unstable_by(max - 1, |a, b| b.cmp(a));
    let least = *least;
    let mut ties = max - rows.values().filter(|row| used(row) > least).count();
    rows.retain(|_, row| {
        let is_tie = used(row) == least && ties > 0;
        ties -= usize::from(is_tie);
        used(row) > least || is_tie
    });
    false
}

fn busy() -> Rejected {
    let reason = "another list of keys is being made (usage_lists_max); repeat the request";
    Rejected::new(StatusCode::SERVICE_UNAVAILABLE, reason).retry_after(RETRY_AFTER_SECS)
}

fn no_rule() -> Rejected {
    let reason = "the domain has no rule of this path with limits; /rlconfig has the paths of all";
    Rejected::new(StatusCode::NOT_FOUND, reason)
}

fn in_memory() -> Rejected {
    let reason = "counters in memory have no names, so a rule's keys cannot be listed; use Redis, or write ?e=KEY%3DVALUE for one key";
    Rejected::new(StatusCode::NOT_IMPLEMENTED, reason)
}

fn unread(cause: &str) -> Rejected {
    let reason = format!("the keys could not be read: {cause}");
    Rejected::new(StatusCode::SERVICE_UNAVAILABLE, reason)
}
