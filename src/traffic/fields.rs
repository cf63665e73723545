//! Reads JSON into messages whose memory is reused, without a value tree in between.
//!
//! Fields have the names of protobuf's JSON in either spelling. Null is an absent field, other
//! fields are skipped.

use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor,
};

/// A message that is read from an object.
pub(super) trait Fields {
    /// The names of its fields.
    const NAMES: &'static [&'static str];
    /// What it is, for errors.
    const EXPECTED: &'static str;

    /// Reads the value of a field, by its index in the names.
    fn field<'de, A: MapAccess<'de>>(
        &mut self,
        name: usize,
        values: &mut A,
    ) -> Result<(), A::Error>;

    /// Reads the whole message from a text.
    fn text<E: Error>(&mut self, text: &str) -> Result<(), E> {
        let _ = self;
        Err(E::invalid_type(Unexpected::Str(text), &Self::EXPECTED))
    }
}

/// Reads an object.
pub(super) struct Object<'t, T>(pub(super) &'t mut T);

/// Reads a list of objects into the elements that are there, and more.
pub(super) struct List<'t, T>(pub(super) &'t mut Vec<T>);

/// Reads a text.
pub(super) struct Text<'t>(pub(super) &'t mut Vec<u8>);

/// Reads a whole number, which may be written as a text.
pub(super) struct Number<'t>(pub(super) &'t mut Option<u64>);

/// Reads true or false.
pub(super) struct Flag<'t>(pub(super) &'t mut bool);

/// Makes a message as new, and keeps its memory.
pub(super) trait Clear: Default {
    fn clear(&mut self);
}

/// The index of a name; `None` for names that are not known.
struct Name(&'static [&'static str]);

/// Each visitor is the seed of its value.
macro_rules! seed {
    ($($visitor:ident $(<$message:ident: $bound:path>)?),+) => {
        $(impl<'de $(, $message: Fields + $bound)?> DeserializeSeed<'de> for $visitor<'_ $(, $message)?> {
            type Value = ();

            fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<(), D::Error> {
                value.deserialize_any(self)
            }
        })+
    };
}

pub(super) use seed;

seed!(Object<T: Fields>, List<T: Clear>, Text, Number, Flag);

impl<'de, T: Fields> Visitor<'de> for Object<'_, T> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(T::EXPECTED)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut values: A) -> Result<(), A::Error> {
        while let Some(name) = values.next_key_seed(Name(T::NAMES))? {
            match name {
                Some(name) => self.0.field(name, &mut values)?,
                None => {
                    values.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.0.text(text)
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }
}

impl<'de, T: Fields + Clear> Visitor<'de> for List<'_, T> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "a list of which each is {}", T::EXPECTED)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<(), A::Error> {
        let mut length = 0;
        loop {
            if length == self.0.len() {
                self.0.push(T::default());
            }
            let element = &mut self.0[length];
            element.clear();
            if values.next_element_seed(Object(element))?.is_none() {
                self.0.truncate(length);
                return Ok(());
            }
            length += 1;
        }
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.0.clear();
        Ok(())
    }
}

impl Visitor<'_> for Text<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a text")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.0.clear();
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.0.clear();
        Ok(())
    }
}

impl Visitor<'_> for Number<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a whole number")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        *self.0 = Some(number);
        Ok(())
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a whole number below 2^53, as protobuf's JSON may write it"
    )]
    fn visit_f64<E: Error>(self, number: f64) -> Result<(), E> {
        if number.fract() != 0.0 || !(0.0..9_007_199_254_740_992.0).contains(&number) {
            return Err(E::invalid_value(Unexpected::Float(number), &self));
        }
        self.visit_u64(number as u64)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        match text.parse() {
            Ok(number) => self.visit_u64(number),
            Err(_) => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        *self.0 = None;
        Ok(())
    }
}

impl Visitor<'_> for Flag<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("true or false")
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<(), E> {
        *self.0 = flag;
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        *self.0 = false;
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, name: D) -> Result<Option<usize>, D::Error> {
        name.deserialize_str(self)
    }
}

impl Visitor<'_> for Name {
    type Value = Option<usize>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Option<usize>, E> {
        Ok(self.0.iter().position(|known| *known == name))
    }
}
