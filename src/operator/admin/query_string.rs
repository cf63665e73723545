//! The pairs of a query string, in the encoding of HTML forms. Names and values may be any bytes.

use std::borrow::Cow;
use std::convert::Infallible;

use axum::extract::FromRequestParts;
use http::request::Parts;
use percent_encoding::percent_decode;

use crate::base::text::Text;

/// Names and values, decoded, in order.
#[derive(Debug)]
pub(crate) struct Pairs(Vec<(Vec<u8>, Vec<u8>)>);

impl Pairs {
    pub(crate) fn new(query: &str) -> Self {
        Self(query.split('&').map(pair).collect())
    }

    /// The first value of a name as text; empty if there is none.
    pub(crate) fn text(&self, name: &str) -> Cow<'_, str> {
        Text(self.first(name)).shown()
    }

    /// The values of a name that may be repeated.
    pub(crate) fn all<'p>(&'p self, name: &'p str) -> impl Iterator<Item = &'p [u8]> {
        let named = self.0.iter().filter(move |(key, _)| key == name.as_bytes());
        named.map(|(_, value)| &**value)
    }

    /// The first value of a name; empty if there is none.
    pub(crate) fn first(&self, name: &str) -> &[u8] {
        let named = self.0.iter().find(|(key, _)| key == name.as_bytes());
        named.map_or(&[], |(_, value)| &**value)
    }
}

impl<S: Sync> FromRequestParts<S> for Pairs {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::new(parts.uri.query().unwrap_or_default()))
    }
}

fn pair(encoded: &str) -> (Vec<u8>, Vec<u8>) {
    let (name, value) = encoded.split_once('=').unwrap_or((encoded, ""));
    let decoded = |text: &str| percent_decode(text.replace('+', " ").as_bytes()).collect();
    (decoded(name), decoded(value))
}
