//! `/api/v1/rules`: the rules files of this replica.

use std::sync::Arc;

use axum::Extension;
use axum::extract::rejection::PathRejection;
use axum::response::{IntoResponse as _, Response};
use http::{StatusCode, header};
use tokio::task::spawn_blocking;

use crate::admin::api::answer::{self, Answer, JSON_TYPE, Rejected};
use crate::admin::api::rule_changes::{RuleChanges, TEXT_BYTES_MAX};
use crate::admin::page::SharedPage;
use crate::http::response_budget::{self, Counted};
use crate::report::rule_file::{RulesFile, RulesHistory, RulesList, RulesVersion};
use crate::rule_source::edit::history::Version;
use crate::rule_source::edit::name::FileName;
use crate::rule_source::edit::{Listed, NO_FILES, ReadError, Reading, RuleFile, RuleFiles};

const YAML_TYPE: &str = "application/yaml";
/// Answers about rules files.
#[derive(Debug)]
pub(crate) struct Rules {
    /// `None` where rules come from a control plane.
    files: Option<Arc<RuleFiles>>,
    changes: Arc<RuleChanges>,
    list: SharedPage,
}

impl Rules {
    /// `list` is for the page with the list of files.
    pub(crate) fn new(
        files: Option<Arc<RuleFiles>>,
        changes: Arc<RuleChanges>,
        list: SharedPage,
    ) -> Self {
        Self {
            files,
            changes,
            list,
        }
    }

    /// The files, for the replica with this name.
    ///
    /// # Errors
    /// 404 without rules files.
    pub(crate) async fn list(&self, replica: Arc<str>) -> Result<Response, Rejected> {
        let files = self.files()?.clone();
        let changes = self.changes.clone();
        let reading = {
            let files = files.clone();
            async move { files.reading().await }
        };
        let list = move |reading: Result<Reading, ReadError>| {
            let listed = match reading {
                Ok(_reading) => files.list(),
                Err(busy) => Err(busy.to_string()),
            };
            answer::json(&replica, listed_files(&listed, changes.unwritable()))
        };
        match self.list.get_after(reading, list).await {
            Ok(page) => {
                let content_type = [(header::CONTENT_TYPE, JSON_TYPE)];
                Ok((content_type, Extension(Counted), page).into_response())
            }
            Err(StatusCode::SERVICE_UNAVAILABLE) => Err(answer::full()),
            Err(_) => Err(unexpected()),
        }
    }

    /// The text of a file.
    ///
    /// # Errors
    /// 404 without such a file.
    pub(crate) async fn read(&self, name: &str) -> Result<Response, Rejected> {
        let files = self.files()?.clone();
        let name = FileName::new(name).map_err(ReadError::from)?;
        let reading = files.reading().await?;
        let read = move || (files.read_up_to(&name, TEXT_BYTES_MAX), reading);
        // The permit counts the text until the response does.
        let (read, _reading) = spawn_blocking(read).await.map_err(|_| unexpected())?;
        let RuleFile { bytes, etag, .. } = read?;
        let headers = [
            (header::CONTENT_TYPE, YAML_TYPE),
            (header::ETAG, etag.as_str()),
            (header::CACHE_CONTROL, "no-cache"),
        ];
        Ok((headers, bytes).into_response())
    }

    /// The versions of a file.
    ///
    /// # Errors
    /// 404 without such a file.
    pub(crate) async fn history(&self, name: &str) -> Answer<RulesHistory> {
        let files = self.files()?.clone();
        let name = FileName::new(name).map_err(ReadError::from)?;
        let reading = files.reading().await?;
        let read = spawn_blocking(move || {
            let _reading = reading;
            files.versions(&name)
        });
        let versions = read.await.map_err(|_| unexpected())??;
        let versions = versions
            .iter()
            .map(|Version { number, time, etag }| RulesVersion {
                version: *number,
                time: time.to_rfc3339_secs(),
                etag: etag.as_str().to_owned(),
            });
        Ok(RulesHistory {
            versions: versions.collect(),
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
            ReadError::TooLarge(..) => StatusCode::PAYLOAD_TOO_LARGE,
            ReadError::Busy | ReadError::Io(..) => StatusCode::SERVICE_UNAVAILABLE,
        };
        let rejected = Self::new(status, error.to_string());
        match error {
            ReadError::Busy => rejected.retry_after(response_budget::RETRY_AFTER_SECS),
            _ => rejected,
        }
    }
}

impl From<PathRejection> for Rejected {
    fn from(rejection: PathRejection) -> Self {
        Self::bad_request(rejection.body_text())
    }
}

/// A folder that cannot be read has no files, and they cannot be changed.
fn listed_files(listed: &Result<Vec<Listed>, String>, unwritable: Option<String>) -> RulesList {
    let files = listed.iter().flatten().map(|file| RulesFile {
        file: file.name.to_string(),
        etag: file.etag.as_str().to_owned(),
        bytes: file.bytes,
    });
    let reason = listed.as_ref().err().cloned().or(unwritable);
    RulesList {
        files: files.collect(),
        writable: reason.is_none(),
        reason,
    }
}

fn unexpected() -> Rejected {
    let reason = "the request ended unexpectedly";
    Rejected::new(StatusCode::INTERNAL_SERVER_ERROR, reason)
}
