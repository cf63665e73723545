//! Messages in JSON: an object, a text in a form of its own, or null for an empty message.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Unexpected, Visitor};

/// Reads a `T` from any of its forms.
pub(super) struct Message<T>(pub(super) T);

/// The forms of a message.
pub(super) trait Form: Default {
    /// Its name in errors.
    const EXPECTED: &'static str;

    fn from_object<'de, D: Deserializer<'de>>(_object: D) -> Result<Self, D::Error> {
        Err(D::Error::invalid_type(Unexpected::Map, &Self::EXPECTED))
    }

    fn from_text<E: Error>(text: &str) -> Result<Self, E> {
        Err(E::invalid_type(Unexpected::Str(text), &Self::EXPECTED))
    }
}

/// Reads a list of messages; null is an empty one.
pub(super) fn list<'de, D: Deserializer<'de>, T: Form>(value: D) -> Result<Vec<T>, D::Error> {
    let elements: Option<Vec<Message<T>>> = Option::deserialize(value)?;
    Ok(elements.unwrap_or_default().into_iter().map(|Message(element)| element).collect())
}

impl<'de, T: Form> Deserialize<'de> for Message<T> {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        value.deserialize_any(FormVisitor(PhantomData))
    }
}

struct FormVisitor<T>(PhantomData<T>);

impl<'de, T: Form> Visitor<'de> for FormVisitor<T> {
    type Value = Message<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(T::EXPECTED)
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Message<T>, A::Error> {
        T::from_object(MapAccessDeserializer::new(fields)).map(Message)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Message<T>, E> {
        T::from_text(text).map(Message)
    }

    fn visit_unit<E: Error>(self) -> Result<Message<T>, E> {
        Ok(Message(T::default()))
    }
}
