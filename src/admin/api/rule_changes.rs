//! Changes of rules files by operators: PUT and rollback. Each is authorized, logged with its diff
//! and counted.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use http::{HeaderMap, StatusCode, header};
use tokio::task::spawn_blocking;
use tokio_util::task::TaskTracker;

use crate::admin::api::answer::{Answer, Rejected};
use crate::admin::api::bodies::{ArrivedText, Texts};
use crate::admin::api::outcome::{ActionOutcome, Outcomes};
use crate::admin::api::token::TokenCheck;
use crate::base::named_enum::named_enum;
use crate::report::rule_file::{RuleCounts, RulesChanged, RulesRollback};
use crate::rule_source::edit::change::{
    ChangeError, Changed, NotInForce, Replacement, RuleFileChange, RulesWriter,
};
use crate::rule_source::edit::etag::Expected;
use crate::rule_source::edit::name::FileName;
use crate::rule_source::edit::{NO_FILES, ReadError};
use crate::telemetry::log::AUDIT;
use crate::telemetry::metric::Metrics;

/// Bytes of a text of `GET` and `PUT /api/v1/rules/{file}`. Less than a rules file may have: some
/// 100,000 rules.
// bound rules_text_bytes_max: 413; tollgate_admin_actions_total{outcome="rejected"}
pub(crate) const TEXT_BYTES_MAX: usize = 8 << 20;
/// Bytes of texts of rules files that are arriving or written.
// bound change_texts_bytes_max: the text that has been arriving for the longest time is answered
// with 503; tollgate_rule_texts_given_up_total{request="change"}
const CHANGE_TEXTS_BYTES_MAX: usize = 16 << 20;
/// Bytes of a body that names a version.
// bound version_bytes_max: 413; tollgate_admin_actions_total{outcome="rejected"}
const VERSION_BYTES_MAX: usize = 1 << 10;
const ROLLBACK_USAGE: &str =
    r#"write {"version": 3}, a version of GET /api/v1/rules/{file}/history"#;
const RETRY_AFTER_SECS: u64 = 1;

named_enum! {
    /// A change of a rules file.
    pub enum RuleAction {
        /// Replace the text.
        Put = "put_rules",
        /// Restore the text of a version.
        Rollback = "rollback_rules",
    }
}

/// Changes rules files.
#[derive(Debug)]
pub(crate) struct RuleChanges {
    /// `None` where rules come from a control plane.
    writer: Option<Arc<RulesWriter>>,
    token: Arc<TokenCheck>,
    outcomes: Outcomes,
    texts: Arc<Texts>,
    tasks: TaskTracker,
}

/// An authorized change.
struct Authorized {
    writer: Arc<RulesWriter>,
    change: RuleFileChange,
    remote: Option<IpAddr>,
    /// The memory of the text, until the change is made.
    _text: ArrivedText,
}

/// A request for a change.
#[derive(Debug)]
pub(crate) struct ChangeRequest {
    pub(crate) action: RuleAction,
    pub(crate) file: String,
    pub(crate) remote: Option<IpAddr>,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Body,
}

impl RuleChanges {
    /// Registers the metrics.
    pub(crate) fn new(
        writer: Option<Arc<RulesWriter>>,
        token: Arc<TokenCheck>,
        metrics: &Metrics,
    ) -> Self {
        Self {
            writer,
            token,
            outcomes: Outcomes::new(&RuleAction::ALL.map(RuleAction::name), metrics),
            texts: Texts::new(CHANGE_TEXTS_BYTES_MAX, "change", metrics),
            tasks: TaskTracker::new(),
        }
    }

    /// Why nothing can be changed; `None` if files can. Blocks.
    pub(crate) fn unwritable(&self) -> Option<String> {
        let Some(writer) = &self.writer else {
            return Some(NO_FILES.to_owned());
        };
        let no_token = self.token.unconfigured().map(str::to_owned);
        no_token.or_else(|| writer.unwritable())
    }

    /// Makes a change, even if its caller goes away meanwhile.
    pub(crate) async fn act(self: Arc<Self>, request: ChangeRequest) -> Answer<RulesChanged> {
        let action = request.action;
        let answer = match self.read(request).await {
            Err(rejected) => Err(rejected),
            Ok(authorized) => {
                let acting = self.clone();
                let act = async move { acting.change(action, authorized).await };
                // Cancelled only by a panic, or with the process.
                let done = self.tasks.spawn(act).await;
                done.unwrap_or_else(|_| Err(ChangeError::Unexpected.into()))
            }
        };
        let outcome = match &answer {
            Ok(_) => ActionOutcome::Done,
            Err(rejected) => ActionOutcome::of(rejected.status),
        };
        self.outcomes.count(action.name(), outcome);
        answer
    }

