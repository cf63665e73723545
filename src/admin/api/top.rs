//! `/api/v1/top`: the keys with the most hits of each rule.

use std::collections::{BTreeMap, HashMap};
use std::str::FromStr;
use std::sync::Arc;

use http::StatusCode;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio_util::task::TaskTracker;

use crate::admin::api::answer::Rejected;
use crate::admin::api::fleet::{Fleet, Replies};
use crate::admin::query_string::Pairs;
use crate::named_enum::named_enum;
use crate::redact::Redaction;
use crate::rules::stats::counts::HitCounts;
use crate::rules::{Descriptor, LiveRules, Query};
use crate::text::Text;
use crate::top_keys::windows::{By, Window};
use crate::top_keys::{RuleKeys, Selection, TOP_KEYS_MAX, TopKeys};

named_enum! {
    /// Whose hits are counted.
    pub enum Scope {
        /// Those of this process.
        Replica = "replica",
        /// Those of all processes whose heartbeats are known.
        Fleet = "fleet",
    }
}

/// Answers of `/api/v1/top` that are prepared at a time. The keys of thousands of rules take tens
/// of megabytes.
// bound top_queries_max: the next one waits; -
const QUERIES_MAX: usize = 4;

/// Answers which keys have the most hits.
#[derive(Debug)]
pub(crate) struct Top {
    pub(crate) keys: TopKeys,
    rules: Arc<LiveRules>,
    /// `None` shows values as they are.
    pub(crate) redaction: Option<Arc<Redaction>>,
    fleet: Fleet,
    queries: Arc<Semaphore>,
    tasks: TaskTracker,
}

/// What is asked for.
struct Asked {
    selection: Selection,
    window: Window,
    by: By,
    scope: Scope,
}

/// A key as it is shown: keys and values of its entries.
type Key = Vec<[String; 2]>;

/// Hits by domain and rule, and by key.
#[derive(Default)]
struct Sums(BTreeMap<(String, String), HashMap<Key, HitCounts>>);

/// Hits of this process, and the permit that counts them among those in memory.
#[derive(Default)]
struct Prepared {
    sums: Sums,
    query: Option<OwnedSemaphorePermit>,
}

impl Top {
    /// Without a redaction values are shown as they are.
    pub(crate) fn new(
        keys: TopKeys,
        rules: Arc<LiveRules>,
        redaction: Option<Arc<Redaction>>,
        fleet: Fleet,
    ) -> Self {
        Self {
            keys,
            rules,
            redaction,
            fleet,
            queries: Arc::new(Semaphore::new(QUERIES_MAX)),
            tasks: TaskTracker::new(),
        }
    }

    /// GET, with this query string: the JSON of an answer.
    pub(crate) async fn read(
        self: &Arc<Self>,
        replica: &str,
        query: &str,
    ) -> Result<String, Rejected> {
        let asked = Asked::read(query)?;
        let mut answer = json!({"replica": replica});
        let mut replies = Vec::new();
        let own = self.sums(asked.selection.clone(), asked.window);
        let own = if asked.scope == Scope::Replica {
            own.await
        } else {
            let path = asked.path();
            let (own, fleet) = tokio::join!(own, self.fleet.ask(&path, replica));
            let Replies { answers, missing } = fleet.ok_or_else(busy)?;
            let mut names = vec![replica.to_owned()];
            for (name, reply) in answers {
                names.push(name);
                replies.push(reply);
            }
            answer["replicas"] = names.into();
            answer["missing"] = missing.into();
            own
        };
        let show = move || {
            let Prepared { mut sums, query } = own;
            for reply in &replies {
                sums.add_answer(reply);
            }
            answer["rules"] = sums.shown(asked.by).into();
            (answer.to_string(), query)
        };
        let (json, _query) = spawn_blocking(show).await.unwrap_or_default();
        Ok(json)
    }

    /// The keys of one rule of this process.
    pub(crate) async fn of_rule(
        self: &Arc<Self>,
        selection: Selection,
        window: Window,
        by: By,
    ) -> Vec<Value> {
        let rules = self.sums(selection, window).await.sums.shown(by);
        let keys = rules.into_iter().next();
        keys.map_or_else(Vec::new, |rule| list(&rule["keys"]).to_vec())
    }

    /// The hits that this process counted, on other threads: keys may be many, and this one answers
    /// liveness probes. What was begun is finished, even if its request is cancelled meanwhile.
    async fn sums(self: &Arc<Self>, selection: Selection, window: Window) -> Prepared {
        let query = self.queries.clone().acquire_owned().await.ok();
        let top = self.clone();
        let prepare = async move {
            let read = top.keys.read(selection, window).await;
            let prepare = move || {
                let mut sums = Sums::default();
                for rule in &read {
                    top.add(&mut sums, rule);
                }
                Prepared { sums, query }
            };
            spawn_blocking(prepare).await.unwrap_or_default()
        };
        self.tasks.spawn(prepare).await.unwrap_or_default()
    }

    fn add(&self, sums: &mut Sums, rule: &RuleKeys) {
        let rules = self.rules.load();
        for key in &rule.keys {
            let query = Query {
                domain: rule.domain.as_bytes(),
                descriptors: [Descriptor::new(key.entries.iter())].into_iter().collect(),
                ..Query::default()
            };
            let shown = match (&self.redaction, rules.as_ref()) {
                (None, _) => key_of(&query),
                (Some(redaction), Some(rules)) => key_of(&redaction.of(&query, rules).query()),
                // The rules that counted it were withdrawn.
                (Some(_), None) => continue,
            };
            sums.add((&rule.domain, &rule.rule), shown, key.counts);
        }
    }
}

fn busy() -> Rejected {
    let reason = "other requests ask the fleet at this moment (fleet_queries_max); repeat it";
    Rejected::new(StatusCode::SERVICE_UNAVAILABLE, reason)
}

