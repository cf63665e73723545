//! Test cases: requests at their times, and what is expected of each response.

use crate::cli::test::expectation::Expectation;
use crate::config::Source;
use crate::config::yaml::{Located, Location};
use crate::time::Time;
use crate::traffic::Request;

/// A file of test cases.
#[derive(Debug)]
pub(super) struct CaseFile {
    pub(super) source: Source,
    pub(super) cases: Vec<Case>,
}

/// A test: its steps share counters, which begin empty.
#[derive(Debug)]
pub(super) struct Case {
    /// Not empty; no other case of the file has it.
    pub(super) name: Located<String>,
    /// At least one.
    pub(super) steps: Vec<Step>,
}

/// Requests at one time.
#[derive(Debug)]
pub(super) struct Step {
    /// Such as `tests[0].steps[1]`.
    pub(super) place: String,
    /// Of the request.
    pub(super) location: Location,
    /// Not before that of the step before.
    pub(super) time: Time,
    /// How often the request is sent; at least 1.
    pub(super) times: u32,
    pub(super) request: Request,
    /// Expected of each response.
    pub(super) expected: Vec<Expectation>,
}
