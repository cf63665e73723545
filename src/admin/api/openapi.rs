//! The OpenAPI document, of the parts of all endpoints.

use std::sync::LazyLock;

use serde_json::Value;

/// The first one has what the others share. Each of the others has `paths` and `components`.
const PARTS: [&str; 6] = [
    include_str!("openapi.json"),
    include_str!("counters.json"),
    include_str!("actions.json"),
    include_str!("rules.json"),
    include_str!("rule_check.json"),
    include_str!("top.json"),
];

/// The document.
pub(crate) fn document() -> &'static str {
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
        let parts = PARTS.map(|part| serde_json::from_str(part).expect("a test reads it"));
        let whole = parts.into_iter().reduce(merged).unwrap_or_default();
        whole.to_string()
    });
    &DOCUMENT
}

/// Objects of both; else the second.
fn merged(first: Value, second: Value) -> Value {
    match (first, second) {
        (Value::Object(mut first), Value::Object(second)) => {
            for (name, value) in second {
                let value = match first.remove(&name) {
                    Some(known) => merged(known, value),
                    None => value,
                };
                first.insert(name, value);
            }
            Value::Object(first)
        }
        (_, second) => second,
    }
}
