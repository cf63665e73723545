//! The OpenAPI document without its texts and the names of its components, so that no field that a
//! client reads is lost. REWRITE=1 rewrites the record.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::{RULES, document, resolved};
use crate::support::{TestServer, sample, write};

const RECORD: &str = "tests/suite/openapi/record.json";

/// A schema with the types, fields and values of all its parts.
#[derive(Default)]
struct Form {
    types: BTreeSet<String>,
    required: BTreeSet<String>,
    properties: Map<String, Value>,
    values: BTreeSet<String>,
    items: Value,
    others: Value,
}

#[test]
fn document_has_the_recorded_fields() {
    let server = TestServer::with_rules(RULES).start();
    let document = document(&server);
    let paths = document["paths"].as_object().expect("paths").iter();
    let operations = paths.flat_map(|(path, methods)| {
        let methods = methods.as_object().expect("methods").iter();
        let form = |operation| operation_form(&document, operation);
        methods.map(move |(method, operation)| (format!("{method} {path}"), form(operation)))
    });
    let found = Value::Object(operations.collect());
    if std::env::var_os("REWRITE").is_some() {
        write(Path::new(&sample(RECORD)), &format!("{found:#}\n"));
    }
    let recorded = fs::read_to_string(sample(RECORD)).expect("there is a record");
    let recorded = serde_json::from_str(&recorded).expect("it is JSON");
    let mut differences = Vec::new();
    compare("", &recorded, &found, &mut differences);
    assert!(
        differences.is_empty(),
        "{RECORD}; REWRITE=1 rewrites it:\n{}",
        differences.join("\n")
    );
}

/// Adds where two values differ.
fn compare(at: &str, recorded: &Value, found: &Value, differences: &mut Vec<String>) {
    match (recorded, found) {
        (Value::Object(left), Value::Object(right)) => {
            let names: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
            for name in names {
                let sides = [left, right].map(|side| side.get(name));
                match sides {
                    [Some(left), Some(right)] => {
                        compare(&format!("{at}/{name}"), left, right, differences);
                    }
                    [Some(left), None] => differences.push(format!("{at}/{name}: lost {left}")),
                    [_, right] => differences.push(format!("{at}/{name}: new {right:?}")),
                }
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (index, (left, right)) in left.iter().zip(right).enumerate() {
                compare(&format!("{at}/{index}"), left, right, differences);
            }
        }
        (left, right) if left != right => {
            differences.push(format!("{at}: recorded {left}\n  found {right}"));
        }
        _ => {}
    }
}

/// The part that clients depend on: names, types and codes, without texts and names of components.
fn operation_form(document: &Value, operation: &Value) -> Value {
    let resolve = |value| resolved(document, value);
    let content = |value: &Value| -> Map<String, Value> {
        let types = value["content"].as_object().into_iter().flatten();
        let form = |(name, media): (&String, &Value)| {
            (name.clone(), schema_form(document, &media["schema"]))
        };
        types.map(form).collect()
    };
    let parameters = operation["parameters"]
        .as_array()
        .into_iter()
        .flatten()
        .map(resolve);
    let parameters = parameters.map(|parameter| {
        let schema = schema_form(document, &parameter["schema"]);
        let name = format!("{} {}", parameter["in"], parameter["name"]).replace('"', "");
        (
            name,
            json!({"required": parameter["required"], "schema": schema}),
        )
    });
    let responses = operation["responses"].as_object().into_iter().flatten();
    let responses = responses.map(|(code, response)| {
        let response = resolve(response);
        let headers = response["headers"].as_object().into_iter().flatten();
        let headers: Vec<&String> = headers.map(|(name, _)| name).collect();
        (
            code.clone(),
            json!({"headers": headers, "content": content(response)}),
        )
    });
    json!({
        "operation": operation["operationId"],
        "security": operation["security"],
        "parameters": parameters.collect::<Map<_, _>>(),
        "request": content(resolve(&operation["requestBody"])),
        "responses": responses.collect::<Map<_, _>>(),
    })
}

/// One form for each way to write a schema.
fn schema_form(document: &Value, schema: &Value) -> Value {
    let mut form = Form::default();
    form.add(document, schema);
    form.value()
}

impl Form {
    fn add(&mut self, document: &Value, schema: &Value) {
        let schema = resolved(document, schema);
        let list = |name: &str| schema[name].as_array().cloned().unwrap_or_default();
        for name in ["allOf", "anyOf", "oneOf"] {
            for part in list(name) {
                self.add(document, &part);
            }
        }
        let text = |value: &Value| value.as_str().map(str::to_owned);
        self.types.extend(
            list("type")
                .iter()
                .chain([&schema["type"]])
                .filter_map(text),
        );
        self.required
            .extend(list("required").iter().filter_map(text));
        let constant = schema.get("const").cloned();
        for value in list("enum").into_iter().chain(constant) {
            let kind = if value.is_null() { "null" } else { "string" };
            self.types.insert(kind.to_owned());
            self.values.extend(text(&value));
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            self.properties
                .insert(name.clone(), schema_form(document, property));
        }
        for (part, name) in [
            (&mut self.items, "items"),
            (&mut self.others, "additionalProperties"),
        ] {
            if schema[name].is_object() {
                *part = schema_form(document, &schema[name]);
            }
        }
    }

    fn value(self) -> Value {
        let types = Vec::from_iter(self.types).join(" | ");
        let parts = [
            ("type", json!(types)),
            ("required", json!(self.required)),
            ("properties", json!(self.properties)),
            ("enum", json!(self.values)),
            ("items", self.items),
            ("additionalProperties", self.others),
        ];
        let is_empty = |value: &Value| match value {
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            other => other.is_null() || other == "",
        };
        let parts = parts.into_iter().filter(|(_, value)| !is_empty(value));
        let parts: Map<_, _> = parts
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        // Most have a type only.
        match (parts.len(), parts.get("type")) {
            (1, Some(types)) => types.clone(),
            _ => parts.into(),
        }
    }
}
