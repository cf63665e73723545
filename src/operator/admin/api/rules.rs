//! `/api/v1/rules`: the rules files of this replica, and changes of them, each authorized, logged
//! and counted.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::response::{IntoResponse as _, Response};
use http::{HeaderMap, StatusCode, header};
use tokio::task::spawn_blocking;
use tokio_util::task::TaskTracker;

use crate::api::body::read_body;
use crate::base::http::response_budget::RETRY_AFTER_SECS;
use crate::operator::admin::api::answer::{self, Answer, JSON_TYPE, Rejected};
use crate::operator::admin::api::outcome::{ActionOutcome, Outcomes};
use crate::operator::admin::api::token::TokenCheck;
use crate::operator::admin::page::{self, SharedPage};
use crate::report::rule_file::{RuleCounts, RulesChanged, RulesFile, RulesList};
use crate::rules::source::edit::etag::ETag;
use crate::rules::source::edit::name::FileName;
use crate::rules::source::edit::{EditError, NO_FILES, RuleFiles};
use crate::telemetry::log::AUDIT;
use crate::telemetry::metric::Metrics;

const YAML_TYPE: &str = "application/yaml";
/// Bytes of a text of `GET` and `PUT /api/v1/rules/{file}`. Less than a rules file may have: some
/// 100,000 rules.
// bound rules_text_bytes_max: 413; tollgate_admin_actions_total{outcome="rejected"}
const TEXT_BYTES_MAX: usize = 8 << 20;
/// The label of the metric.
const PUT: &str = "put_rules";

/// Answers about rules files.
#[derive(Debug)]
pub(crate) struct Rules {
    /// `None` where rules come from a control plane.
    files: Option<Arc<RuleFiles>>,
    token: Arc<TokenCheck>,
    outcomes: Outcomes,
    tasks: TaskTracker,
    list: SharedPage,
}

impl Rules {
    /// `list` is for the page with the list of files. Registers the metrics.
    pub(crate) fn new(
        files: Option<Arc<RuleFiles>>,
        token: Arc<TokenCheck>,
        list: SharedPage,
        metrics: &Metrics,
    ) -> Self {
        Self {
            files,
            token,
            outcomes: Outcomes::new(PUT, metrics),
            tasks: TaskTracker::new(),
            list,
        }
    }

    /// Why nothing can be changed; `None` if files can. Blocks.
    pub(crate) fn unwritable(&self) -> Option<String> {
        let Some(files) = &self.files else {
            return Some(NO_FILES.to_owned());
        };
        let no_token = self.token.unconfigured().map(str::to_owned);
        no_token.or_else(|| Some(files.check_writable().err()?.to_string()))
    }

    /// The files, for the replica with this name.
    ///
    /// # Errors
    /// 404 without rules files.
    pub(crate) async fn list(self: Arc<Self>, replica: Arc<str>) -> Result<Response, Rejected> {
        let files = self.files()?.clone();
        let rules = self.clone();
        let asked = files.clone();
        let list = move |reading: Result<_, EditError>| {
            let listed = match reading {
                Ok(_reading) => files.list(),
                Err(busy) => Err(busy.to_string()),
            };
            // A folder that cannot be read has no files, and they cannot be changed.
            let reason = listed.as_ref().err().cloned().or(rules.unwritable());
            let files = listed.iter().flatten().map(|file| RulesFile {
                file: file.name.to_string(),
                etag: file.etag.as_str().to_owned(),
                bytes: file.bytes,
            });
            let list = RulesList { files: files.collect(), writable: reason.is_none(), reason };
            answer::json(&replica, list)
        };
        let reading = async move { asked.reading().await };
        match self.list.get_after(reading, list).await {
            Ok(page) => Ok(page::shown(JSON_TYPE, page)),
            Err(StatusCode::SERVICE_UNAVAILABLE) => Err(answer::full()),
            Err(_) => Err(EditError::Unexpected.into()),
        }
    }

    /// The text of a file.
    ///
    /// # Errors
    /// 404 without such a file.
    pub(crate) async fn read(&self, name: &str) -> Result<Response, Rejected> {
        let files = self.files()?.clone();
        let name = FileName::new(name).map_err(EditError::from)?;
        let reading = files.reading().await?;
        let read = move || (files.read(&name, TEXT_BYTES_MAX), reading);
        // The permit counts the text until the response does.
        let (read, _reading) = spawn_blocking(read).await.map_err(|_| EditError::Unexpected)?;
        let bytes = read?;
        let etag = ETag::of(&bytes);
        let headers = [
            (header::CONTENT_TYPE, YAML_TYPE),
            (header::ETAG, etag.as_str()),
            (header::CACHE_CONTROL, "no-cache"),
        ];
        Ok((headers, bytes).into_response())
    }

