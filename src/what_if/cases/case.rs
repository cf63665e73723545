//! Test cases: requests at their times, and what is expected of each response.

use crate::base::time::Time;
use crate::rules::config::Source;
use crate::rules::config::yaml::{Located, Location};
use crate::what_if::cases::expectation::Expectation;
use crate::what_if::traffic::Request;

/// A file of test cases.
#[derive(Debug)]
pub(crate) struct CaseFile {
    pub(crate) source: Source,
    pub(crate) cases: Vec<Case>,
}

/// A test: its steps share counters, which begin empty.
#[derive(Debug)]
pub(crate) struct Case {
    /// Not empty; no other case of the file has it.
    pub(crate) name: Located<String>,
    /// At least one.
    pub(crate) steps: Vec<Step>,
}

/// Requests at one time.
#[derive(Debug)]
pub(crate) struct Step {
    /// Such as `tests[0].steps[1]`.
    pub(crate) place: String,
    /// The location of the request.
    pub(crate) location: Location,
    /// Not before that of the step before.
    pub(crate) time: Time,
    /// How often the request is sent; at least 1.
    pub(crate) times: u32,
    pub(crate) request: Request,
    /// Expected of each response.
    pub(crate) expected: Vec<Expectation>,
}
