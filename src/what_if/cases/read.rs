//! Reads test cases from YAML. Everything that cannot be tested as written is a problem with its
//! line and column.

use std::collections::HashMap;

use crate::base::time::Time;
use crate::limits::EXACT_MAX;
use crate::rules::config::Source;
use crate::rules::config::error::{Finding, Findings, SourceFindings, in_file_order};
use crate::rules::config::keys::{Name, keys, values};
use crate::rules::config::tollgate::reader;
use crate::rules::config::yaml::{Diagnostic, Located, Location, NODES_MAX, Node};
use crate::what_if::cases::case::{Case, CaseFile, Step};
use crate::what_if::cases::expectation::{self, Expected};
use crate::what_if::cases::request::{self, TestRequest};
use crate::what_if::cases::value::{fields, span, whole};
use crate::what_if::traffic::Request;

/// 2026-01-01T00:00:00Z, a Thursday: windows of seconds to weeks and of calendar months begin.
const START: Time = Time::from_micros(1_767_225_600_000_000);
/// Requests of a step. They take a second or two.
const TIMES_MAX: u64 = 1_000_000;

keys! {
    /// Test cases of rules, for `tollgate test`.
    pub(crate) enum Tests {
        /// Tests. Each begins without counters
        tests: TestList, required;
    }

    /// A test.
    enum Test {
        /// Name of the test, different from those of the others in the file
        name: Name, required;
        /// Requests in order, which share counters
        steps: StepList, required;
    }

    /// A request, sent once or several times.
    enum TestStep {
        /// `domain`, `descriptors` and `hits_addend`, as in the body of `/json`
        request: TestRequest, required;
        /// How often it is sent, 1 by default and at most 1,000,000. Each response must be as
        /// expected
        times: Times;
        /// The time, in RFC 3339. Not before that of the step before
        at: Moment;
        /// Time since the step before: `90s`, `1h30m`, `365d`. 0 by default
        after: Wait;
        /// What is expected of each response; without it, nothing
        expect: Expected;
    } where {"not": {"required": ["at", "after"]}}
}

values! {
    /// How often a request is sent.
    enum Times = {"type": "integer", "minimum": 1, "maximum": TIMES_MAX};
    /// The beginning of a time: what is after the date has many forms.
    enum Moment = {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}"};
    /// The beginning of a duration, which may have several units, or 0.
    enum Wait = {"type": ["string", "integer"], "pattern": "^ *[0-9]", "maximum": 0};
    /// A test or more.
    enum TestList(schemas) =
        {"type": "array", "items": schemas.subschema_for::<Test>(), "minItems": 1};
    /// At least one step expects something.
    enum StepList(schemas) = {"type": "array", "items": schemas.subschema_for::<TestStep>(),
        "contains": {"required": ["expect"]}};
}

/// Reads files.
///
/// # Errors
/// Every problem of every file. A warning about YAML, such as a repeated key, is one: the author
/// would believe that something is tested.
pub(crate) fn read(sources: Vec<Source>) -> Result<Vec<CaseFile>, Vec<Finding>> {
    let mut findings = Findings::default();
    let mut files = Vec::new();
    for source in sources {
        let cases = file(&mut findings.of(&source));
        files.push(CaseFile { source, cases });
    }
    let (mut problems, warnings) = findings.into_parts();
    problems.extend(warnings);
    if problems.is_empty() { Ok(files) } else { Err(in_file_order(problems)) }
}

fn file(findings: &mut SourceFindings<'_>) -> Vec<Case> {
    let root = match findings.read_yaml(NODES_MAX) {
        Ok(Some(root)) => root,
        Ok(None) => {
            let start = Location { line: 1, column: 1, width: 1 };
            let nothing = Diagnostic::new(start, "the file has no tests");
            findings.problem(nothing.hint("write `tests:` and a list of tests"));
            return Vec::new();
        }
        Err(error) => {
            findings.problem(error);
            return Vec::new();
        }
    };
    let Some(pairs) = fields(&root, Tests::KEYS, findings) else {
        return Vec::new();
    };
    let Some((_, list)) = pairs.into_iter().next() else {
        return Vec::new();
    };
    let mut findings = findings.at("tests");
    let problems = findings.problem_count();
    let cases = reader::list(list, &mut findings, case);
    if cases.is_empty() && findings.problem_count() == problems {
        findings.problem(Diagnostic::new(list.location, "the file has no tests"));
    }
    let mut lines = HashMap::new();
    for Located { value, location } in cases.iter().map(|case| &case.name) {
        if let Some(line) = lines.insert(value, location.line) {
            let text = format!("the test of line {line} has this name");
            findings.problem(Diagnostic::new(*location, text));
        }
    }
    cases
}

