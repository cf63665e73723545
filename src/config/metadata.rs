//! `metadata` of a descriptor: any YAML, sent to Envoy as JSON.

use serde_json::{Map, Number, Value as Json};

use crate::config::yaml::{Kind, Node, Scalar, Value};
use crate::rules::Metadata;

/// Keys of the map keep their text; keys of maps in it have their YAML 1.1 value, so `y` is `true`.
pub fn to_json(pairs: &[(Node, Node)]) -> Metadata {
    pairs
        .iter()
        .map(|(key, value)| (text_of(key), value_of(value)))
        .collect()
}

fn value_of(node: &Node) -> Json {
    match &node.kind {
        Kind::Scalar(scalar) => scalar_of(scalar),
        Kind::List(items) => items.iter().map(value_of).collect(),
        Kind::Map(pairs) => pairs
            .iter()
            .map(|(key, value)| (go_text(key), value_of(value)))
            .collect::<Map<_, _>>()
            .into(),
    }
}

fn scalar_of(scalar: &Scalar) -> Json {
    match scalar.value() {
        Value::Null => Json::Null,
        Value::Bool(value) => value.into(),
        Value::Int(value) => value.into(),
        Value::BigInt(value) => value.into(),
        Value::Float(value) => float(value),
        Value::Text => (*scalar.text).into(),
    }
}

/// JSON cannot represent infinity and NaN; protobuf's JSON writes them as text.
fn float(value: f64) -> Json {
    Number::from_f64(value).map_or_else(|| go_float(value).into(), Json::Number)
}

/// The text as written.
pub(crate) fn text_of(node: &Node) -> String {
    match &node.kind {
        Kind::Scalar(scalar) => scalar.text.to_string(),
        Kind::List(_) | Kind::Map(_) => go_text(node),
    }
}

/// As Go prints the value in the messages of envoyproxy/ratelimit.
pub(crate) fn go_text(node: &Node) -> String {
    match &node.kind {
        Kind::Scalar(scalar) => match scalar.value() {
            Value::Null => "<nil>".to_owned(),
            Value::Bool(value) => value.to_string(),
            Value::Int(value) => value.to_string(),
            Value::BigInt(value) => value.to_string(),
            Value::Float(value) => go_float(value),
            Value::Text => scalar.text.to_string(),
        },
        Kind::List(items) => format!(
            "[{}]",
            items.iter().map(go_text).collect::<Vec<_>>().join(" ")
        ),
        Kind::Map(pairs) => {
            let pairs: Vec<_> = pairs
                .iter()
                .map(|(key, value)| format!("{}:{}", go_text(key), go_text(value)))
                .collect();
            format!("map[{}]", pairs.join(" "))
        }
    }
}

pub(crate) fn go_float(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
    } else {
        value.to_string()
    }
}
