//! Enums whose variants have names, which are also their form in JSON.

/// Declares an enum whose variants have names in rules, settings, keys or metrics.
macro_rules! named_enum {
    ($(#[$meta:meta])* pub enum $type:ident {
        $($(#[$about:meta])* $variant:ident = $name:literal,)+
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $type {
            $($(#[$about])* $variant,)+
        }

        impl $type {
            /// All variants, in order.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// The name of the variant.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }

        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(name: &str) -> Result<Self, String> {
                let found = Self::ALL.into_iter().find(|variant| variant.name() == name);
                found.ok_or_else(|| format!("write one of {}", [$($name),+].join(", ")))
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, json: S) -> Result<S::Ok, S::Error> {
                json.serialize_str(self.name())
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
                let name = <std::borrow::Cow<'_, str>>::deserialize(json)?;
                name.parse().map_err(serde::de::Error::custom)
            }
        }

        impl schemars::JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({"type": "string", "enum": [$($name),+]})
            }
        }
    };
}
pub(crate) use named_enum;