    /// Replaces a file, even if the caller goes away meanwhile.
    pub(crate) async fn put(
        self: Arc<Self>,
        file: String,
        remote: Option<IpAddr>,
        headers: HeaderMap,
        body: Body,
    ) -> Answer<RulesChanged> {
        let rules = self.clone();
        let change = async move { rules.change(file, remote, &headers, body).await };
        // Cancelled only by a panic, or with the process.
        let put = self.tasks.spawn(change).await;
        let answer = put.unwrap_or_else(|_| Err(EditError::Unexpected.into()));
        let outcome = match &answer {
            Ok(_) => ActionOutcome::Done,
            Err(rejected) => ActionOutcome::of(rejected.status),
        };
        self.outcomes.count(outcome);
        answer
    }

    async fn change(
        &self,
        file: String,
        remote: Option<IpAddr>,
        headers: &HeaderMap,
        body: Body,
    ) -> Answer<RulesChanged> {
        self.token.authorize(headers, remote)?;
        let no_files = || EditError::Unwritable(NO_FILES.to_owned());
        let files = self.files.as_ref().ok_or_else(no_files)?;
        let name = FileName::new(&file).map_err(EditError::from)?;
        let if_match = if_match(headers).ok_or_else(|| {
            let reason = "send the ETag that GET /api/v1/rules/{file} answered as If-Match";
            Rejected::new(StatusCode::PRECONDITION_REQUIRED, reason)
        })?;
        let _turn = files.turn().await?;
        let bytes = read_body(body, TEXT_BYTES_MAX, |_| true).await?;
        let remote = remote.map_or_else(String::new, |remote| remote.to_string());
        let changed = files.change(name, if_match, bytes).await.map_err(|error| {
            // The file may be written.
            let may_be_written = matches!(error, EditError::Rejected(_));
            let rejected = Rejected::from(error);
            if may_be_written || rejected.status.is_server_error() {
                let error = rejected.reason();
                tracing::info!(target: AUDIT, action = PUT, remote, file, error, "admin action failed");
            }
            rejected
        })?;
        let before = changed.before.as_str();
        let after = changed.after.as_str();
        tracing::info!(target: AUDIT, action = PUT, remote, file, before, after, "admin action");
        Ok(RulesChanged {
            etag: after.to_owned(),
            file,
            rules: RuleCounts {
                domains: changed.rules.domain_count(),
                limits: changed.rules.rule_count(),
            },
            warnings: changed.warnings,
        })
    }

    fn files(&self) -> Result<&Arc<RuleFiles>, Rejected> {
        let missing = || Rejected::new(StatusCode::NOT_FOUND, NO_FILES);
        self.files.as_ref().ok_or_else(missing)
    }
}

impl From<EditError> for Rejected {
    fn from(error: EditError) -> Self {
        let status = match &error {
            EditError::Name(_) => StatusCode::BAD_REQUEST,
            EditError::Missing(_) => StatusCode::NOT_FOUND,
            EditError::TooLarge(..) => StatusCode::PAYLOAD_TOO_LARGE,
            EditError::Busy => StatusCode::SERVICE_UNAVAILABLE,
            EditError::Disabled => StatusCode::FORBIDDEN,
            EditError::Unwritable(_) | EditError::Rejected(_) => StatusCode::CONFLICT,
            EditError::Changed(_) => StatusCode::PRECONDITION_FAILED,
            EditError::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
            EditError::Late => StatusCode::GATEWAY_TIMEOUT,
            EditError::Io(..) | EditError::Unexpected => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let rejected = Self::new(status, error.to_string());
        match error {
            EditError::Invalid(errors) => rejected.with_errors(errors),
            EditError::Busy => rejected.retry_after(RETRY_AFTER_SECS),
            _ => rejected,
        }
    }
}

impl From<PathRejection> for Rejected {
    fn from(rejection: PathRejection) -> Self {
        Self::bad_request(rejection.body_text())
    }
}

/// If-Match, of all its lines.
fn if_match(headers: &HeaderMap) -> Option<String> {
    let lines = headers.get_all(header::IF_MATCH).into_iter();
    let lines: Vec<_> = lines.map(|line| line.to_str().unwrap_or_default()).collect();
    (!lines.is_empty()).then(|| lines.join(","))
}
