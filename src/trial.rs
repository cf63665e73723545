//! A trial beside the rate limit service in use: calls are forwarded to it, decided here as well,
//! and compared.
//!
//! ```text
//!            +--> upstream --> its reply, unchanged --> caller
//!  call -----|                        |
//!            +--> our decision -------+--> compare, after the reply was sent --> counts
//! ```
//! For the share of callers in [`share`] the sides change roles: the caller gets our response, and
//! the upstream, which still counts every call, is compared with it.
//!
//! [`upstream`] forwards, [`compare`] explains a difference of one descriptor, [`request`] compares
//! all of a request, and [`tally`] counts. `api/trial.rs` decodes and decides.

use std::future::poll_fn;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Poll;

use http::Uri;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::base::file_watch::Reloaded;
use crate::base::time::{Clock, Time};
use crate::operator::observe::redact::{DescriptorView, Quoted, Values};
use crate::report::comparison::{Disagreement, TrialView};
use crate::rules::query::Query;
use crate::telemetry::metric::{Counter, Histogram, Metrics, Series, Source};
use crate::trial::reply_budget::ReplyBudget;
use crate::trial::request::{Decision, Reply, compare_request};
use crate::trial::settings::{OnUpstreamError, Options};
use crate::trial::share::AnsweredShare;
use crate::trial::tally::{CallOutcome, Tally};
use crate::trial::upstream::Upstream;

pub(crate) mod compare;
mod reply_budget;
pub(crate) mod request;
pub(crate) mod settings;
pub(crate) mod share;
pub(crate) mod tally;
pub(crate) mod upstream;

/// Comparisons of one worker that are not done when their reply is sent. One with a large request
/// or reply counts as several.
// bound trial_pending_max: not compared; tollgate_trial_dropped_total{reason="pending_max"}
pub(crate) const PENDING_MAX: u32 = 1_024;
/// Bytes of a request and its reply that count as one comparison.
const PENDING_BYTES: usize = 16 << 10;

/// The trial of the process. Clones share it.
#[derive(Debug, Clone)]
pub struct Trial(Arc<Shared>);

/// The trial on one worker. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Worker {
    shared: Arc<Shared>,
    pub(crate) upstream: Arc<Upstream>,
    pending: Arc<Semaphore>,
    tasks: TaskTracker,
}

#[derive(Debug)]
struct Shared {
    options: Options,
    view: DescriptorView,
    share: AnsweredShare,
    clock: Clock,
    /// When counting began here.
    began: Time,
    tally: Mutex<Tally>,
    replies: Arc<ReplyBudget>,
    dropped: Dropped,
    domains_full: Counter,
    upstream_seconds: Histogram,
    is_loop_logged: AtomicBool,
}

/// Requests that were not compared, by reason.
#[derive(Debug)]
struct Dropped {
    pending_max: Counter,
    invalid: Counter,
    invalid_reply: Counter,
    looped: Counter,
}

/// A call in flight. Counts how it was answered when it is dropped.
#[derive(Debug)]
pub(crate) struct Ending {
    shared: Arc<Shared>,
    domain: Arc<str>,
    pub(crate) outcome: CallOutcome,
}

impl Trial {
    /// Registers the metrics.
    pub(crate) fn new(
        options: Options,
        view: &DescriptorView,
        clock: &Clock,
        metrics: &Metrics,
    ) -> Self {
        let dropped = |reason| {
            metrics.counter_with(
                "tollgate_trial_dropped_total",
                "Calls that were not compared with the upstream: too many were undecided when their reply was sent (trial_pending_max), \
                 the request is invalid here, the reply has other statuses than the request has descriptors, or the upstream is a trial itself (loop).",
                &[("reason", reason)],
            )
        };
        let shared = Arc::new(Shared {
            share: AnsweredShare::new(options.share, metrics),
            options,
            view: view.clone(),
            began: clock.now(),
            clock: clock.clone(),
            tally: Mutex::default(),
            replies: Arc::new(ReplyBudget::new(metrics)),
            dropped: Dropped {
                pending_max: dropped("pending_max"),
                invalid: dropped("invalid"),
                invalid_reply: dropped("invalid_reply"),
                looped: dropped("loop"),
            },
            domains_full: metrics.counter(
                "tollgate_trial_domains_full_total",
                "Calls of a trial counted under __other__, because there were too many domains (trial_domains_max).",
            ),
            upstream_seconds: metrics.latency(
                "tollgate_trial_upstream_seconds",
                "Time until the upstream of a trial replied.",
                &[],
            ),
            is_loop_logged: AtomicBool::new(false),
        });
        metrics.add_source(shared.clone());
        Self(shared)
    }

    /// For the worker that this is called on. Calls are forwarded to `path`.
    pub(crate) fn open(&self, path: &str) -> Worker {
        let Options { server, origin, .. } = &self.0.options;
        let uri: Uri = format!("{origin}{path}")
            .parse()
            .expect("the settings check the origin, and the path is a constant");
        Worker {
            upstream: Arc::new(Upstream::open(
                server.clone(),
                uri,
                self.0.replies.clone(),
                self.0.clock.clone(),
            )),
            shared: self.0.clone(),
            pending: Arc::new(Semaphore::new(PENDING_MAX as usize)),
            tasks: TaskTracker::new(),
        }
    }

    /// The file with the share of callers that get our answer, if there is one.
    pub(crate) fn share_file(&self) -> Option<Reloaded> {
        let path = self.0.options.share_file.clone()?;
        Some(self.0.share.reloaded(path))
    }

