//! The OpenAPI document without its texts and the names of its components.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{Records, service};
use crate::openapi::{document, resolved};

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
fn openapi_document_is_as_recorded() {
    let server = service().start();
    let document = document(&server);
    let mut operations = Records::default();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            operations.add(
                &format!("{method} {path}"),
                operation_form(&document, operation),
            );
        }
    }
    operations.assert_recorded("openapi");
}

/// What clients depend on: names, types and codes, without texts and names of components.
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
