//! Plays test cases: the limiter that serves decides their requests, on a manual clock.

use std::collections::HashSet;
use std::sync::Arc;

use crate::api::convert;
use crate::base::text::Text;
use crate::limiter::LimiterError;
use crate::limiter::decision::Decision;
use crate::report::{CaseFailure, CaseReport, CaseResult, Coverage, Mismatch, UnreachedRule};
use crate::rules::config::Source;
use crate::rules::config::error::Finding;
use crate::rules::config::yaml::{Diagnostic, Location};
use crate::rules::{Rule, RuleSet};
use crate::what_if::cases::case::{Case, CaseFile, Step};
use crate::what_if::cases::expectation::{self, Answer, Expectation};
use crate::what_if::engine::Engine;

/// Plays cases one after the other, each with its own counters.
struct Player {
    engine: Engine,
    rules: Arc<RuleSet>,
    /// Addresses of rules that a descriptor matched.
    reached: HashSet<*const Rule>,
}

/// Plays all cases of files.
pub(crate) fn play(engine: Engine, files: &[CaseFile]) -> CaseReport {
    let mut player = Player { rules: engine.rules(), engine, reached: HashSet::new() };
    let mut tests = Vec::new();
    for CaseFile { source, cases } in files {
        tests.extend(cases.iter().map(|case| player.play(source, case)));
    }
    let failed = tests.iter().filter(|test| !test.passed).count();
    CaseReport { passed: tests.len() - failed, failed, tests, coverage: Some(player.coverage()) }
}

impl Player {
    /// Plays a case up to the first response that is not as expected: those after it would differ
    /// for the same reason.
    fn play(&mut self, source: &Source, case: &Case) -> CaseResult {
        self.engine.restart();
        let mut requests =
            case.steps.iter().flat_map(|step| (1..=step.times).map(move |number| (step, number)));
        let failure = requests.find_map(|(step, number)| self.send(source, step, number));
        CaseResult {
            file: source.path.to_string(),
            line: case.name.location.line,
            name: case.name.value.clone(),
            passed: failure.is_none(),
            failure,
        }
    }

    /// `None` if the response is as expected.
    fn send(&mut self, source: &Source, step: &Step, number: u32) -> Option<CaseFailure> {
        let (response, mismatches) = match self.decide(step) {
            Ok(answer) => {
                let mismatches = compare(source, step, &answer);
                (!mismatches.is_empty()).then(|| (expectation::shown(&answer), mismatches))?
            }
            Err(error) => (error.to_string(), vec![of_error(source, step, &error)]),
        };
        Some(CaseFailure {
            request: number,
            requests: step.times,
            time: step.time,
            response,
            mismatches,
        })
    }

    fn coverage(&self) -> Coverage {
        let rules = self.rules.rules();
        let unreached = rules.iter().filter(|rule| {
            let address = std::ptr::from_ref::<Rule>(rule);
            !self.reached.contains(&address)
        });
        let unreached = unreached.map(|rule| UnreachedRule {
            rule: rule.path.to_string(),
            file: rule.origin.file.to_string(),
            line: rule.origin.line,
        });
        let unreached: Vec<_> = unreached.collect();
        Coverage { rules: rules.len(), reached: rules.len() - unreached.len(), unreached }
    }

    fn decide(&mut self, step: &Step) -> Result<Answer, LimiterError> {
        let query = convert::query(&step.request);
        let mut rules = Vec::with_capacity(query.descriptors.len());
        let reached = &mut self.reached;
        let inspect = |decision: &Decision<'_, '_, '_>| {
            for step in &decision.plan.steps {
                let rule = step.matched();
                reached.extend(rule.map(std::ptr::from_ref));
                rules.push(rule.map(|rule| rule.path.clone()));
            }
        };
        let response = self.engine.decide(&query, step.time, inspect)?;
        Ok(Answer { domain: Text(query.domain).to_string(), response, rules })
    }
}

fn compare(source: &Source, step: &Step, answer: &Answer) -> Vec<Mismatch> {
    let differing = step.expected.iter().filter_map(|expectation| {
        let found = expectation.found(answer);
        let Expectation { name, value, location, .. } = expectation;
        (found != *value).then(|| {
            let place = format!("{}.expect.{name}", step.place);
            mismatch(source, *location, place, name, [value.clone(), found])
        })
    });
    differing.collect()
}

fn of_error(source: &Source, step: &Step, error: &LimiterError) -> Mismatch {
    let place = format!("{}.request", step.place);
    let values = ["a response".to_owned(), format!("the error: {error}")].map(Some);
    mismatch(source, step.location, place, "request", values)
}

fn mismatch(
    source: &Source,
    location: Location,
    place: String,
    field: &str,
    [expected, found]: [Option<String>; 2],
) -> Mismatch {
    let [wanted, got] = [&expected, &found].map(|value| value.as_deref().unwrap_or("null"));
    let text = format!("{field}: expected {wanted}, found {got}");
    let about = Diagnostic::new(location, text.clone());
    Mismatch {
        line: location.line,
        column: location.column,
        excerpt: Finding::new(about, source, &place).to_string(),
        place,
        expected,
        found,
        text,
    }
}
