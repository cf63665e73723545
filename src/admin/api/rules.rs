//! `/api/v1/rules`: the rules files of this replica.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::rejection::PathRejection;
use axum::response::{IntoResponse as _, Response};
use http::{StatusCode, header};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::admin::api::answer::{Answer, JSON_TYPE, Rejected};
use crate::admin::api::rule_changes::RuleChanges;
use crate::admin::page::SharedPage;
use crate::rule_files::history::Version;
use crate::rule_files::name::FileName;
use crate::rule_files::{Listed, NO_FILES, ReadError, RuleFile, RuleFiles};
use crate::telemetry::metric::{Counter, Metrics};

const YAML_TYPE: &str = "application/yaml";
/// Texts of rules files that are being sent. One has up to 64 MiB, and clients may read slowly.
// bound rules_texts_max: waits for 5 s, then 503; tollgate_admin_rules_texts_full_total
const TEXTS_MAX: usize = 4;
/// Time to wait for another text to be sent.
// bound rules_text_wait_max: 503; tollgate_admin_rules_texts_full_total
const TEXT_WAIT_MAX: Duration = Duration::from_secs(5);

/// Answers about rules files.
#[derive(Debug)]
pub(crate) struct Rules {
    /// `None` where rules come from a control plane.
    files: Option<Arc<RuleFiles>>,
    changes: Arc<RuleChanges>,
    list: SharedPage,
    texts: Arc<Semaphore>,
    texts_full: Counter,
}

/// A text that is being sent, and its slot.
struct SentText {
    bytes: Vec<u8>,
    _slot: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for SentText {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Rules {
    /// Registers the metric. `list` is for the page with the list of files.
    pub(crate) fn new(
        files: Option<Arc<RuleFiles>>,
        changes: Arc<RuleChanges>,
        list: SharedPage,
        metrics: &Metrics,
    ) -> Self {
        Self {
            files,
            changes,
            list,
            texts: Arc::new(Semaphore::new(TEXTS_MAX)),
            texts_full: metrics.counter(
                "tollgate_admin_rules_texts_full_total",
                "Requests for a rules file that were rejected because 4 are still being sent (rules_texts_max).",
            ),
        }
    }

    /// The files, for the replica with this name.
    ///
    /// # Errors
    /// 404 without rules files.
    pub(crate) async fn list(&self, replica: Arc<str>) -> Result<Response, Rejected> {
        let files = self.files()?.clone();
        let changes = self.changes.clone();
        let list = move || list_page(&replica, &files.list(), changes.unwritable());
        let page = self.list.get(list);
        let page = page.await.ok_or_else(unexpected)?;
        Ok(([(header::CONTENT_TYPE, JSON_TYPE)], page).into_response())
    }

    /// The text of a file.
    ///
    /// # Errors
    /// 404 without such a file.
    pub(crate) async fn read(&self, name: &str) -> Result<Response, Rejected> {
        let files = self.files()?.clone();
        let name = FileName::new(name).map_err(ReadError::from)?;
        let slot = self.slot().await?;
        let read = spawn_blocking(move || files.read(&name)).await;
        let RuleFile { bytes, etag, .. } = read.map_err(|_| unexpected())??;
        let headers = [
            (header::CONTENT_TYPE, YAML_TYPE),
            (header::ETAG, etag.as_str()),
            (header::CACHE_CONTROL, "no-cache"),
        ];
        let text = SentText { bytes, _slot: slot };
        Ok((headers, Body::from(Bytes::from_owner(text))).into_response())
    }

    /// The versions of a file.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) async fn history(&self, name: &str) -> Answer {
        let files = self.files()?.clone();
        let name = FileName::new(name).map_err(ReadError::from)?;
        // To hash the versions, their texts are read.
        let slot = self.slot().await?;
        let read = spawn_blocking(move || {
            let _slot = slot;
            files.versions(&name)
        });
        let versions = read.await.map_err(|_| unexpected())??;
        let shown = |Version { number, time, etag }: &Version| json!({"version": number, "time": time.to_rfc3339_secs(), "etag": etag.as_str()});
        let versions: Vec<_> = versions.iter().map(shown).collect();
        Ok(json!({"versions": versions}))
    }

    async fn slot(&self) -> Result<OwnedSemaphorePermit, Rejected> {
        let slot = timeout(TEXT_WAIT_MAX, self.texts.clone().acquire_owned()).await;
        slot.ok().and_then(Result::ok).ok_or_else(|| {
            self.texts_full.inc();
            let reason = "too many rules files are being read";
            Rejected::new(StatusCode::SERVICE_UNAVAILABLE, reason).retry_after(1)
        })
    }

    fn files(&self) -> Result<&Arc<RuleFiles>, Rejected> {
        let missing = || Rejected::new(StatusCode::NOT_FOUND, NO_FILES);
        self.files.as_ref().ok_or_else(missing)
    }
}

impl From<ReadError> for Rejected {
    fn from(error: ReadError) -> Self {
        let status = match error {
            ReadError::Name(_) => StatusCode::BAD_REQUEST,
            ReadError::Missing(_) => StatusCode::NOT_FOUND,
            ReadError::Io(..) => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, error.to_string())
    }
}

impl From<PathRejection> for Rejected {
    fn from(rejection: PathRejection) -> Self {
        Self::bad_request(rejection.body_text())
    }
}

/// A folder that cannot be read has no files; nor can they be changed.
fn list_page(
    replica: &str,
    listed: &Result<Vec<Listed>, String>,
    unwritable: Option<String>,
) -> String {
    let files = listed.iter().flatten().map(
        |file| json!({"file": file.name.as_str(), "etag": file.etag.as_str(), "bytes": file.bytes}),
    );
    let files: Vec<_> = files.collect();
    let reason = listed.as_ref().err().cloned().or(unwritable);
    json!({"replica": replica, "writable": reason.is_none(), "reason": reason, "files": files})
        .to_string()
}

fn unexpected() -> Rejected {
    let reason = "the request ended unexpectedly";
    Rejected::new(StatusCode::INTERNAL_SERVER_ERROR, reason)
}
