//! A request in our words, borrowed from wherever it came.

use std::fmt;

use smallvec::SmallVec;

use crate::base::text::{Text, shortened};
use crate::base::time::Time;
use crate::limits::Unit;
use crate::limits::check::Hits;

/// Bytes of a descriptor as text.
const SHOWN_BYTES_MAX: usize = 256;

/// A call: a domain and its descriptors.
#[derive(Debug, Clone, Default)]
pub struct Query<'q> {
    /// Which rules to ask; not empty.
    pub domain: &'q [u8],
    /// At least one.
    pub descriptors: SmallVec<[Descriptor<'q>; 2]>,
    /// The `hits_addend` of the whole request; 0 is not set.
    pub hits_addend: u32,
    /// When the caller has no use for an answer any more, if it says.
    pub deadline: Option<Time>,
}

/// A descriptor of a request.
#[derive(Debug, Clone)]
pub struct Descriptor<'q> {
    /// From the outermost to the innermost.
    pub entries: SmallVec<[Entry<'q>; 4]>,
    /// A limit of the caller's own, instead of any rule.
    pub limit: Option<Override>,
    /// The hits on its counter.
    pub hits: Hits,
    /// The `hits_addend` of this descriptor.
    pub hits_addend: Option<u64>,
}

/// A key and a value, which may be empty. Both are text in most requests, but a header's value may
/// be any bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'q> {
    /// Key.
    pub key: &'q [u8],
    /// Value.
    pub value: &'q [u8],
}

/// A limit that comes with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Override {
    /// Requests per unit.
    pub requests_per_unit: u32,
    /// The unit's number on the wire.
    pub wire_unit: i32,
    /// The unit, if the number is one's.
    pub unit: Option<Unit>,
}

impl<'q> Query<'q> {
    /// The query with other entries: `entry` replaces them, in order.
    pub(crate) fn with_entries<'t>(
        &self,
        mut entry: impl FnMut(Entry<'q>) -> Entry<'t>,
    ) -> Query<'t>
    where
        'q: 't,
    {
        let descriptors = self.descriptors.iter().map(|descriptor| Descriptor {
            entries: descriptor.entries.iter().copied().map(&mut entry).collect(),
            limit: descriptor.limit,
            hits: descriptor.hits,
            hits_addend: descriptor.hits_addend,
        });
        Query {
            domain: self.domain,
            descriptors: descriptors.collect(),
            hits_addend: self.hits_addend,
            deadline: self.deadline,
        }
    }
}

impl<'q> Entry<'q> {
    /// An entry of text or bytes.
    pub fn new(
        key: &'q (impl AsRef<[u8]> + ?Sized),
        value: &'q (impl AsRef<[u8]> + ?Sized),
    ) -> Self {
        Self { key: key.as_ref(), value: value.as_ref() }
    }

    /// Reads `key=value`. The value is everything after the first `=`; without `=` it is empty, as
    /// in an entry that Envoy sends without a value.
    ///
    /// # Errors
    /// An empty key.
    pub fn parse(entry: &'q (impl AsRef<[u8]> + ?Sized)) -> Result<Self, String> {
        let entry = entry.as_ref();
        let end = entry.iter().position(|&byte| byte == b'=').unwrap_or(entry.len());
        if end == 0 {
            return Err(format!("the entry `{}` has no key; write key=value", Text(entry)));
        }
        Ok(Self { key: &entry[..end], value: entry.get(end + 1..).unwrap_or_default() })
    }

    /// Key and value as operators read them.
    pub(crate) fn shown(self) -> [String; 2] {
        [self.key, self.value].map(|part| Text(part).shown().into_owned())
    }
}

/// `key=value`
impl fmt::Display for Entry<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}={}", Text(self.key), Text(self.value))
    }
}

impl<'q> Descriptor<'q> {
    /// A descriptor of one hit without a limit of its own.
    pub fn new(entries: impl IntoIterator<Item = Entry<'q>>) -> Self {
        Self {
            entries: entries.into_iter().collect(),
            limit: None,
            hits: Hits::Add(1),
            hits_addend: None,
        }
    }

    /// The entries as `key=value,key=value`, up to a length.
    pub(crate) fn shown(&self) -> String {
        let entries: Vec<String> = self.entries.iter().map(ToString::to_string).collect();
        shortened(&entries.join(","), SHOWN_BYTES_MAX).into_owned()
    }
}

impl<'q> Query<'q> {
    /// A request with one descriptor.
    pub(crate) fn of(domain: &'q (impl AsRef<[u8]> + ?Sized), descriptor: Descriptor<'q>) -> Self {
        let descriptors = [descriptor].into_iter().collect();
        Self { domain: domain.as_ref(), descriptors, ..Self::default() }
    }

    /// A request with one descriptor, whose entries are written `key=value`.
    ///
    /// # Errors
    /// See [`Entry::parse`].
    pub fn of_entries<B>(
        domain: &'q B,
        entries: impl IntoIterator<Item = &'q B>,
    ) -> Result<Self, String>
    where
        B: AsRef<[u8]> + ?Sized,
    {
        let entries: SmallVec<[Entry<'q>; 4]> =
            entries.into_iter().map(Entry::parse).collect::<Result<_, _>>()?;
        Ok(Self::of(domain, Descriptor::new(entries)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_split_at_its_first_equals_sign_and_nowhere_else() {
        for (text, key, value) in [
            ("user=10.0.0.1, 10.0.0.2", "user", "10.0.0.1, 10.0.0.2"),
            ("path=/a?b=c", "path", "/a?b=c"),
            ("user=", "user", ""),
            ("user", "user", ""),
        ] {
            assert_eq!(Entry::parse(text), Ok(Entry::new(key, value)));
        }
        for text in ["", "=", "=value"] {
            assert_eq!(
                Entry::parse(text),
                Err(format!("the entry `{text}` has no key; write key=value"))
            );
        }
    }
}
