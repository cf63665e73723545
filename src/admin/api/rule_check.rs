//! `/api/v1/rules/{file}/check` and `/simulate`: what a change of a rules file would do. No token
//! is needed, because nothing is changed.

use std::str::FromStr as _;
use std::sync::Arc;

use axum::body::Body;
use futures_util::future::join_all;
use http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::admin::api::answer::{Answer, Rejected};
use crate::admin::api::bodies::{ArrivedText, Texts};
use crate::admin::api::counters::Counters;
use crate::admin::api::viewer::Viewer;
use crate::admin::query_string::Pairs;
use crate::base::parse;
use crate::base::runtime::run_on_thread;
use crate::base::text::Text;
use crate::base::time::Span;
use crate::observe::top_keys::windows::Window;
use crate::observe::top_keys::{Selection, TopKeys};
use crate::report;
use crate::rule_source::edit::ReadError;
use crate::rule_source::edit::name::FileName;
use crate::rule_source::files::read_text_from;
use crate::telemetry::metric::{Counter, Metrics};
use crate::what_if::check::keys::{ChangedKey, Treatment};
use crate::what_if::check::scenario::{PERIODS_MAX, Scenario};
use crate::what_if::check::{ChangedFile, NoResult, RuleCheck};
use crate::what_if::simulate::traffic::Pattern;

/// Bytes of a text to check or simulate: as many as a ConfigMap has. Less than a rules file may
/// have, because no token is needed. `tollgate check` reads larger files.
// bound check_text_bytes_max: 413; -
const TEXT_BYTES_MAX: usize = 1 << 20;
/// Requests to check or simulate at a time whose text has arrived. One of them is compiled, the
/// others wait.
// bound rule_checks_max: 429; tollgate_rule_checks_full_total
const RULE_CHECKS_MAX: usize = 4;
/// Bytes of texts to check or simulate that are arriving or compiled.
// bound check_texts_bytes_max: the text that has been arriving for the longest time is answered
// with 503; tollgate_rule_texts_given_up_total{request="check"}
const CHECK_TEXTS_BYTES_MAX: usize = 8 << 20;
/// Compilations of texts to check at a time: serving needs the other processors.
// bound rule_compilations_max: the next one waits; -
const COMPILED_MAX: usize = 1;
/// A compilation of usual rules takes less.
const RETRY_AFTER_SECS: u64 = 1;
/// Periods without `periods`, and how long a request holds its slot without `hold`.
const PERIODS_DEFAULT: usize = 6;
const HOLD_DEFAULT: Span = Span::from_secs(1);
const SIMULATE_USAGE: &str =
    "write ?domain=DOMAIN&e=KEY%3DVALUE with an `e` for each entry, key and value percent-encoded";

/// Answers what a change of a rules file would do.
#[derive(Debug)]
pub(crate) struct RuleChecks {
    check: Arc<RuleCheck>,
    top_keys: TopKeys,
    counters: Arc<Counters>,
    texts: Arc<Texts>,
    requests: Arc<Semaphore>,
    compiling: Arc<Semaphore>,
    full: Counter,
}

/// A change that was read, and the place of its request among [`RULE_CHECKS_MAX`].
struct Held {
    change: ChangedFile,
    text: ArrivedText,
    permit: OwnedSemaphorePermit,
}

impl RuleChecks {
    /// Registers the metric.
    pub(crate) fn new(
        check: RuleCheck,
        top_keys: TopKeys,
        counters: Arc<Counters>,
        metrics: &Metrics,
    ) -> Self {
        Self {
            check: Arc::new(check),
            top_keys,
            counters,
            texts: Texts::new(CHECK_TEXTS_BYTES_MAX, "check", metrics),
            requests: Arc::new(Semaphore::new(RULE_CHECKS_MAX)),
            compiling: Arc::new(Semaphore::new(COMPILED_MAX)),
            full: metrics.counter(
                "tollgate_rule_checks_full_total",
                "Requests to check or simulate rules that were rejected with 429 because of others at that moment (rule_checks_max).",
            ),
        }
    }

    /// Compiles the rules with another text of a file, and compares them with those in force.
    pub(crate) async fn check(
        &self,
        file: &str,
        query: &str,
        body: Body,
        viewer: Viewer,
    ) -> Answer<report::RuleCheck> {
        let window = Pairs::new(query).first("window").to_owned();
        let window = match &*Text(&window).shown() {
            "" => Window::Hour,
            given => Window::from_str(given)
                .map_err(|known| Rejected::bad_request(format!("window is {given:?}: {known}")))?,
        };
        let held = self.hold(file, body).await?;
        let top = self.top_keys.read(Selection::default(), window).await;
        let check = self.check.clone();
        let checked = self
            .run(held, move |change| check.check(change, &top, viewer.values))
            .await?;
        let keys = checked.keys.into_iter().map(|key| self.key(key));
        Ok(report::RuleCheck {
            keys: join_all(keys).await,
            ..checked.report
        })
    }

