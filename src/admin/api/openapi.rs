//! The OpenAPI document: paths by the files beside the endpoints, schemas by the types of answers.
//!
//! The files leave out what is the same everywhere:
//!
//! - `errors` of an operation lists responses of `components`, whose names begin with their status.
//! - A response that is a text is an error with this description.
//! - A body with a `schema` in place of its `content` is JSON of the type of this name.

use std::sync::LazyLock;

use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

use crate::admin::api::answer::Body;
use crate::report::answer::ErrorBody;
use crate::report::counter::{
    CounterChange, CounterList, CounterView, Grant, RateLimitRequest, Reset,
};
use crate::report::rule_file::{RulesChanged, RulesHistory, RulesList, RulesRollback};
use crate::report::top::{OverLimitEvent, TopKeys};
use crate::report::usage::Usage;
use crate::report::{Finding, RuleCheck, RuleSimulation};

type Object = Map<String, Value>;

/// The first one has parts that the others use. Each of the others has `paths` and `components`.
const PARTS: [&str; 7] = [
    include_str!("openapi.json"),
    include_str!("counters.json"),
    include_str!("actions.json"),
    include_str!("rules.json"),
    include_str!("rule_check.json"),
    include_str!("top.json"),
    include_str!("usage.json"),
];

/// The types of answers and of bodies of requests, with those that their fields have.
const TYPES: [fn(&mut SchemaGenerator) -> Schema; 17] = [
    answer::<CounterChange>,
    answer::<CounterList>,
    answer::<CounterView>,
    answer::<ErrorBody>,
    answer::<RuleCheck>,
    answer::<RuleSimulation>,
    answer::<RulesChanged>,
    answer::<RulesHistory>,
    answer::<RulesList>,
    answer::<Usage>,
    schema::<Finding>,
    schema::<Grant>,
    schema::<OverLimitEvent<'_>>,
    schema::<RateLimitRequest>,
    schema::<Reset>,
    schema::<RulesRollback>,
    schema::<TopKeys>,
];

/// The document.
pub(crate) fn document() -> &'static str {
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
        let parts = PARTS.map(|part| serde_json::from_str(part).expect("a test reads it"));
        let schemas = json!({"components": {"schemas": schemas()}});
        let parts = parts.into_iter().chain([schemas]);
        let mut document = parts.reduce(merged).unwrap_or_default();
        complete(&mut document);
        document.to_string()
    });
    &DOCUMENT
}

fn answer<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    schema::<Body<'_, T>>(generator)
}

fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

fn schemas() -> Object {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let settings = settings.with(|settings| {
        settings.definitions_path = "/components/schemas".into();
    });
    let mut generator = settings.into_generator();
    for add in TYPES {
        add(&mut generator);
    }
    generator.take_definitions(true)
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

/// Adds what the files leave out.
fn complete(document: &mut Value) {
    let paths = document["paths"].as_object_mut().into_iter().flatten();
    let operations = paths.flat_map(|(_, path)| path.as_object_mut().into_iter().flatten());
    for (_, operation) in operations {
        let errors = operation
            .as_object_mut()
            .and_then(|all| all.remove("errors"));
        for name in errors.iter().filter_map(Value::as_array).flatten() {
            let name = name.as_str().unwrap_or_default();
            let (status, _) = name.split_once('-').unwrap_or_default();
            operation["responses"][status] = reference("responses", name);
        }
        complete_body(&mut operation["responses"]["200"]);
        if let Some(body) = operation.get_mut("requestBody") {
            complete_body(body);
        }
    }
    let responses = document["components"]["responses"].as_object_mut();
    for (name, response) in responses.into_iter().flatten() {
        if let Value::String(description) = response {
            *response = json!({"description": description, "schema": "ErrorAnswer"});
        }
        let header = match name.split_once('-') {
            Some(("401", _)) => "WWW-Authenticate",
            Some(("429" | "503", _)) => "Retry-After",
            _ => "",
        };
        if !header.is_empty() {
            response["headers"][header] = reference("headers", header);
        }
        complete_body(response);
    }
}

fn complete_body(body: &mut Value) {
    let Value::Object(body) = body else {
        return;
    };
    let Some(Value::String(schema)) = body.remove("schema") else {
        return;
    };
    let mut content = json!({"schema": reference("schemas", &schema)});
    if let Some(example) = body.remove("example") {
        content["example"] = example;
    }
    body.insert("content".to_owned(), json!({"application/json": content}));
}

fn reference(kind: &str, name: &str) -> Value {
    json!({"$ref": format!("#/components/{kind}/{name}")})
}
