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

use schemars::{JsonSchema, Schema, SchemaGenerator};

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
                let required: Vec<&str> = [$((stringify!($key), stringify!($($required)?))),+]
                    .into_iter()
                    .filter_map(|(key, required)| (!required.is_empty()).then_some(key))
                    .collect();
                let map = schemars::json_schema!({
                    "description": concat!($($about),+).trim(),
                    "type": "object",
                    "properties": {$(
                        (stringify!($key)): $crate::rules::config::keys::described(
                            generator.subschema_for::<$value>(),
                            concat!($($meaning),+),
                        )
                    ),+},
                    "required": required,
                    "additionalProperties": false,
                });
                $(
                    let condition = schemars::json_schema!($condition);
                    let map = $crate::rules::config::keys::and(map, condition);
                )?
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

/// A schema with a text that editors show.
pub(crate) fn described(mut schema: Schema, text: &str) -> Schema {
    schema.insert("description".into(), text.trim().into());
    schema
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