fn case(node: &Node, findings: &mut SourceFindings<'_>) -> Option<Case> {
    let problems = findings.problem_count();
    let mut name = None;
    let mut steps = None;
    let mut now = None;
    for (key, value) in fields(node, Test::KEYS, findings)? {
        match key {
            "name" => {
                let text = reader::text(value, key, findings)?;
                name = Some(Located { value: text.to_owned(), location: value.location });
            }
            _ => {
                let mut findings = findings.at(".steps");
                let read = reader::list(value, &mut findings, |node, findings| {
                    step(node, findings, &mut now)
                });
                steps = Some((value, read));
            }
        }
    }
    let missing = |text: &str| Diagnostic::new(node.location, text);
    let Some(name) = name.filter(|name| !name.value.trim().is_empty()) else {
        findings.problem(missing("the test has no `name`"));
        return None;
    };
    let Some((list, steps)) = steps else {
        findings.problem(missing("the test has no `steps`"));
        return None;
    };
    if findings.problem_count() > problems {
        return None;
    }
    if steps.is_empty() {
        findings.problem(Diagnostic::new(list.location, "the test has no step"));
    } else if steps.iter().all(|step| step.expected.is_empty()) {
        let nothing = missing("the test expects nothing");
        findings.problem(nothing.hint("write `expect: {code: OK}` in one of its steps"));
    }
    Some(Case { name, steps })
}

/// A step after one at the time `now`, which becomes its own. The first may be at any time.
fn step(node: &Node, findings: &mut SourceFindings<'_>, now: &mut Option<Time>) -> Option<Step> {
    let mut request = None;
    let mut times = 1;
    let mut at = None;
    let mut after = None;
    let mut expect = None;
    for (key, value) in fields(node, TestStep::KEYS, findings)? {
        match key {
            "request" => {
                let read = request::read(value, &mut findings.at(".request"));
                request = Some((value.location, read));
            }
            "times" => times = whole(value, key, 1..=TIMES_MAX, findings).unwrap_or(1),
            "at" => at = Some((point(value, findings), value.location)),
            "after" => after = Some((span(value, key, findings), value.location)),
            _ => expect = Some(value),
        }
    }
    let Some((location, request)) = request else {
        let text = "the step has no `request`";
        findings.problem(Diagnostic::new(node.location, text));
        return None;
    };
    let descriptors = request.as_ref().map(|request: &Request| request.descriptors.len());
    let expected = expect.map(|node| {
        let mut findings = findings.at(".expect");
        expectation::read(node, descriptors, &mut findings)
    });
    let before = now.unwrap_or(START);
    let (time, at) = match (at, after) {
        (Some(_), Some((_, location))) => {
            let both = Diagnostic::new(location, "a step has `at` or `after`, not both");
            findings.problem(both);
            return None;
        }
        (Some((at, location)), None) => (at?, location),
        (None, Some((after, location))) => (before.plus(after?), location),
        (None, None) => (before, location),
    };
    let request = request?;
    if now.is_some() && time < before {
        let text = format!("time goes back: the step before is at {}", before.to_rfc3339());
        findings.problem(Diagnostic::new(at, text));
    }
    if time.as_micros() >= EXACT_MAX {
        let text = "the step is after the year 2255, up to which times are exact";
        findings.problem(Diagnostic::new(at, text));
    }
    *now = Some(time);
    Some(Step {
        place: findings.place.clone(),
        location,
        time,
        times: u32::try_from(times).unwrap_or(u32::MAX),
        request,
        expected: expected.unwrap_or_default(),
    })
}

fn point(node: &Node, findings: &mut SourceFindings<'_>) -> Option<Time> {
    let time = Time::from_rfc3339(node.text());
    if time.is_none() {
        let text = "`at` must be a time of RFC 3339 from 1970 on";
        let hint = "write it like `at: 2026-01-01T00:00:00Z`";
        findings.problem(Diagnostic::new(node.location, text).hint(hint));
    }
    time
}
