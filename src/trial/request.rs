//! Compares all descriptors of a request, and the codes of the two responses. Pure.

use std::sync::Arc;

use crate::base::time::{MICROS_PER_SECOND, Span, Time};
use crate::report::comparison::{DecidedSide, StatusView};
use crate::report::outcome::Outcome;
use crate::trial::compare::{Class, Comparison, Status, compare};

/// Shown for the rule of a descriptor that no rule applies to.
const NO_RULE: &str = "(no rule)";

/// A request as decided here.
#[derive(Debug)]
pub(crate) struct Decision {
    pub(crate) time: Time,
    /// Whether the response is OVER_LIMIT, or the text of the error.
    pub(crate) response: Result<bool, Arc<str>>,
    pub(crate) descriptors: Vec<Outcome>,
}

/// The reply of the upstream.
#[derive(Debug)]
pub(crate) enum Reply {
    Decided {
        over_limit: bool,
        statuses: Vec<Status>,
    },
    /// An error, or none at all.
    Error(Arc<str>),
}

/// A descriptor that was compared.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) rule: Arc<str>,
    pub(crate) comparison: Comparison,
}

/// A difference between the two sides: see
/// [`Disagreement`](crate::report::comparison::Disagreement).
#[derive(Debug)]
pub(crate) struct Difference {
    /// `None` for the response.
    pub(crate) rule: Option<Arc<str>>,
    pub(crate) here: DecidedSide,
    pub(crate) there: DecidedSide,
    pub(crate) class: Class,
}

/// Compares a request whose counters here began at `began`: a row for each descriptor, and what
/// differs. `None` if the reply has not one status for each descriptor.
pub(crate) fn compare_request(
    here: &Decision,
    there: &Reply,
    began: Time,
) -> Option<(Vec<Row>, Vec<Difference>)> {
    let statuses = match there {
        Reply::Decided { statuses, .. } if statuses.len() == here.descriptors.len() => statuses,
        Reply::Decided { .. } => return None,
        Reply::Error(_) => &Vec::new(),
    };
    let mut differences = Vec::new();
    let mut rows = Vec::with_capacity(here.descriptors.len());
    for (index, own) in here.descriptors.iter().enumerate() {
        let status = statuses.get(index);
        let decided = here.response.is_ok().then_some(own);
        let comparison = compare(decided, status, began, here.time);
        let rule = own.rule.clone().unwrap_or_else(|| NO_RULE.into());
        if let Some(class) = comparison.class() {
            differences.push(Difference {
                rule: Some(rule.clone()),
                here: match &here.response {
                    Ok(_) => stated(&own.into()),
                    Err(error) => failed(error),
                },
                there: status.map_or_else(|| there.shown(), stated),
                class,
            });
        }
        rows.push(Row { rule, comparison });
    }
    if differences.is_empty()
        && let (Ok(own), Reply::Decided { over_limit, .. }) = (&here.response, there)
        && own != over_limit
    {
        differences.push(Difference {
            rule: None,
            here: response(*own),
            there: response(*over_limit),
            class: Class::Unexplained,
        });
    }
    Some((rows, differences))
}

fn stated(status: &Status) -> DecidedSide {
    let seconds = |span: Span| format!("{}s", span.as_micros() / MICROS_PER_SECOND);
    DecidedSide::Status(StatusView {
        code: status.over_limit.into(),
        limit_remaining: status.remaining,
        current_limit: status.limit,
        duration_until_reset: status.until_reset.map(seconds),
    })
}

fn response(over_limit: bool) -> DecidedSide {
    let code = over_limit.into();
    DecidedSide::Response { code }
}

fn failed(error: &str) -> DecidedSide {
    let error = error.to_owned();
    DecidedSide::Error { error }
}

impl Reply {
    fn shown(&self) -> DecidedSide {
        match self {
            Self::Decided { over_limit, .. } => response(*over_limit),
            Self::Error(error) => failed(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(over_limit: bool) -> Status {
        Status { over_limit, limit: None, remaining: 0, until_reset: None }
    }

    fn decision(response: bool, descriptors: &[bool]) -> Decision {
        let outcome = |&over_limit| Outcome { over_limit, ..Outcome::default() };
        Decision {
            time: Time::default(),
            response: Ok(response),
            descriptors: descriptors.iter().map(outcome).collect(),
        }
    }

    fn reply(over_limit: bool, statuses: &[bool]) -> Reply {
        Reply::Decided { over_limit, statuses: statuses.iter().map(|over| status(*over)).collect() }
    }

    /// The comparisons, and the rules of the differences.
    type Summary = (Vec<Comparison>, Vec<Option<Arc<str>>>);

    fn compared(here: &Decision, there: &Reply) -> Option<Summary> {
        let (rows, differences) = compare_request(here, there, Time::default())?;
        let rows = rows.into_iter().map(|row| row.comparison).collect();
        let rules = differences.into_iter().map(|difference| difference.rule);
        Some((rows, rules.collect()))
    }

    #[test]
    fn each_descriptor_is_compared_with_its_status() {
        let rows = compared(&decision(true, &[false, true]), &reply(true, &[false, true]));
        assert_eq!(rows, Some((vec![Comparison::Agreed; 2], vec![])));
        let rows = compared(&decision(true, &[false, true]), &reply(false, &[false, false]));
        let expected = vec![Comparison::Agreed, Comparison::OverHere(Class::Unexplained)];
        assert_eq!(rows, Some((expected, vec![Some(NO_RULE.into())])));
    }

    #[test]
    fn responses_are_compared_if_all_statuses_agree() {
        let rows = compared(&decision(true, &[true, false]), &reply(false, &[true, false]));
        assert_eq!(rows, Some((vec![Comparison::Agreed; 2], vec![None])));
    }

    #[test]
    fn an_error_there_is_about_every_descriptor() {
        let error = Reply::Error("Unavailable: gone".into());
        let (rows, rules) = compared(&decision(false, &[false; 2]), &error).expect("they are");
        assert_eq!(rows, [Comparison::NoStatus(Class::ErrorThere); 2]);
        assert_eq!(rules.len(), 2);
    }

    #[test]
    fn a_reply_with_other_descriptors_is_not_compared() {
        assert_eq!(compared(&decision(false, &[false]), &reply(false, &[])), None);
        assert_eq!(compared(&decision(false, &[false]), &reply(false, &[false; 2])), None);
    }
}
