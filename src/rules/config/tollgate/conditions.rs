//! What holds between the options of one block, for the schema that editors read.

use serde_json::{Map, Value as Json, json};

use crate::limits::{Algorithm, Consistency, LimitOption, OverLimitHits};
use crate::rules::config::tollgate::value::OnLimitWord;

/// A block with this algorithm has no option that it does not take.
pub(super) fn without_misplaced(algorithm: Algorithm) -> Json {
    let mut options = Map::new();
    for option in LimitOption::ALL {
        let allowed = match option {
            option if algorithm.takes(option) => continue,
            // Also for hits that are taken ahead.
            LimitOption::Lease => continue,
            // What all algorithms but one do by default has no effect.
            LimitOption::OverLimitHits => json!({"const": OverLimitHits::Drop.name()}),
            _ => false.into(),
        };
        options.insert(option.name().into(), allowed);
    }
    when("algorithm", algorithm.name(), &options)
}

pub(super) fn without_options_of_others(on_limit: OnLimitWord) -> Json {
    let others = OnLimitWord::ALL.into_iter().filter(|other| *other != on_limit);
    let options = others.map(|other| (other.option().to_owned(), false.into()));
    when("on_limit", on_limit.name(), &options.collect())
}

pub(super) fn leased() -> Json {
    let algorithms =
        Algorithm::ALL.into_iter().filter(|algorithm| algorithm.lease_error().is_none());
    let others = json!({
        "algorithm": {"enum": algorithms.collect::<Vec<_>>()},
        "on_limit": {"not": {"const": OnLimitWord::Queue}},
        "over_limit_hits": {"const": OverLimitHits::Drop},
        "limits": false,
        "parents": {"const": false},
        "warn_at": false,
    });
    let others = others.as_object().cloned().unwrap_or_default();
    when("consistency", Consistency::Leased.name(), &others)
}

/// What other options may be in a block with this one.
fn when(key: &str, word: &str, options: &Map<String, Json>) -> Json {
    let stated = json!({"properties": {(key): {"const": word}}, "required": [key]});
    json!({"if": stated, "then": {"properties": options}})
}