    /// Authorizes a request, and reads the change.
    async fn read(&self, request: ChangeRequest) -> Result<Authorized, Rejected> {
        let ChangeRequest {
            action,
            file,
            remote,
            headers,
            body,
        } = request;
        self.token.authorize(&headers, remote)?;
        let forbidden = |reason: &str| Rejected::new(StatusCode::FORBIDDEN, reason);
        let writer = self.writer.as_ref().ok_or_else(|| forbidden(NO_FILES))?;
        let asked = writer.clone();
        let unwritable = spawn_blocking(move || asked.unwritable()).await;
        if let Some(reason) = unwritable.map_err(|_| ChangeError::Unexpected)? {
            return Err(forbidden(&reason));
        }
        let name = FileName::new(&file).map_err(ReadError::from)?;
        let expected = expected(&headers);
        let (expected, replacement, text) = match action {
            RuleAction::Put => {
                let expected = expected.ok_or_else(|| {
                    let reason = "send the ETag that GET /api/v1/rules/{file} answered as If-Match";
                    Rejected::new(StatusCode::PRECONDITION_REQUIRED, reason)
                })?;
                let text = self.texts.read(body, TEXT_BYTES_MAX).await?;
                let replacement = Replacement::Text(text.bytes.clone());
                (expected, replacement, text)
            }
            RuleAction::Rollback => {
                let body = self.texts.read(body, VERSION_BYTES_MAX).await?;
                let version = Replacement::Version(version(&body.bytes)?);
                (expected.unwrap_or(Expected::Any), version, body)
            }
        };
        let change = RuleFileChange {
            name,
            expected,
            replacement,
        };
        Ok(Authorized {
            writer: writer.clone(),
            change,
            remote,
            _text: text,
        })
    }

    async fn change(&self, action: RuleAction, authorized: Authorized) -> Answer<RulesChanged> {
        let Authorized {
            writer,
            change,
            remote,
            _text,
        } = authorized;
        let name = change.name.clone();
        let (action, file) = (action.name(), name.as_str());
        let remote = remote.map_or_else(String::new, |remote| remote.to_string());
        let changed = writer.make(change).await.map_err(Rejected::from);
        let changed = changed.inspect_err(|rejected| {
            // A part of it may be done.
            if rejected.status.is_server_error() {
                let error = rejected.reason();
                tracing::info!(target: AUDIT, action, remote, file, error, "admin action failed");
            }
        })?;
        let Changed {
            version_before: before,
            version: after,
            etag,
            diff,
            warnings,
            counts: [domains, limits],
            result,
        } = changed;
        result.map_err(|error| {
            let reason = error.to_string();
            tracing::info!(target: AUDIT, action, remote, file, before, after, diff, error = reason, "admin action failed");
            Rejected::from(error)
        })?;
        tracing::info!(target: AUDIT, action, remote, file, before, after, diff, "admin action");
        Ok(RulesChanged {
            file: file.to_owned(),
            version: after,
            etag: etag.as_str().to_owned(),
            rules: RuleCounts { domains, limits },
            warnings,
        })
    }
}

impl From<ChangeError> for Rejected {
    fn from(error: ChangeError) -> Self {
        let status = match &error {
            ChangeError::Unwritable(_) => StatusCode::FORBIDDEN,
            ChangeError::Changed(_) => StatusCode::PRECONDITION_FAILED,
            ChangeError::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
            ChangeError::UnknownVersion(..) => StatusCode::NOT_FOUND,
            ChangeError::Busy => StatusCode::SERVICE_UNAVAILABLE,
            ChangeError::Read(_) | ChangeError::Io(..) | ChangeError::Unexpected => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        };
        let reason = error.to_string();
        match error {
            ChangeError::Read(error) => error.into(),
            ChangeError::Invalid(errors) => Self::new(status, reason).with_errors(errors),
            ChangeError::Busy => Self::new(status, reason).retry_after(RETRY_AFTER_SECS),
            _ => Self::new(status, reason),
        }
    }
}

impl From<NotInForce> for Rejected {
    fn from(error: NotInForce) -> Self {
        let status = match error {
            NotInForce::Late(_) => StatusCode::GATEWAY_TIMEOUT,
            NotInForce::Rejected(_) => StatusCode::CONFLICT,
        };
        Self::new(status, error.to_string())
    }
}

/// If-Match, of all its lines.
fn expected(headers: &HeaderMap) -> Option<Expected> {
    let lines = headers.get_all(header::IF_MATCH).into_iter();
    let lines: Vec<_> = lines
        .map(|line| line.to_str().unwrap_or_default())
        .collect();
    (!lines.is_empty()).then(|| Expected::read(&lines.join(",")))
}

/// # Errors
/// 400.
fn version(body: &[u8]) -> Result<u64, Rejected> {
    let invalid = |error| Rejected::bad_request(format!("{error}; {ROLLBACK_USAGE}"));
    let RulesRollback { version } = serde_json::from_slice(body).map_err(invalid)?;
    Ok(version)
}
