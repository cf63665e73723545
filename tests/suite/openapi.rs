//! The OpenAPI document of the admin API: valid, and its examples are answered as it says.

use std::fs;
use std::path::Path;
use std::process::Command;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::TestServer;
use crate::support::http::{self, Connection, Reply};

mod record;

const TOKEN: &str = "token";

const RULES: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 5}
";

fn document(server: &TestServer) -> Value {
    let reply = http::get(server.admin, "/api/v1/openapi.json");
    assert_eq!(reply.status, 200);
    assert!(
        reply.has_header("content-type: application/json"),
        "{reply:?}"
    );
    serde_json::from_str(&reply.body).expect("it is JSON")
}

/// Follows a reference within the document.
fn resolved<'d>(document: &'d Value, value: &'d Value) -> &'d Value {
    match value["$ref"]
        .as_str()
        .and_then(|path| path.strip_prefix('#'))
    {
        Some(path) => document
            .pointer(path)
            .unwrap_or_else(|| panic!("nothing at {path}")),
        None => value,
    }
}

/// Why a value does not conform to a schema, of the keywords that the document uses.
fn violations(document: &Value, schema: &Value, value: &Value, at: &str) -> Vec<String> {
    let schema = resolved(document, schema);
    let mut found = Vec::new();
    for part in schema["allOf"].as_array().into_iter().flatten() {
        found.extend(violations(document, part, value, at));
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        found.push(format!("{at}: {value} is none of {allowed:?}"));
    }
    let is_of = |name: &Value| match name.as_str().expect("the name of a type") {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        other => panic!("no type {other}"),
    };
    let is_allowed = match &schema["type"] {
        Value::Null => true,
        Value::Array(names) => names.iter().any(is_of),
        name => is_of(name),
    };
    if !is_allowed {
        found.push(format!("{at}: {value} is no {}", schema["type"]));
    }
    if let Value::Object(fields) = value {
        let required = schema["required"].as_array().into_iter().flatten();
        let missing =
            required.filter(|name| !fields.contains_key(name.as_str().unwrap_or_default()));
        found.extend(missing.map(|name| format!("{at}: {name} is missing")));
        for (name, value) in fields {
            if let Some(schema) = schema["properties"].get(name) {
                found.extend(violations(document, schema, value, &format!("{at}.{name}")));
            }
        }
    }
    for item in value.as_array().into_iter().flatten() {
        if let Some(schema) = schema.get("items") {
            found.extend(violations(document, schema, item, &format!("{at}[]")));
        }
    }
    found
}

/// Sends the examples of an operation.
fn send_example(server: &TestServer, document: &Value, path: &str, method: &str) -> Reply {
    let operation = &document["paths"][path][method];
    let (mut query, mut headers) = (Vec::new(), Vec::new());
    let mut place = path.to_owned();
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        let parameter = resolved(document, parameter);
        let name = parameter["name"].as_str().expect("a name");
        let example = &parameter["example"];
        let values = example
            .as_array()
            .map_or(vec![example], |all| all.iter().collect());
        for value in values {
            let value = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            match parameter["in"].as_str() {
                Some("query") => {
                    query.push(format!(
                        "{name}={}",
                        utf8_percent_encode(&value, NON_ALPHANUMERIC)
                    ));
                }
                Some("path") => place = place.replace(&format!("{{{name}}}"), &value),
                Some("header") => headers.push(format!("{name}: {value}")),
                other => panic!("a parameter in {other:?}"),
            }
        }
    }
    if operation.get("security").is_some() {
        headers.push(format!("authorization: Bearer {TOKEN}"));
    }
    let content = &resolved(document, &operation["requestBody"])["content"];
    let yaml = content["application/yaml"]["example"].as_str();
    let json = &content["application/json"]["example"];
    let body = match (yaml, json) {
        (Some(text), _) => text.to_owned(),
        (None, Value::Null) => String::new(),
        (None, json) => json.to_string(),
    };
    let path = format!("{place}?{}", query.join("&"));
    Connection::open(server.admin)
        .send_with(&headers, &method.to_uppercase(), &path, &body)
        .expect("there is a response")
}

#[test]
fn examples_are_answered_as_documented() {
    let server = TestServer::with_rules(RULES)
        .with_env("ADMIN_TOKEN", TOKEN)
        .with_env("RULES_WRITABLE", "true")
        .start();
    let document = document(&server);
    let mut examples = 0;
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            let success = resolved(&document, &operation["responses"]["200"]);
            // A stream has no end.
            let Some(content) = success["content"].get("application/json") else {
                continue;
            };
            let reply = send_example(&server, &document, path, method);
            assert_eq!(reply.status, 200, "{method} {path}: {reply:?}");
            let body: Value = serde_json::from_str(&reply.body).expect("it is JSON");
            let wrong = violations(&document, &content["schema"], &body, path);
            assert!(wrong.is_empty(), "{method} {path}: {wrong:?}: {body}");
            examples += 1;
        }
    }
    assert!(examples >= 5, "{examples} examples");
}

/// Each operation documents what it answers to a request that it cannot use.
#[test]
fn rejections_are_documented() {
    let servers = [
        TestServer::with_rules(RULES)
            .with_env("ADMIN_TOKEN", TOKEN)
            .start(),
        TestServer::with_rules(RULES).start(),
        TestServer::with_rules(RULES.replace("user", "other").as_str())
            .with_env("ADMIN_TOKEN", TOKEN)
            .with_env("RULES_WRITABLE", "true")
            .start(),
    ];
    let document = document(&servers[0]);
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            let is_stream =
                operation["responses"]["200"]["content"]["text/event-stream"].is_object();
            let mut replies = Vec::new();
            if !is_stream {
                replies.extend(
                    servers
                        .iter()
                        .map(|server| send_example(server, &document, path, method)),
                );
                let mut connection = Connection::open(servers[0].admin);
                replies.push(
                    connection
                        .send(&method.to_uppercase(), path, "")
                        .expect("a response"),
                );
            }
            for reply in replies.iter().filter(|reply| reply.status != 200) {
                let response = &operation["responses"][reply.status.to_string()];
                assert!(!response.is_null(), "{method} {path}: {reply:?}");
                let schema =
                    &resolved(&document, response)["content"]["application/json"]["schema"];
                let body: Value = serde_json::from_str(&reply.body).expect("it is JSON");
                let wrong = violations(&document, schema, &body, path);
                assert!(wrong.is_empty(), "{method} {path}: {wrong:?}: {body}");
            }
        }
    }
}

#[test]
fn document_is_valid() {
    let server = TestServer::with_rules(RULES).start();
    let directory = TempDir::new().expect("a temporary directory can be made");
    let file = directory.path().join("openapi.json");
    fs::write(&file, document(&server).to_string()).expect("a file can be written");
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/openapi/bin/python3");
    assert!(
        python.exists(),
        "{} is missing; install it with `make tools`",
        python.display()
    );
    let checked = Command::new(python)
        .args(["-m", "openapi_spec_validator"])
        .arg(&file)
        .output()
        .expect("it can be started");
    assert!(checked.status.success(), "{checked:?}");
}
