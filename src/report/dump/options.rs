//! The options in force for a rule, by their keys in rules files and in the form that these have.

use serde_json::{Map, Value, json};

use crate::base::time::Span;
use crate::limits::{
    Calendar, CalendarSpec, Consistency, LeaseTerms, Limit, LimitOption, OverLimitHits, Unit,
    WarnAt, Windows,
};
use crate::rules::tree::Node;
use crate::rules::{EnforcedShare, FurtherLimit, OnLimit, Rule};

/// Units for a period that is no single unit. Windows and years are left out: 60 days are 60 days,
/// not two months.
const UNITS_OF_MULTIPLES: [Unit; 5] =
    [Unit::Week, Unit::Day, Unit::Hour, Unit::Minute, Unit::Second];
/// Units of a duration as rules files write it.
const DURATION_UNITS: [(u64, &str); 5] =
    [(3_600_000_000, "h"), (60_000_000, "m"), (1_000_000, "s"), (1_000, "ms"), (1, "us")];

/// The options in force that apply to the limits of a rule.
pub(super) fn options(node: &Node, rule: &Rule) -> Vec<(&'static str, Value)> {
    let mut options = match rule.limit() {
        Some(limit) => of_limit(limit, |option| own(option, node, rule, limit)),
        None => Vec::new(),
    };
    if rule.is_chained() {
        // What a limit does alone says nothing of the chain.
        options.retain(|(key, _)| *key != LimitOption::OverLimitHits.name());
        let stated = rule.over_limit_hits.map(|hits| hits.name().into());
        options.extend(stated.map(|hits| (LimitOption::OverLimitHits.name(), hits)));
    }
    let leased = rule.limit().zip(rule.lease.as_ref());
    if let Some(terms) = leased.and_then(|(limit, lease)| LeaseTerms::new(limit, lease.lifetime)) {
        options.extend([
            ("consistency", Consistency::Leased.name().into()),
            ("lease", duration(terms.lifetime).into()),
        ]);
    }
    match &rule.on_limit {
        OnLimit::Reject { body } => {
            options.push(("on_limit", "reject".into()));
            options.extend(body.as_ref().map(|body| ("response_body", (**body).into())));
        }
        OnLimit::Queue => {
            options.push(("on_limit", "queue".into()));
            let max_wait = rule.limit().map(|limit| duration(limit.max_wait).into());
            options.extend(max_wait.map(|max_wait| ("max_wait", max_wait)));
        }
        OnLimit::Degrade { request_headers } => {
            let headers =
                request_headers.iter().map(|(name, value)| (name.to_string(), (**value).into()));
            options.extend([
                ("on_limit", "degrade".into()),
                ("request_headers", Value::Object(headers.collect())),
            ]);
        }
    }
    let policy = rule.on_store_error;
    options.extend(policy.map(|policy| ("on_store_error", policy.name().into())));
    if rule.enforced_share != EnforcedShare::ALL {
        options.push(("enforce_percent", rule.enforced_share.percent().into()));
    }
    if !rule.limits.is_empty() {
        options.push(("limits", rule.limits.iter().map(further).collect()));
    }
    if rule.parents {
        options.push(("parents", true.into()));
    }
    options.extend(warn_at(&rule.warn_at));
    options
}

fn of_limit(
    limit: &Limit,
    value: impl Fn(LimitOption) -> Option<Value>,
) -> Vec<(&'static str, Value)> {
    let mut options = vec![("algorithm", limit.algorithm.name().into())];
    let taken = LimitOption::ALL.into_iter().filter(|option| limit.algorithm.takes(*option));
    options.extend(taken.filter_map(|option| Some((option.name(), value(option)?))));
    options
}

/// An option that shapes a limit, unless it is a part of the period or of `on_limit`.
fn shape(option: LimitOption, limit: &Limit) -> Option<Value> {
    match option {
        LimitOption::Burst => Some(limit.capacity.into()),
        LimitOption::Buckets => (limit.buckets > 0).then(|| limit.buckets.into()),
        LimitOption::Calendar => match limit.windows {
            Windows::Calendar(calendar) => Some(calendar_json(calendar)),
            Windows::Aligned | Windows::UtcMonths(_) => None,
        },
        LimitOption::UnitMultiplier
        | LimitOption::MaxWait
        | LimitOption::LeaseBy
        | LimitOption::Lease
        | LimitOption::OverLimitHits => None,
    }
}

/// An option of a rule's own limit.
fn own(option: LimitOption, node: &Node, rule: &Rule, limit: &Limit) -> Option<Value> {
    match option {
        LimitOption::LeaseBy => Some((*node.key).into()),
        LimitOption::Lease => Some(duration(limit.period).into()),
        // Leased limits drop over-limit hits, and have another key if the rule says so itself.
        LimitOption::OverLimitHits => {
            let counts = limit.over_limit_hits == OverLimitHits::Count;
            (rule.lease.is_none() || !counts).then(|| limit.over_limit_hits.name().into())
        }
        others => shape(others, limit),
    }
}

/// An item of `limits`.
fn further(further: &FurtherLimit) -> Value {
    let limit = &further.limit;
    let mut item: Map<String, Value> = Map::new();
    item.insert("name".into(), (*further.name).into());
    item.insert("requests".into(), limit.requests.into());
    if let Some((unit, multiplier)) = period_in_units(limit) {
        item.insert("unit".into(), unit.name().into());
        item.insert("unit_multiplier".into(), multiplier.into());
    }
    let options = of_limit(limit, |option| shape(option, limit));
    let options = options.into_iter().chain(warn_at(&further.warn_at));
    // A burst of 0 is that of a limit of 0; a rules file cannot name it.
    let options = options.filter(|(key, value)| *key != "burst" || *value != 0);
    item.extend(options.map(|(key, value)| (key.to_owned(), value)));
    Value::Object(item)
}

fn warn_at(warn_at: &WarnAt) -> Option<(&'static str, Value)> {
    let percents: Vec<String> =
        warn_at.percents().iter().map(|percent| format!("{percent}%")).collect();
    match &percents[..] {
        [] => None,
        [percent] => Some(("warn_at", percent.as_str().into())),
        _ => Some(("warn_at", percents.into())),
    }
}

fn calendar_json(calendar: &Calendar) -> Value {
    let spec = &calendar.spec;
    let CalendarSpec { time_zone, first_weekday, first_day, at: (hour, minute) } = spec;
    if *spec == CalendarSpec::of(time_zone.clone()) {
        return (**time_zone).into();
    }
    json!({
        "time_zone": time_zone,
        "first_weekday": first_weekday,
        "first_day": first_day,
        "at": format!("{hour:02}:{minute:02}"),
    })
}

/// The unit and how many of it make the period; `None` for concurrency, which has none.
pub(super) fn period_in_units(limit: &Limit) -> Option<(Unit, u64)> {
    if limit.algorithm.counts_holders() {
        return None;
    }
    if let Windows::Calendar(calendar) = limit.windows {
        return Some((calendar.unit, calendar.months.into()));
    }
    let period = limit.period.as_micros();
    let unit = limit.unit().or_else(|| {
        UNITS_OF_MULTIPLES.into_iter().find(|unit| period.is_multiple_of(unit.span().as_micros()))
    })?;
    Some((unit, period / unit.span().as_micros()))
}

/// A duration as rules files write it, such as `200ms`.
fn duration(span: Span) -> String {
    let micros = span.as_micros();
    let (unit, name) = DURATION_UNITS
        .into_iter()
        .find(|(unit, _)| micros.is_multiple_of(*unit))
        .unwrap_or((1, "us"));
    format!("{}{name}", micros / unit)
}