/// The key of a request with one descriptor.
fn key_of(query: &Query<'_>) -> Key {
    let entries = query.descriptors.iter().flat_map(|one| &one.entries);
    let shown = |bytes| Text(bytes).shown().into_owned();
    entries
        .map(|entry| [shown(entry.key), shown(entry.value)])
        .collect()
}

impl Asked {
    fn read(query: &str) -> Result<Self, Rejected> {
        let pairs = Pairs::new(query);
        let text = |name: &str| {
            let value = pairs.first(name);
            (!value.is_empty()).then(|| Text(value).shown().into_owned())
        };
        Ok(Self {
            selection: Selection {
                domain: text("domain"),
                rule: text("rule"),
            },
            window: one_of("window", text("window"), Window::Minute)?,
            by: one_of("by", text("by"), By::OverLimit)?,
            scope: one_of("scope", text("scope"), Scope::Replica)?,
        })
    }

    /// The same of one replica.
    fn path(&self) -> String {
        let (window, by) = (self.window.name(), self.by.name());
        let mut path = format!("/api/v1/top?window={window}&by={by}");
        let Selection { domain, rule } = &self.selection;
        for (name, value) in [("domain", domain), ("rule", rule)] {
            if let Some(value) = value {
                path += &format!("&{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC));
            }
        }
        path
    }
}

/// The value of a parameter that has a few.
fn one_of<T: FromStr<Err = String>>(
    name: &str,
    value: Option<String>,
    default: T,
) -> Result<T, Rejected> {
    let Some(value) = value else {
        return Ok(default);
    };
    value
        .parse()
        .map_err(|error| Rejected::bad_request(format!("{name} is {value:?}: {error}")))
}

impl Sums {
    fn add(&mut self, (domain, rule): (&str, &str), key: Key, counts: HitCounts) {
        let of_rule = self.0.entry((domain.to_owned(), rule.to_owned()));
        let of_key = of_rule.or_default().entry(key).or_default();
        of_key.add(counts);
    }

    /// Adds the answer of another replica. What is not in the form of one is left out.
    fn add_answer(&mut self, answer: &Value) {
        for rule in list(&answer["rules"]) {
            let (Some(domain), Some(path)) = (rule["domain"].as_str(), rule["rule"].as_str())
            else {
                continue;
            };
            for key in list(&rule["keys"]) {
                let hits = |name: &str| key[name].as_u64().unwrap_or_default();
                let counts = HitCounts {
                    hits: hits("hits"),
                    over_limit: hits("over_limit"),
                };
                let entries: Option<Key> = list(&key["key"]).iter().map(entry).collect();
                if let Some(entries) = entries {
                    self.add((domain, path), entries, counts);
                }
            }
        }
    }

    /// The first keys of each rule, those without hits left out. Rules without keys are left out.
    fn shown(self, by: By) -> Vec<Value> {
        let rules = self.0.into_iter().filter_map(|((domain, rule), keys)| {
            let keys = keys.into_iter();
            let mut keys: Vec<_> = keys.filter(|(_, counts)| by.of(*counts) > 0).collect();
            keys.sort_unstable_by(|(one_key, one), (other_key, other)| {
                let order = |counts: &HitCounts| (by.of(*counts), counts.hits);
                let by_hits = order(other).cmp(&order(one));
                by_hits.then_with(|| one_key.cmp(other_key))
            });
            keys.truncate(TOP_KEYS_MAX);
            let keys = keys.into_iter().map(|(key, counts)| {
                json!({"key": key, "hits": counts.hits, "over_limit": counts.over_limit})
            });
            let keys: Vec<Value> = keys.collect();
            (!keys.is_empty()).then(|| json!({"domain": domain, "rule": rule, "keys": keys}))
        });
        rules.collect()
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], |list| list)
}

/// The key and the value of an entry.
fn entry(entry: &Value) -> Option<[String; 2]> {
    let text = |at: usize| entry[at].as_str().map(str::to_owned);
    Some([text(0)?, text(1)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(value: &str, hits: u64, over_limit: u64) -> Value {
        json!({"key": [["user", value]], "hits": hits, "over_limit": over_limit})
    }

    fn answer(keys: &[Value]) -> Value {
        json!({"replica": "a", "rules": [{"domain": "d", "rule": "d.user", "keys": keys}]})
    }

    #[test]
    fn answers_are_summed_by_key_and_ordered() {
        let answers = [
            answer(&[key("ann", 5, 2), key("bob", 9, 0), key("eve", 3, 3)]),
            answer(&[key("ann", 2, 2), json!({"key": "none"})]),
        ];
        let (ann, bob, eve) = (key("ann", 7, 4), key("bob", 9, 0), key("eve", 3, 3));
        for (by, expected) in [
            (By::OverLimit, vec![ann.clone(), eve.clone()]),
            (By::Hits, vec![bob, ann, eve]),
        ] {
            let mut sums = Sums::default();
            for answer in &answers {
                sums.add_answer(answer);
            }
            assert_eq!(json!(sums.shown(by)), answer(&expected)["rules"]);
        }
    }

    #[test]
    fn parameters_are_read_and_written_for_peers() {
        let asked = Asked::read("domain=a%26b&rule=r+s&window=60m&scope=fleet");
        let asked = asked.unwrap_or_else(|rejected| panic!("{rejected:?}"));
        let expected = "/api/v1/top?window=60m&by=over_limit&domain=a%26b&rule=r%20s";
        assert_eq!((asked.scope, &*asked.path()), (Scope::Fleet, expected));
        for invalid in ["window=2m", "by=keys", "scope=all"] {
            assert!(Asked::read(invalid).is_err(), "{invalid}");
        }
    }
}
