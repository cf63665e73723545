//! The entries of a tracked key, in one allocation that another key can reuse.

use crate::rules::Entry;

/// Bytes of a key or a value among the top keys. Longer ones are cut: an operator recognizes them,
/// and clients choose their length.
const PART_BYTES_MAX: usize = 256;

/// Keys and values in turn, each behind its length.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Entries(Vec<u8>);

impl Entries {
    /// Replaces the entries.
    pub(crate) fn set<'e>(&mut self, entries: impl Iterator<Item = Entry<'e>>) {
        self.0.clear();
        for part in entries.flat_map(|entry| [entry.key, entry.value]) {
            let part = &part[..part.len().min(PART_BYTES_MAX)];
            let len = u16::try_from(part.len()).expect("PART_BYTES_MAX is less");
            self.0.extend_from_slice(&len.to_le_bytes());
            self.0.extend_from_slice(part);
        }
    }

    /// Bytes on the heap.
    pub(crate) fn bytes(&self) -> usize {
        self.0.len()
    }

    /// The entries, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Entry<'_>> {
        let mut rest = &self.0[..];
        let mut part = move || {
            let (len, behind) = rest.split_first_chunk::<2>()?;
            let (part, behind) = behind.split_at_checked(u16::from_le_bytes(*len).into())?;
            rest = behind;
            Some(part)
        };
        std::iter::from_fn(move || Some(Entry { key: part()?, value: part()? }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_kept_and_long_values_are_cut() {
        let long = "v".repeat(1_000);
        let kept = [
            Entry::new("user", "ann"),
            Entry::new("path", ""),
            Entry::new("agent", &long[..PART_BYTES_MAX]),
        ];
        let mut entries = Entries::default();
        for _ in 0..2 {
            entries.set([kept[0], kept[1], Entry::new("agent", &long)].into_iter());
            assert!(entries.iter().eq(kept));
        }
    }
}
