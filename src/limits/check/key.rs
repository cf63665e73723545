//! Names of counters.

use std::fmt;

use smallvec::SmallVec;

use crate::base::text::Text;
use crate::base::time::MICROS_PER_SECOND;
use crate::limits::Window;

/// Bytes of a safe key; the reference's format is bounded by the message. Clients choose the length
/// of entries, and every store has to keep them.
pub const KEY_BYTES_MAX: usize = 512;
/// Keys up to this many bytes are not allocated.
const KEY_BYTES_INLINE: usize = 96;

/// The name of a counter. It contains no time: whether a window is over is read from the state.
#[derive(PartialEq, Eq, Hash, Default)]
pub struct Key(SmallVec<[u8; KEY_BYTES_INLINE]>);

impl Key {
    /// The bytes of the key.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Appends bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Appends a window: its start in seconds, as envoyproxy/ratelimit does, or the date of a
    /// calendar period.
    pub(crate) fn push_window(&mut self, window: &Window) {
        if let Some(date) = window.date {
            self.push(date.to_string().as_bytes());
        } else {
            let start = window.start.as_micros() / MICROS_PER_SECOND;
            self.push(itoa::Buffer::new().format(start).as_bytes());
        }
    }

    /// Removes all but the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }
}

/// Copies the bytes at once; the clone of the vector would copy one after the other.
impl Clone for Key {
    fn clone(&self) -> Self {
        Self(SmallVec::from_slice(&self.0))
    }
}

impl From<&[u8]> for Key {
    fn from(bytes: &[u8]) -> Self {
        Self(SmallVec::from_slice(bytes))
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self(SmallVec::from_slice(text.as_bytes()))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", Text(&self.0))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Key({self})")
    }
}