    /// Plays requests to the rules in force, and to those with another text of a file.
    pub(crate) async fn simulate(
        &self,
        file: &str,
        query: &str,
        body: Body,
    ) -> Answer<report::RuleSimulation> {
        let scenario = scenario(&Pairs::new(query))?;
        let held = self.hold(file, body).await?;
        let check = self.check.clone();
        self.run(held, move |change| check.simulate(change, &scenario))
            .await
    }

    /// Reads a request, if there are not too many.
    async fn hold(&self, file: &str, body: Body) -> Result<Held, Rejected> {
        let file = FileName::new(file).map_err(ReadError::from)?;
        // A client that sends half a text takes no place.
        let text = self.texts.read(body, TEXT_BYTES_MAX).await?;
        let permit = self.requests.clone().try_acquire_owned().map_err(|_| {
            self.full.inc();
            let reason = "other rules are checked at this moment (rule_checks_max); repeat it";
            Rejected::new(StatusCode::TOO_MANY_REQUESTS, reason).retry_after(RETRY_AFTER_SECS)
        })?;
        // Bytes that are not UTF-8 are errors of their line.
        let read = read_text_from(&text.bytes[..], file.as_str())
            .map_err(|error| Rejected::bad_request(format!("{error:#}")))?;
        let change = ChangedFile {
            file,
            text: read.into(),
        };
        Ok(Held {
            change,
            text,
            permit,
        })
    }

    /// Runs a blocking call. The bounds hold until its end, even if its client goes away.
    async fn run<T: Send + 'static>(
        &self,
        Held {
            change,
            text,
            permit,
        }: Held,
        call: impl FnOnce(ChangedFile) -> Result<T, NoResult> + Send + 'static,
    ) -> Result<T, Rejected> {
        let compiling = self.compiling.clone().acquire_owned().await;
        let held = (text, permit, compiling);
        let ended = run_on_thread("rule-check", held, move || call(change)).await;
        let unexpected = || {
            let reason = "the check ended unexpectedly";
            Rejected::new(StatusCode::INTERNAL_SERVER_ERROR, reason)
        };
        Ok(ended.ok_or_else(unexpected)??)
    }

    /// A key, with the state of its counter under both rule sets.
    async fn key(&self, key: ChangedKey) -> report::ChangedKey {
        let before = self.is_exhausted(&key.before).await;
        let after = self.is_exhausted(&key.after).await;
        key.report([before, after])
    }

    async fn is_exhausted(&self, side: &Treatment) -> Option<bool> {
        match &side.check {
            Some(check) => self.counters.is_exhausted(check).await,
            None => Some(false),
        }
    }
}

impl From<NoResult> for Rejected {
    fn from(error: NoResult) -> Self {
        let status = match error {
            NoResult::NoFiles => StatusCode::NOT_FOUND,
            NoResult::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
            NoResult::Scenario(_) => StatusCode::BAD_REQUEST,
        };
        Self::new(status, error.to_string())
    }
}

fn scenario(pairs: &Pairs) -> Result<Scenario, Rejected> {
    let domain = pairs.first("domain");
    let entries: Vec<Vec<u8>> = pairs.all("e").map(<[u8]>::to_vec).collect();
    if domain.is_empty() || entries.is_empty() {
        let reason = format!("a domain and at least one entry are needed; {SIMULATE_USAGE}");
        return Err(Rejected::bad_request(reason));
    }
    let text = |name: &str| {
        let value = pairs.first(name);
        (!value.is_empty()).then(|| Text(value).shown().into_owned())
    };
    let invalid = |name: &str, error: String| Rejected::bad_request(format!("{name}: {error}"));
    let pattern = text("traffic").map_or(Ok(Pattern::Steady), |given| Pattern::read(&given));
    let periods = text("periods").map_or(Ok(PERIODS_DEFAULT), |given| match given.parse() {
        Ok(periods @ 1..=PERIODS_MAX) => Ok(periods),
        _ => Err(format!("write a number from 1 to {PERIODS_MAX}")),
    });
    let hold = text("hold").map_or(Ok(HOLD_DEFAULT), |given| match parse::duration(&given)? {
        Span::ZERO => Err("write a duration that is longer than 0, such as 200ms".to_owned()),
        hold => Ok(hold),
    });
    Ok(Scenario {
        domain: domain.to_vec(),
        entries,
        pattern: pattern.map_err(|error| invalid("traffic", error))?,
        periods: periods.map_err(|error| invalid("periods", error))?,
        hold: hold.map_err(|error| invalid("hold", error))?,
    })
}
