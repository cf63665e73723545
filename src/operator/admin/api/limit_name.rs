//! The limit of a rule that a request for a counter means.

use std::ptr;

use http::StatusCode;

use crate::operator::admin::api::answer::Rejected;
use crate::rules::{Link, Step};

/// The limit of this name of the rule that a descriptor matches. Without a name its own, else its
/// first one. `None` if the rule has none: levels above have descriptors of their own.
pub(super) fn chosen<'p, 'r>(
    step: &'p Step<'r>,
    name: Option<&str>,
) -> Result<Option<&'p Link<'r>>, Rejected> {
    let is_of_rule = |link: &&Link<'_>| match (step.matched(), link.rule) {
        (Some(matched), Some(rule)) => ptr::eq(matched, rule),
        _ => true,
    };
    let mut links = step.links().iter().filter(is_of_rule);
    let Some(name) = name else {
        // Its own is the first.
        return Ok(links.next());
    };
    let found = links.clone().find(|link| link.name() == name);
    found.map(Some).ok_or_else(|| {
        let names: Vec<_> = links.by_ref().map(|link| format!("`{}`", link.name())).collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let reason = format!("the rule has no limit `{name}`; its limits: {names}");
        Rejected::new(StatusCode::UNPROCESSABLE_ENTITY, reason)
    })
}

/// Rejects a change of what a rule has not.
pub(super) fn only_above() -> Rejected {
    let reason = "the rule has no limit of its own, only those of the rules above; write a descriptor that ends there";
    Rejected::new(StatusCode::UNPROCESSABLE_ENTITY, reason)
}
