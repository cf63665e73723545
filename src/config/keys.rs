//! Keys of maps, each declared once: for the reader that accepts them, and for the JSON Schema that
//! editors read.
//!
//! ```text
//! keys! {
//!     /// What the map is.
//!     enum Replaced {
//!         /// What the key means.
//!         name: Text, required;
//!     }
//! }
//! ```
//!
//! A declaration is a type without values: `Replaced::KEYS` are the names, and its schema has the
//! descriptions. A JSON Schema has no rules between files or blocks, so it accepts more than the
//! compiler, and never less, except that it rejects keys that the compiler ignores with a warning.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::Value as Json;

/// A key of a map, for its schema.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) meaning: &'static str,
    pub(crate) value: Schema,
    pub(crate) is_required: bool,
}

/// Declares maps. The JSON after `where` is what holds between their keys.
macro_rules! keys {
    ($($(#[doc = $about:literal])+ $vis:vis enum $map:ident {$(
        $(#[doc = $meaning:literal])+ $key:ident: $value:ty $(, $required:ident)?;
    )+} $(where $condition:tt)?)+) => {$(
        $(#[doc = $about])+
        $vis enum $map {}

        impl $map {
            pub(crate) const KEYS: &[&str] = &[$(stringify!($key)),+];
        }

        impl schemars::JsonSchema for $map {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($map).into()
            }

            fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let keys = [$($crate::config::keys::Key {
                    name: stringify!($key),
                    meaning: concat!($($meaning),+),
                    value: generator.subschema_for::<$value>(),
                    is_required: !stringify!($($required)?).is_empty(),
                }),+];
                let map = $crate::config::keys::map(concat!($($about),+), keys);
                $(let map = $crate::config::keys::and(map, schemars::json_schema!($condition));)?
                map
            }
        }
    )+};
}

/// Declares types of values, each by its schema, which may contain others.
macro_rules! values {
    ($($(#[doc = $about:literal])+
        $vis:vis enum $value:ident $(($schemas:ident))? = $schema:tt;)+) => {$(
        $(#[doc = $about])+
        $vis enum $value {}

        impl schemars::JsonSchema for $value {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($value).into()
            }

            fn json_schema(_generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                $(let $schemas = _generator;)?
                schemars::json_schema!($schema)
            }
        }
    )+};
}
pub(crate) use {keys, values};

values! {
    /// A scalar that is read as text, whatever it looks like.
    pub(crate) enum Text = {"type": ["string", "number", "boolean"]};
    /// A text that is not empty.
    pub(crate) enum Name = {"type": ["string", "number", "boolean"], "minLength": 1};
    /// A whole number.
    pub(crate) enum Whole = {"type": "integer", "minimum": 0, "maximum": u32::MAX};
}

/// The schema of a map with these keys and no others.
pub(crate) fn map(about: &str, keys: impl IntoIterator<Item = Key>) -> Schema {
    let mut map = json_schema!({
        "description": about.trim(),
        "type": "object",
        "properties": {},
        "additionalProperties": false,
    });
    let mut required: Vec<Json> = Vec::new();
    for mut key in keys {
        key.value
            .insert("description".into(), key.meaning.trim().into());
        if key.is_required {
            required.push(key.name.into());
        }
        if let Some(Json::Object(properties)) = map.get_mut("properties") {
            properties.insert(key.name.into(), key.value.to_value());
        }
    }
    if !required.is_empty() {
        map.insert("required".into(), required.into());
    }
    map
}

/// A schema with the keywords of another one.
pub(crate) fn and(mut schema: Schema, mut other: Schema) -> Schema {
    schema.ensure_object().append(other.ensure_object());
    schema
}

/// The JSON Schema of a file.
pub(crate) fn document<T: JsonSchema>() -> Schema {
    SchemaGenerator::default().into_root_schema_for::<T>()
}
