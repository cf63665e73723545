//! `metadata` of a descriptor: any YAML, sent to Envoy as JSON.

use serde_json::{Map, Number, Value as Json};

use crate::rules::Metadata;
use crate::rules::config::yaml::{Kind, Node, Scalar, Value};

/// Memory of a map: a node of its B-tree holds eleven pairs.
const MAP_BYTES: usize = 640;
/// Memory of another value, besides its text.
const VALUE_BYTES: usize = 64;

/// Keys of the map keep their text; keys of maps in it have their YAML 1.1 value, so `y` is `true`.
pub fn to_json<'n>(pairs: impl IntoIterator<Item = &'n (Node, Node)>) -> Metadata {
    pairs.into_iter().map(|(key, value)| (text_of(key), value_of(value))).collect()
}

/// Memory of a pair as JSON.
pub(crate) fn json_bytes((key, value): &(Node, Node)) -> usize {
    bytes_of(key) + bytes_of(value)
}

fn bytes_of(node: &Node) -> usize {
    match &node.kind {
        Kind::Scalar(scalar) => VALUE_BYTES + scalar.text.len(),
        Kind::List(items) => VALUE_BYTES + items.iter().map(bytes_of).sum::<usize>(),
        Kind::Map(pairs) => MAP_BYTES + pairs.iter().map(json_bytes).sum::<usize>(),
    }
}

fn value_of(node: &Node) -> Json {
    match &node.kind {
        Kind::Scalar(scalar) => scalar_of(scalar),
        Kind::List(items) => items.iter().map(value_of).collect(),
        Kind::Map(pairs) => pairs
            .iter()
            .map(|(key, value)| (go_text(key, usize::MAX), value_of(value)))
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
        Kind::List(_) | Kind::Map(_) => go_text(node, usize::MAX),
    }
}

/// The beginning of [`go_text`] for a message.
pub(crate) fn go_text_in_message(node: &Node) -> String {
    /// Bytes of a value in a message about rules.
    const BYTES_MAX: usize = 1_024;
    go_text(node, BYTES_MAX)
}

/// The value as Go prints it in the messages of envoyproxy/ratelimit, up to about `bytes_max`.
fn go_text(node: &Node, bytes_max: usize) -> String {
    let mut text = String::new();
    write_go_text(node, bytes_max, &mut text);
    text
}

/// Writes no further value when there are `bytes_max`.
fn write_go_text(node: &Node, bytes_max: usize, out: &mut String) {
    if out.len() >= bytes_max {
        return;
    }
    match &node.kind {
        Kind::Scalar(scalar) => match scalar.value() {
            Value::Null => *out += "<nil>",
            Value::Bool(value) => *out += &value.to_string(),
            Value::Int(value) => *out += &value.to_string(),
            Value::BigInt(value) => *out += &value.to_string(),
            Value::Float(value) => *out += &go_float(value),
            Value::Text => *out += &scalar.text,
        },
        Kind::List(items) => {
            *out += "[";
            for (index, item) in items.iter().enumerate() {
                *out += if index > 0 { " " } else { "" };
                write_go_text(item, bytes_max, out);
            }
            *out += "]";
        }
        Kind::Map(pairs) => {
            *out += "map[";
            for (index, (key, value)) in pairs.iter().enumerate() {
                *out += if index > 0 { " " } else { "" };
                write_go_text(key, bytes_max, out);
                *out += ":";
                write_go_text(value, bytes_max, out);
            }
            *out += "]";
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
