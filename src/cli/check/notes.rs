//! What `check` reports about valid rules that `serve` does not: it depends on other systems.

use std::collections::{BTreeMap, BTreeSet};

use crate::base::time::Span;
use crate::limits::Windows;
use crate::rules::config::Source;
use crate::rules::config::error::{Finding, Findings, in_file_order};
use crate::rules::config::yaml::{Diagnostic, Location};
use crate::rules::key::KeyFormat;
use crate::rules::tree::{Level, Node};
use crate::rules::{OnLimit, Rule, RuleSet};

/// A rule, what is to be known about it, and what to do.
type Note<'r> = (&'r Rule, String, String);

/// There are no files with rules.
pub(super) fn nothing_limited(name: &str) -> Finding {
    let place = Source { name: name.into(), path: name.into(), text: "".into() };
    let text = "no rules files, so nothing would be limited";
    Finding::new(Diagnostic::new(Location::default(), text), &place, "")
}

/// Which timeout rules that queue requests need at Envoy: the longest of each file. `serve` does
/// not report it, since it cannot know what is set there.
pub(super) fn queues(rules: &RuleSet, files: &[Source]) -> Vec<Finding> {
    let max_wait = |rule: &Rule| {
        rule.limit()
            .filter(|_| rule.on_limit == OnLimit::Queue && !rule.shadow_mode)
            .map(|limit| limit.max_wait)
    };
    let all = rules.rules();
    let paths: BTreeSet<&str> = all.iter().map(|rule| &*rule.origin.file).collect();
    let longest = paths.iter().filter_map(|path| {
        all.iter()
            .filter(|rule| *rule.origin.file == **path)
            .filter_map(|rule| Some((max_wait(rule)?, *rule)))
            .max_by_key(|(wait, _)| *wait)
    });
    let found = longest.map(|(wait, rule)| {
        let text = format!(
            "requests are queued for up to {wait}, but Envoy waits only 20 ms for an answer by default"
        );
        let hint = format!(
            "give Envoy's rate limit filter a `timeout` of at least {}s",
            timeout_for(wait).as_secs_f64()
        );
        (rule, text, hint)
    });
    findings(found, files)
}

/// The first leased rule and the first of a day or more, where each process counts alone.
pub(super) fn one_process(rules: &RuleSet, files: &[Source]) -> Vec<Finding> {
    let all = rules.rules();
    let first = |is_so: fn(&Rule) -> bool, text: &str, hint: &str| {
        let rule = all.iter().copied().find(|rule| is_so(rule))?;
        Some((rule, text.to_owned(), hint.to_owned()))
    };
    let leased = first(
        |rule| rule.lease.is_some(),
        "consistency: leased has no effect with BACKEND_TYPE=memory: one process is always exact",
        "write consistency: exact, or set REDIS_URL",
    );
    let long = first(
        Rule::has_long_period,
        "with BACKEND_TYPE=memory a restart loses the counters of limits of a day or more",
        "set REDIS_URL, of a Redis with an append-only file",
    );
    findings(leased.into_iter().chain(long), files)
}

/// What envoyproxy/ratelimit does instead, for the first rule with each key that is about several
/// limits or about calendars. `serve` does not report it, since it is there in any case.
pub(super) fn reference(rules: &RuleSet, files: &[Source]) -> Vec<Finding> {
    type Has = fn(&Rule) -> bool;
    let keys: [(&str, Has, &str); 4] = [
        ("limits", |rule| !rule.limits.is_empty() && rule.limit().is_none(), "limits nothing here"),
        (
            "limits",
            |rule| !rule.limits.is_empty() && rule.limit().is_some(),
            "has the rate_limit alone",
        ),
        ("parents", |rule| rule.parents, "counts this rule alone, and none above"),
        (
            "calendar",
            |rule| rule.all_limits().any(|limit| matches!(limit.windows, Windows::Calendar(_))),
            "has windows of UTC, and months of 30 days",
        ),
    ];
    let all = rules.rules();
    let found = keys.into_iter().filter_map(|(key, is_so, instead)| {
        let rule = all.iter().copied().find(|rule| is_so(rule))?;
        let text = format!("envoyproxy/ratelimit ignores `{key}`: it {instead}");
        let hint = "if you go back to it, write what applies there instead";
        Some((rule, text, hint.to_owned()))
    });
    findings(found, files)
}

/// The shortest timeout that leaves this time to wait: a fifth of it, at least 8 ms, is reserved
/// for the response.
fn timeout_for(wait: Span) -> Span {
    Span::from_micros((wait.as_micros() * 5 / 4).max(wait.as_micros() + 8_000))
}

/// Descriptors side by side of which one has any value and another begins with its key and `_`. The
/// reference format joins keys and values with `_`, so clients can make them share a counter.
/// `serve` does not repeat it at every load.
pub(super) fn shared_counters(rules: &RuleSet, files: &[Source]) -> Vec<Finding> {
    let mut shared = Vec::new();
    for domain in rules.domains() {
        collect_shared(&domain.root, &mut shared);
    }
    let hint = "set CACHE_KEY_FORMAT=safe (every counter starts again, once), or rename a key";
    let found = shared.into_iter().map(|(rule, one, other)| {
        let text = format!("{one} and {other} share a counter on Redis");
        (rule, text, hint.to_owned())
    });
    findings(found, files)
}

/// In the order of their files.
fn findings<'r>(notes: impl Iterator<Item = Note<'r>>, files: &[Source]) -> Vec<Finding> {
    let mut findings = Findings::default();
    for (rule, text, hint) in notes {
        let location = Location { line: rule.origin.line, column: rule.origin.column, width: 1 };
        let file = files
            .iter()
            .find(|file| file.path == rule.origin.file)
            .expect("every rule is from a file");
        findings
            .of(file)
            .at(format_args!("rule {}", rule.path))
            .warning(Diagnostic::new(location, text).hint(hint));
    }
    in_file_order(findings.into_parts().1)
}

/// Rules that can share a counter with another one, each with an example of both.
fn collect_shared<'r>(level: &'r Level, shared: &mut Vec<Note<'r>>) {
    let labels: BTreeMap<&str, &Node> =
        level.nodes().iter().map(|node| (&*node.label, node)).collect();
    for node in level.nodes() {
        let prefix = format!("{}_", node.key);
        let rule = node
            .rule
            .as_deref()
            .filter(|rule| node.value.is_empty() && rule.key_tail.format() == KeyFormat::Reference);
        let other = rule.and_then(|_| {
            labels
                .range(&*prefix..)
                .take_while(|(label, _)| label.starts_with(&prefix))
                .find(|(_, other)| other.key != node.key && other.rule.is_some())
        });
        if let (Some(rule), Some((label, other))) = (rule, other) {
            let (rest, value) = match &*other.value {
                "" => (format!("{}_x", &label[prefix.len()..]), "x"),
                value => (label[prefix.len()..].to_owned(), value),
            };
            shared.push((rule, format!("{}={rest}", node.key), format!("{}={value}", other.key)));
        }
        if let Some(below) = &node.below {
            collect_shared(below, shared);
        }
    }
}
