//! `tollgate healthcheck`: whether a service should receive requests, for containers without a
//! shell.

use std::process::ExitCode;

use http::StatusCode;

use crate::cli::fetch::{self, Service};
use crate::cli::output::{CliError, print};

/// Prints the status of each part of the service; exit code 0 if it is ready.
///
/// # Errors
/// The service is unreachable.
pub(crate) fn run(service: &Service) -> Result<ExitCode, CliError> {
    let response = fetch::send(&service.url, "/ready", None, &[])?;
    print(&response.body);
    Ok(ExitCode::from(u8::from(response.status != StatusCode::OK)))
}
