//! The characters of a text for the parser, which ends early if the parser would keep too many
//! tokens.
//!
//! The parser keeps the tokens of brackets (`[..]`, `{..}`) up to their end, because text in
//! brackets may turn out to be a key. Two characters of `[:,:,:,` are four tokens of 100 bytes, so
//! what it reads between two events is counted. Rules are no keys: text of JSON is introduced by
//! `---`, after which the parser expects no key and keeps nothing of the outer brackets.

use std::cell::Cell;
use std::rc::Rc;

use saphyr_parser::{Input, Marker, Span, StrInput};

/// Prefix of JSON text, before its first bracket.
const INTRODUCTION: &str = "--- ";

/// The number of tokens that the parser keeps, and its bound.
#[derive(Debug, Clone, Default)]
pub(super) struct KeptTokens {
    count: Rc<Cell<usize>>,
    max: Rc<Cell<usize>>,
}

/// A text of which the parser may keep a part.
pub(super) struct BoundedInput<'t> {
    text: StrInput<'t>,
    kept: KeptTokens,
}

/// A text as the parser reads it.
pub(super) struct Introduced {
    text: Option<String>,
    /// The line with [`INTRODUCTION`].
    line: usize,
}

impl KeptTokens {
    /// Begins to count after an event. The next one may take `max` tokens.
    pub(super) fn begin(&self, max: usize) {
        self.count.set(0);
        self.max.set(max);
    }

    /// Since the last event: an estimate that is rather too high.
    pub(super) fn count(&self) -> usize {
        self.count.get()
    }

    pub(super) fn is_exceeded(&self) -> bool {
        self.count.get() > self.max.get()
    }

    fn add(&self, character: char) {
        self.count.set(self.count.get() + tokens_of(character));
    }
}

/// The most tokens that a character makes: a colon makes `key`, its text and `value`.
fn tokens_of(character: char) -> usize {
    match character {
        ':' => 3,
        ',' => 2,
        '[' | ']' | '{' | '}' | '?' | '!' | '&' | '*' => 1,
        _ => 0,
    }
}

impl<'t> BoundedInput<'t> {
    pub(super) fn new(text: &'t str, kept: KeptTokens) -> Self {
        Self { text: StrInput::new(text), kept }
    }
}

impl Input for BoundedInput<'_> {
    fn lookahead(&mut self, count: usize) {
        self.text.lookahead(count);
    }

    fn buflen(&self) -> usize {
        self.text.buflen()
    }

    fn bufmaxlen(&self) -> usize {
        self.text.bufmaxlen()
    }

    fn raw_read_ch(&mut self) -> char {
        self.text.raw_read_ch()
    }

    fn raw_read_non_breakz_ch(&mut self) -> Option<char> {
        self.text.raw_read_non_breakz_ch()
    }

    fn skip(&mut self) {
        self.kept.add(self.text.peek());
        self.text.skip();
        if self.kept.is_exceeded() {
            self.text = StrInput::new("");
        }
    }

    fn skip_n(&mut self, count: usize) {
        for _ in 0..count {
            self.skip();
        }
    }

    fn peek(&self) -> char {
        self.text.peek()
    }

    fn peek_opt(&self) -> Option<char> {
        self.text.peek_opt()
    }

    fn peek_nth(&self, n: usize) -> char {
        self.text.peek_nth(n)
    }
}

impl Introduced {
    pub(super) fn new(text: &str) -> Self {
        let start = text.trim_start_matches(['\u{feff}', ' ', '\t', '\r', '\n']);
        let before = &text[..text.len() - start.len()];
        let is_flow = start.starts_with(['{', '[']);
        // `---` has to be at the beginning of its line.
        let at_line_start =
            before.trim_start_matches('\u{feff}').is_empty() || before.ends_with('\n');
        if !is_flow || !at_line_start {
            return Self { text: None, line: 0 };
        }
        Self {
            text: Some([before, INTRODUCTION, start].concat()),
            line: before.matches('\n').count() + 1,
        }
    }

    pub(super) fn text<'t>(&'t self, written: &'t str) -> &'t str {
        self.text.as_deref().unwrap_or(written)
    }

    /// The location of a mark of the parser in the text as written.
    pub(super) fn mark(&self, mark: Marker) -> Marker {
        if self.text.is_none() || mark.line() < self.line {
            return mark;
        }
        let shift = |count: usize| count.saturating_sub(INTRODUCTION.len());
        let column = if mark.line() == self.line { shift(mark.col()) } else { mark.col() };
        Marker::new(shift(mark.index()), mark.line(), column)
    }

    pub(super) fn span(&self, span: Span) -> Span {
        Span::new(self.mark(span.start), self.mark(span.end))
    }
}