    /// The results. Disagreements are newest first.
    pub(crate) fn results(&self, values: Values) -> TrialView {
        let shared = &self.0;
        let tally = shared.snapshot();
        let newest_first = tally.disagreements.iter().rev();
        TrialView {
            since: shared.began.to_rfc3339(),
            upstream: shared.options.server.address.to_string(),
            enforce_percent: shared.share.current().percent(),
            requests: tally.requests,
            agreed: tally.agreed,
            dropped: shared.dropped.total(),
            rules: tally.rules(),
            disagreements: newest_first.map(|one| one.seen(values).clone()).collect(),
        }
    }
}

impl Worker {
    /// Counts the call when the returned value is dropped.
    pub(crate) fn begin(&self, domain: Arc<str>) -> Ending {
        Ending { shared: self.shared.clone(), domain, outcome: CallOutcome::Canceled }
    }

    /// Whether the caller gets our response.
    pub(crate) fn answers(&self, query: &Query<'_>) -> bool {
        self.shared.share.includes(query)
    }

    pub(crate) fn on_upstream_error(&self) -> OnUpstreamError {
        self.shared.options.on_upstream_error
    }

    /// Counts a reply to a call that was forwarded at `began`.
    pub(crate) fn observe_reply(&self, began: Time) {
        let span = self.shared.clock.now().since(began);
        self.shared.upstream_seconds.observe(span.as_secs_f64());
    }

    /// Counts a request that is invalid here.
    pub(crate) fn drop_invalid(&self) {
        self.shared.dropped.invalid.inc();
    }

    /// Counts a call that another trial has forwarded.
    pub(crate) fn reject_loop(&self) {
        self.shared.dropped.looped.inc();
        if !self.shared.is_loop_logged.swap(true, Relaxed) {
            let upstream = &self.shared.options.server.address;
            tracing::error!(%upstream, "rejecting a call that a trial has forwarded: the upstream of a trial must not be a trial; is TRIAL_UPSTREAM the address of this service?");
        }
    }

    /// Compares a request in a task, after its reply was sent. Each side is `None` if it is not
    /// comparable. `bytes` are those of the request and its reply; `describe` lists descriptors.
    pub(crate) fn compare_later(
        &self,
        domain: Arc<str>,
        bytes: usize,
        here: impl Future<Output = Option<Decision>> + Send + 'static,
        there: impl Future<Output = Option<Reply>> + Send + 'static,
        describe: impl FnOnce(&DescriptorView) -> Quoted<Vec<String>> + Send + 'static,
    ) {
        let weight = u32::try_from(1 + bytes / PENDING_BYTES).unwrap_or(u32::MAX);
        let Ok(permit) = self.pending.clone().try_acquire_many_owned(weight) else {
            self.shared.dropped.pending_max.inc();
            return;
        };
        let shared = self.shared.clone();
        self.tasks.spawn(async move {
            // The task of the connection, which sends the reply, is first.
            run_later().await;
            let (here, there) = tokio::join!(here, there);
            shared.compare(&domain, here, there, describe);
            drop(permit);
        });
    }
}

impl Shared {
    /// The current counts. Workers wait while one domain is copied, and not while all are shown.
    fn snapshot(&self) -> Tally {
        let (mut snapshot, domains) = self.tally.lock().without_domains();
        for domain in domains {
            let counts = self.tally.lock().domains.get(&domain).cloned();
            snapshot.domains.extend(counts.map(|counts| (domain, counts)));
        }
        snapshot
    }

    fn compare(
        &self,
        domain: &Arc<str>,
        here: Option<Decision>,
        there: Option<Reply>,
        describe: impl FnOnce(&DescriptorView) -> Quoted<Vec<String>>,
    ) {
        let Some(here) = here else {
            return self.dropped.invalid.inc();
        };
        let compared = there.and_then(|there| compare_request(&here, &there, self.began));
        let Some((rows, differences)) = compared else {
            return self.dropped.invalid_reply.inc();
        };
        let descriptors =
            if differences.is_empty() { Quoted::default() } else { describe(&self.view) };
        let disagreements = differences.into_iter().map(|difference| {
            let disagreement = descriptors.clone().map(|values, descriptors| Disagreement {
                time: here.time.to_rfc3339(),
                domain: domain.to_string(),
                rule: difference.rule.as_deref().map(str::to_owned),
                descriptors,
                here: difference.here.clone(),
                there: match values {
                    Values::Clear => difference.there.clone(),
                    Values::Dropped => difference.there.clone().without_message(),
                },
                class: difference.class.name().to_owned(),
            });
            Arc::new(disagreement)
        });
        // Workers wait for the lock: the texts are written before.
        let disagreements: Vec<_> = disagreements.collect();
        let mut tally = self.tally.lock();
        tally.requests += 1;
        tally.agreed += u64::from(disagreements.is_empty());
        let (of_domain, _) = tally.domain(domain);
        for row in &rows {
            of_domain.add(row);
        }
        for disagreement in disagreements {
            tally.add_disagreement(disagreement);
        }
    }
}

/// Lets tasks run that are ready. tokio's `yield_now` would poll for I/O before, a system call.
async fn run_later() {
    let mut is_first = true;
    poll_fn(|context| {
        if mem::take(&mut is_first) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}

impl Dropped {
    fn total(&self) -> u64 {
        let Self { pending_max, invalid, invalid_reply, looped } = self;
        pending_max.get() + invalid.get() + invalid_reply.get() + looped.get()
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let mut tally = self.shared.tally.lock();
        let (of_domain, fits) = tally.domain(&self.domain);
        of_domain.count(self.outcome);
        if !fits {
            self.shared.domains_full.inc();
        }
    }
}

impl Source for Shared {
    fn collect(&self, series: &mut Vec<Series>) {
        self.snapshot().collect(series);
    }
}
