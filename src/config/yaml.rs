//! Turns the text of a rules file into a tree in which every node knows its line and column.
//!
//! Files written for the reference must mean the same here, and it reads them with Go's `gopkg.in/yaml.v2`. So the syntax comes from a
//! YAML 1.2 parser, but what a scalar means (`yes`, `010`, `1_000`), how `<<` merges and which of two equal keys counts are yaml.v2's,
//! faults included: its answers are the tables in the tests below. Where the parser refuses what many people write and yaml.v2 takes, the
//! text is eased first (see [`Sketch`]). Keys and rules are not known here.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::mem;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span, Tag};

/// How long a file may be. Ten times what 100,000 rules take, and a ConfigMap cannot hold more than 1 MiB.
pub const FILE_BYTES_MAX: usize = 64 << 20;

/// How many nodes a file may come to, each use of an alias counted anew, and once more what an anchor keeps.
///
/// 100,000 rules have one to two million. A chain of aliases ("billion laughs") reaches this within half a second and half a gigabyte.
pub const NODES_MAX: usize = 4_000_000;

/// How many lists and maps may stand within one another, aliases followed.
///
/// A descriptor takes two, so this is 60 levels of them. Dropping, cloning and walking a tree recurse once a level: at this depth, on
/// the smallest stack a thread gets, there is no need to worry.
pub const DEPTH_MAX: usize = 128;

/// How many tokens a file may have by a generous estimate, block and flow style alike.
///
/// The parser holds the whole of a flow collection (`[..]`, `{..}`) in memory before it says a word, at up to 200 bytes a token: without
/// this, 64 MiB of `[? ? ?` would take 11 GB. 100,000 rules written as JSON have four million.
const TOKENS_MAX: usize = 2 * NODES_MAX;

/// After so many notes nobody reads on; a generated file could otherwise earn one per line.
const NOTES_MAX: usize = 100;

/// A note: either a stray word, or the first line is indented and the second is not.
const AFTER_THE_END: &str = "nothing is read from here on, because the document has ended above: is its first line indented?";

/// What the parser says where a bracket is missing, or quotes are.
const BRACKETS: [&str; 5] =
    ["expected ',' or", "only valid inside a block", "illegal placement of ':'", "expected node content", "end of plain scalar"];

/// What the parser says where a line does not go together with those above.
const LINES: [&str; 5] = ["mapping values are not allowed", "simple key expect", "expected key", "expected '-'", "invalid indentation"];

/// Maps no longer than this are searched for repeated keys pair by pair, which beats hashing; all maps of a rule are.
const PAIRWISE_MAX: usize = 16;

/// Where something stands in a file: 1-based line and column (in characters), and how many characters wide it is on that line (at
/// least 1): what the caret underlines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spot {
    /// Counted from 1.
    pub line: u32,
    /// Counted from 1, in characters and not bytes; a tab is one.
    pub column: u32,
    /// On that line only, however many lines it goes on for.
    pub width: u32,
}

/// One value of the tree, or one key.
///
/// What an alias stands for is copied: the copy's own spot is the alias's, the spots within are where the anchor stands. A value left
/// empty has its key's spot.
#[derive(Debug, Clone)]
pub struct Node {
    /// Of a map in block style: that of its first key. Of a list so written: that of its first dash or item.
    pub spot: Spot,
    /// What stands there.
    pub kind: Kind,
}

/// The three things a node can be. Aliases and merge keys are gone by now.
#[derive(Debug, Clone)]
pub enum Kind {
    /// A text, a number and so on: see [`Scalar::value`].
    Scalar(Scalar),
    /// In file order.
    List(Vec<Node>),
    /// Pairs in file order; keys are scalars, and no two of them equal.
    ///
    /// Of repeated keys the last counts, and a `<<` counts as if its pairs stood in its place, so that it replaces what is above it and
    /// is replaced by what is below. Where both the old and the new value are maps the new one's pairs are laid over the old one's:
    /// yaml.v2 does so when it fills a struct (a `rate_limit` that overrides one number of the merged one keeps its unit).
    Map(Vec<(Node, Node)>),
}

/// A scalar as it was written, after unquoting and folding.
#[derive(Debug, Clone)]
pub struct Scalar {
    /// What yaml.v2 puts into a string field: the text itself, whatever [`Scalar::value`] makes of it (`yes`, `0x10`).
    pub text: String,
    reading: Reading,
}

/// What a scalar means by YAML 1.1, as yaml.v2 understands it.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Nothing at all, `~`, `null`, `Null` or `NULL`.
    Null,
    /// `y`, `yes`, `on`, `true` and their opposites, in lower case, upper case and capitalised.
    Bool(bool),
    /// Decimal, `0x1F`, `0b11`, `0o17` and `017`, with a sign and underscores if you like.
    Int(i64),
    /// Fits `u64` but not `i64`.
    BigInt(u64),
    /// `1.5`, `1e3`, `.5`, `.inf`, `.nan`; also integers too large for `u64`, and `08`.
    Float(f64),
    /// None of these: see [`Scalar::text`]. Dates, times and quoted numbers are texts.
    Text,
}

/// The first document of a text; yaml.v2 reads no further.
#[derive(Debug, Clone)]
pub struct Document {
    /// None: an empty text or only comments.
    pub root: Option<Node>,
    /// In file order, at most about a hundred.
    pub notes: Vec<Note>,
}

/// What yaml.v2 passes over in silence and an operator would want to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The second of two equal keys, the `---` of the second document.
    pub spot: Spot,
    /// A sentence without a full stop.
    pub text: String,
}

/// Why a text is no YAML, or exceeds a bound.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {}, column {}: {text}", .spot.line, .spot.column)]
pub struct Trouble {
    /// Where the fault is believed to be, which is not always where the parser noticed it.
    pub spot: Spot,
    /// A sentence without a full stop.
    pub text: String,
    /// What to write instead, when that can be guessed.
    pub hint: Option<String>,
}

/// How a scalar's text is to be understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// By its shape: plain ones, and those with a tag whose shape was found to agree.
    Shape,
    /// As a number with a fraction even if it has none: `!!float 1`.
    Float,
    /// As text: quoted ones, block ones, `!!str`, and tags of the operator's own.
    Text,
}

/// What makes two keys equal: for yaml.v2 `1` and `0x1` are, `1` and `"1"` are not.
#[derive(PartialEq, Eq, Hash)]
enum Identity<'a> {
    Null,
    Bool(bool),
    Int(i64),
    BigInt(u64),
    Float(u64),
    Text(&'a str),
}

/// Puts the tree together from the parser's events. It has its own stack, so that no file makes it recurse.
struct Builder<'t> {
    pads: &'t Pads,
    ruler: Ruler<'t>,
    open: Vec<Open>,
    root: Option<Node>,
    kept: HashMap<usize, Kept>,
    nodes: usize,
    nodes_kept: usize,
    nodes_aliased: usize,
    /// Of all aliases the one that stands for most, and for how many nodes.
    widest: (usize, Spot),
    notes: Vec<Note>,
}

/// A list or a map whose end has not come yet.
struct Open {
    spot: Spot,
    anchor: usize,
    nodes_before: usize,
    height: usize,
    content: Content,
}

enum Content {
    List(Vec<Node>),
    Map { pairs: Vec<(Node, Node)>, key: Option<Node> },
}

/// What an alias will be replaced with. It is a copy: the original's place moves while the tree grows.
struct Kept {
    node: Node,
    nodes: usize,
    height: usize,
}

/// A pair on its way into a map that has a `<<` or a repeated key.
struct Laid {
    key: Node,
    value: Node,
    /// The `<<` that brought it.
    merge: Option<Spot>,
}

/// Why [`build`] gave up.
enum Fault {
    Syntax(ScanError),
    Bound(Trouble),
}

/// By line: how many spaces were put before it, which its columns must not count.
type Pads = HashMap<usize, usize>;

/// A text looked over roughly, with no more than an eye for quotes, brackets and block scalars.
///
/// The parser follows YAML 1.2, which wants the insides of brackets and quotes indented, down to the closing bracket, and no tab after a
/// colon. yaml.v2 wants neither, and `]` below its key is how many people write lists:
/// ```text
/// descriptors: [          descriptors: [
///   {key: a},        =>     {key: a},
/// ]                        ]
/// ```
struct Sketch {
    /// The same content in a shape that the parser takes: white space there means nothing, so there may be more of it.
    eased: String,
    pads: Pads,
    /// Brackets that nothing closes, outermost first.
    unclosed: Vec<(char, Spot)>,
    /// The first key or list item that is indented with a tab; the parser would count it as one column, yaml.v2 refuses it.
    tab: Option<Spot>,
}

/// A place in the text and the lines around it, for explaining what is wrong there.
struct Near<'t> {
    spot: Spot,
    line: &'t str,
    /// The nearest line above that is not blank, with its number.
    above: Option<(usize, &'t str)>,
    below: &'t str,
}

/// Finds characters by their number, going forward only, so that all the measuring in a file costs one walk over it.
struct Ruler<'t> {
    rest: &'t str,
    at: usize,
}

impl Spot {
    fn new(line: usize, column: usize, width: usize) -> Spot {
        let bounded = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Spot { line: bounded(line), column: bounded(column), width: bounded(width) }
    }
}

impl Scalar {
    /// What the text means, by yaml.v2's `resolve.go`. Only plain scalars and tagged ones (`!!int "7"`) can be anything but text.
    #[expect(clippy::cast_precision_loss, reason = "`!!float 9007199254740993` is rounded by yaml.v2 too")]
    pub fn value(&self) -> Value {
        match self.reading {
            Reading::Shape => resolve(&self.text),
            Reading::Text => Value::Text,
            Reading::Float => match resolve(&self.text) {
                Value::Int(n) => Value::Float(n as f64),
                other => other,
            },
        }
    }

    fn identity(&self) -> Identity<'_> {
        match self.value() {
            Value::Null => Identity::Null,
            Value::Bool(b) => Identity::Bool(b),
            Value::Int(n) => Identity::Int(n),
            Value::BigInt(n) => Identity::BigInt(n),
            // Adding zero makes one of the two zeros.
            Value::Float(f) => Identity::Float((f + 0.0).to_bits()),
            Value::Text => Identity::Text(&self.text),
        }
    }

    fn is_merge(&self) -> bool {
        self.reading == Reading::Shape && self.text == "<<"
    }
}

impl From<Trouble> for Fault {
    fn from(trouble: Trouble) -> Fault {
        Fault::Bound(trouble)
    }
}

impl Trouble {
    fn new(spot: Spot, text: impl Into<String>) -> Trouble {
        Trouble { spot, text: text.into(), hint: None }
    }

    fn hint(mut self, hint: impl Into<String>) -> Trouble {
        self.hint = Some(hint.into());
        self
    }
}

/// Reads the first document of a text.
///
/// # Errors
/// When it is no YAML, or larger or deeper than the bounds of this module.
pub fn read(text: &str) -> Result<Document, Trouble> {
    admit(text)?;
    let untouched = Pads::new();
    match build(text, &untouched) {
        Ok(read) if text.contains('\t') => without_tabs(read, sketch(text).tab),
        Ok((document, _)) => Ok(document),
        Err(Fault::Bound(trouble)) => Err(trouble),
        Err(Fault::Syntax(error)) if too_strict(&error) => {
            let Sketch { eased, pads, tab, .. } = sketch(text);
            match build(&eased, &pads) {
                Ok(read) => without_tabs(read, tab),
                Err(Fault::Bound(trouble)) => Err(trouble),
                Err(Fault::Syntax(error)) => Err(explain(&eased, &error, &pads)),
            }
        }
        Err(Fault::Syntax(error)) => Err(explain(text, &error, &untouched)),
    }
}

fn without_tabs((document, end): (Document, usize), tab: Option<Spot>) -> Result<Document, Trouble> {
    match tab {
        Some(spot) if (spot.line as usize) < end => Err(indented_with_tab(spot)),
        _ => Ok(document),
    }
}

/// The first document, and the line on which it is over.
fn build(text: &str, pads: &Pads) -> Result<(Document, usize), Fault> {
    let mut parser = Parser::new_from_str(text);
    let mut builder = Builder::new(text, pads);
    let mut end = 0;
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(Fault::Syntax)?;
        if event == Event::DocumentEnd {
            end = span.start.line();
            match parser.next_event() {
                None | Some(Ok((Event::StreamEnd, _))) => {}
                Some(Ok((_, span))) => builder.note(spot_at(span.start, pads), "a second document starts here and is not read"),
                Some(Err(e)) => builder.note(spot_at(*e.marker(), pads), AFTER_THE_END),
            }
            break;
        }
        builder.take(event, span)?;
    }
    builder.notes.sort_by_key(|note| (note.spot.line, note.spot.column));
    Ok((Document { root: builder.root, notes: builder.notes }, end))
}

impl<'t> Builder<'t> {
    fn new(source: &'t str, pads: &'t Pads) -> Self {
        let ruler = Ruler { rest: source, at: 0 };
        let (open, kept, notes) = (Vec::new(), HashMap::new(), Vec::new());
        Builder { pads, ruler, open, root: None, kept, nodes: 0, nodes_kept: 0, nodes_aliased: 0, widest: (0, Spot::default()), notes }
    }

    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), Trouble> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let spot = self.scalar_spot(span, style);
                self.count(1, spot)?;
                let reading = reading(&text, style, tag.as_deref(), spot)?;
                // A copy of its own size: the parser's buffers are three times that, and this halves the memory of a large file.
                let kind = Kind::Scalar(Scalar { text: String::from(&*text), reading });
                self.put(Node { spot, kind }, anchor, 1, 0)
            }
            Event::SequenceStart(anchor, _) => self.begin(span, anchor, Content::List(Vec::new())),
            Event::MappingStart(anchor, _) => self.begin(span, anchor, Content::Map { pairs: Vec::new(), key: None }),
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => self.expand(anchor, span),
            _ => Ok(()),
        }
    }

    fn begin(&mut self, span: Span, anchor: usize, content: Content) -> Result<(), Trouble> {
        let spot = spot_at(span.start, self.pads);
        self.count(1, spot)?;
        if self.open.len() >= DEPTH_MAX {
            return Err(Trouble::new(spot, too_deep()));
        }
        self.open.push(Open { spot, anchor, nodes_before: self.nodes - 1, height: 1, content });
        Ok(())
    }

    fn end(&mut self) -> Result<(), Trouble> {
        let Some(Open { mut spot, anchor, nodes_before, height, content }) = self.open.pop() else { return Ok(()) };
        let kind = match content {
            Content::List(items) => Kind::List(items),
            Content::Map { pairs, .. } => {
                if let Some((key, _)) = pairs.first()
                    && (key.spot.line, key.spot.column) == (spot.line, spot.column)
                {
                    spot = key.spot;
                }
                Kind::Map(self.settle(pairs)?)
            }
        };
        self.put(Node { spot, kind }, anchor, self.nodes - nodes_before, height)
    }

    fn expand(&mut self, anchor: usize, span: Span) -> Result<(), Trouble> {
        let spot = Spot { width: Spot::new(0, 0, span.len().max(1)).width, ..spot_at(span.start, self.pads) };
        let Some(Kept { nodes, height, .. }) = self.kept.get(&anchor) else {
            return Err(Trouble::new(spot, "this alias stands within the very thing that it is an alias of"));
        };
        let (nodes, height) = (*nodes, *height);
        self.nodes_aliased += nodes;
        self.widest = if nodes > self.widest.0 { (nodes, spot) } else { self.widest };
        self.count(nodes, spot)?;
        if self.open.len() + height > DEPTH_MAX {
            let text = format!("with this alias written out lists and maps are nested more than {DEPTH_MAX} deep");
            return Err(Trouble::new(spot, text));
        }
        // The copy is made when all is counted, so that a bomb does not go off first.
        let kind = self.kept[&anchor].node.kind.clone();
        self.put(Node { spot, kind }, 0, nodes, height)
    }

    /// Hands a finished node to the list or map that it stands in.
    fn put(&mut self, mut node: Node, anchor: usize, nodes: usize, height: usize) -> Result<(), Trouble> {
        if node.spot.width == 0 {
            node.spot = match self.open.last() {
                Some(Open { content: Content::Map { key: Some(key), .. }, .. }) => key.spot,
                _ => Spot { width: 1, ..node.spot },
            };
        }
        if anchor != 0 {
            self.nodes_kept += nodes;
            self.count(0, node.spot)?;
            self.kept.insert(anchor, Kept { node: node.clone(), nodes, height });
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        open.height = open.height.max(height + 1);
        match &mut open.content {
            Content::List(items) => items.push(node),
            Content::Map { pairs, key } => match key.take() {
                Some(key) => pairs.push((key, node)),
                None if matches!(node.kind, Kind::Scalar(_)) => *key = Some(node),
                None => {
                    return Err(Trouble::new(node.spot, "a list or a map stands where a key must be")
                        .hint("quote a text that starts with `{` or `[`; a placeholder such as {{ .x }} must be filled in beforehand"));
                }
            },
        }
        Ok(())
    }

    fn count(&mut self, nodes: usize, spot: Spot) -> Result<(), Trouble> {
        self.nodes += nodes;
        if self.nodes + self.nodes_kept <= NODES_MAX {
            return Ok(());
        }
        if self.nodes_aliased > self.nodes / 2 {
            let text = format!("with aliases such as this one written out the file has more than {NODES_MAX} nodes");
            return Err(Trouble::new(self.widest.1, text).hint("aliases of aliases multiply: write out what is needed"));
        }
        Err(Trouble::new(spot, format!("the file has more than {NODES_MAX} nodes up to here")))
    }

    fn note(&mut self, spot: Spot, text: impl Into<String>) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(Note { spot, text: text.into() });
        } else if self.notes.len() == NOTES_MAX {
            self.notes.push(Note { spot, text: "there is more of this kind from here on".into() });
        }
    }

    /// Applies merge keys and lets the last of repeated keys count. Nearly no map has either, and those are returned as they came.
    fn settle(&mut self, pairs: Vec<(Node, Node)>) -> Result<Vec<(Node, Node)>, Trouble> {
        if !pairs.iter().any(|(key, _)| is_merge(key)) && !has_repeats(&pairs) {
            return Ok(pairs);
        }
        let mut laid = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            if is_merge(&key) {
                let merge = Some(key.spot);
                laid.extend(merged(value)?.into_iter().map(|(key, value)| Laid { key, value, merge }));
            } else {
                laid.push(Laid { key, value, merge: None });
            }
        }
        let mut both_maps = HashSet::new();
        let settled = last_wins(
            laid,
            |laid| &laid.key,
            |slot, old, new| {
                match (old.merge, new.merge) {
                    (None, None) => self.note(new.key.spot, repeated(&old.key, &old.value, &new.value)),
                    (None, Some(merge)) => self.note(merge, overwritten(&old.key)),
                    (Some(_), _) => {}
                }
                let below = mem::replace(old, new);
                if let (Kind::Map(mut pairs), Kind::Map(above)) = (below.value.kind, &mut old.value.kind) {
                    pairs.append(above);
                    *above = pairs;
                    both_maps.insert(slot);
                } else {
                    both_maps.remove(&slot);
                }
            },
        );
        let finish = |(slot, Laid { key, mut value, .. }): (usize, Laid)| {
            if let Kind::Map(pairs) = &mut value.kind
                && both_maps.contains(&slot)
            {
                *pairs = last_wins(mem::take(pairs), |pair| &pair.0, |_, old, new| *old = new);
            }
            (key, value)
        };
        Ok(settled.into_iter().enumerate().map(finish).collect())
    }

    /// The parser's span of a quoted scalar goes on to the next token, comments included, and that of a long one over several lines.
    fn scalar_spot(&mut self, span: Span, style: ScalarStyle) -> Spot {
        let plain = style == ScalarStyle::Plain;
        let width = if plain && span.start.line() == span.end.line() {
            // None for an empty one: `put` gives that its key's spot.
            span.len()
        } else {
            self.ruler.measure(span.start.index(), style).unwrap_or(1).max(1)
        };
        Spot { width: Spot::new(0, 0, width).width, ..spot_at(span.start, self.pads) }
    }
}

impl Ruler<'_> {
    /// How wide the scalar that starts at a character is on its first line; None if the ruler is past it.
    fn measure(&mut self, start: usize, style: ScalarStyle) -> Option<usize> {
        let skip = start.checked_sub(self.at)?;
        let here = self.rest.char_indices().nth(skip).map_or(self.rest.len(), |(i, _)| i);
        self.rest = &self.rest[here..];
        self.at = start;
        let quote = match style {
            ScalarStyle::SingleQuoted => Some('\''),
            ScalarStyle::DoubleQuoted => Some('"'),
            _ => None,
        };
        // An anchor or a tag may stand before the quote. Nothing looks beyond the closing quote, as a line can be the whole file.
        let (mut inside, mut width) = (false, 0);
        let mut chars = self.rest.chars().take_while(|c| !matches!(c, '\n' | '\r')).enumerate().peekable();
        while let Some((i, c)) = chars.next() {
            if !c.is_whitespace() {
                width = i + 1;
            }
            let at_quote = Some(c) == quote;
            let doubled = at_quote && c == '\'' && chars.peek().is_some_and(|(_, next)| *next == c);
            let escapes = c == '\\' && quote == Some('"');
            if inside && (doubled || escapes) {
                chars.next();
            } else if inside && at_quote {
                return Some(i + 1);
            } else if at_quote {
                inside = true;
            }
        }
        Some(width)
    }
}

impl<'t> Near<'t> {
    /// The parser calls the end of the text the line after it; nobody's editor shows that one, so we say its last line then.
    fn new(source: &'t str, mark: Marker) -> Self {
        let (mut last, mut above) = (None, None);
        let mut lines = (1..).zip(source.lines());
        for (number, line) in lines.by_ref().take(mark.line()) {
            if !line.trim().is_empty() {
                above = last.replace((number, line));
            }
        }
        let (number, line) = last.unwrap_or((1, ""));
        let column = if number == mark.line() { mark.col() + 1 } else { line.trim_end().chars().count().max(1) };
        let below = lines.next().map_or("", |(_, line)| line);
        Near { spot: Spot::new(number, column, 1), line, above, below }
    }

    /// From the place to the next blank, comma or closing bracket.
    fn word(&self) -> &'t str {
        let from = self.line.char_indices().nth(self.spot.column as usize - 1).map_or(self.line.len(), |(i, _)| i);
        self.line[from..].split([' ', '\t', ',', ']', '}']).next().unwrap_or_default()
    }
}

/// Refuses what would cost too much to parse, and characters that yaml.v2 refuses.
fn admit(text: &str) -> Result<(), Trouble> {
    if text.len() > FILE_BYTES_MAX {
        let text = format!("the file is {} bytes long, more than the {FILE_BYTES_MAX} allowed", text.len());
        return Err(Trouble::new(Spot::new(1, 1, 1), text));
    }
    let tokens: usize = text.bytes().map(tokens_of).sum();
    if tokens > TOKENS_MAX {
        return Err(Trouble::new(Spot::new(1, 1, 1), format!("the file has about {tokens} tokens, more than the {TOKENS_MAX} allowed")));
    }
    // Bytes first: whatever is wrong starts with one of these, and nearly no file has any.
    let suspect = |b: u8| (b < b' ' && !matches!(b, b'\t' | b'\n' | b'\r')) || matches!(b, 0x7F | 0xC2 | 0xEF);
    if !text.bytes().any(suspect) {
        return Ok(());
    }
    let (mut line, mut column) = (1, 1);
    for (at, c) in text.char_indices() {
        let allowed = match c {
            '\t' | '\n' | '\r' | '\u{85}' => true,
            '\u{FEFF}' => at == 0,
            '\u{FFFE}' | '\u{FFFF}' => false,
            _ => !c.is_control(),
        };
        if !allowed {
            let text = format!("the character U+{:04X} is not allowed in YAML", u32::from(c));
            return Err(Trouble::new(Spot::new(line, column, 1), text).hint("in double quotes it can be written as \\xNN or \\uNNNN"));
        }
        (line, column) = if c == '\n' { (line + 1, 1) } else { (line, column + 1) };
    }
    Ok(())
}

/// How many tokens a character can lead to: a colon makes `key`, its text and `value`.
fn tokens_of(byte: u8) -> usize {
    match byte {
        b':' => 3,
        b',' => 2,
        b'[' | b']' | b'{' | b'}' | b'?' | b'!' | b'&' | b'*' | b'"' | b'\'' => 1,
        _ => 0,
    }
}

/// Which reading a style and a tag ask for. yaml.v2 refuses `!!int x`, takes `!!int "7"`, and lets unknown tags be texts.
fn reading(text: &str, style: ScalarStyle, tag: Option<&Tag>, spot: Spot) -> Result<Reading, Trouble> {
    let Some(tag) = tag else {
        return Ok(if style == ScalarStyle::Plain { Reading::Shape } else { Reading::Text });
    };
    let full = format!("{}{}", tag.handle, tag.suffix);
    let name = full.strip_prefix("tag:yaml.org,2002:").unwrap_or_default();
    let reading = match (name, resolve(text)) {
        ("int", Value::Int(_) | Value::BigInt(_)) | ("float", Value::Float(_)) | ("bool", Value::Bool(_)) | ("null", Value::Null) => {
            Reading::Shape
        }
        ("merge", _) if text == "<<" => Reading::Shape,
        ("float", Value::Int(_)) => Reading::Float,
        ("int" | "float" | "bool" | "null", _) => {
            let text = format!("`{}` is no !!{name}", shortened(text));
            return Err(Trouble::new(spot, text).hint("leave the tag out, or write !!str for a text"));
        }
        ("binary", _) => return Err(Trouble::new(spot, "!!binary is not read here").hint("write the text itself")),
        _ => Reading::Text,
    };
    Ok(reading)
}

/// `resolve` of yaml.v2's `resolve.go`: the first byte decides what is tried at all.
fn resolve(text: &str) -> Value {
    match text.as_bytes().first() {
        None => Value::Null,
        Some(b'~' | b'y' | b'Y' | b'n' | b'N' | b't' | b'T' | b'f' | b'F' | b'o' | b'O') => word(text),
        Some(b'.') => match special_float(text) {
            Some(float) => float,
            None => without_underscores_between_digits(text).and_then(|t| float(&t)).unwrap_or(Value::Text),
        },
        Some(b'0'..=b'9' | b'+' | b'-') => number(text),
        Some(_) => Value::Text,
    }
}

fn word(text: &str) -> Value {
    match text {
        "~" | "null" | "Null" | "NULL" => Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Value::Bool(true),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => Value::Bool(false),
        _ => Value::Text,
    }
}

fn special_float(text: &str) -> Option<Value> {
    match text {
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Some(Value::Float(f64::INFINITY)),
        "-.inf" | "-.Inf" | "-.INF" => Some(Value::Float(f64::NEG_INFINITY)),
        ".nan" | ".NaN" | ".NAN" => Some(Value::Float(f64::NAN)),
        _ => None,
    }
}

fn number(text: &str) -> Value {
    if let Some(float) = special_float(text) {
        return float;
    }
    let plain = if text.contains('_') { Cow::Owned(text.replace('_', "")) } else { Cow::Borrowed(text) };
    integer(&plain).or_else(|| float(&plain)).or_else(|| signed_after_0b(&plain)).unwrap_or(Value::Text)
}

/// Go's `ParseInt(text, 0, 64)`, then `ParseUint`, which takes no sign: hence `+9223372036854775808` is left to [`float`].
fn integer(text: &str) -> Option<Value> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (radix, digits) = match unsigned.as_bytes() {
        [b'0', b'x' | b'X', _, ..] => (16, &unsigned[2..]),
        [b'0', b'o' | b'O', _, ..] => (8, &unsigned[2..]),
        [b'0', b'b' | b'B', _, ..] => (2, &unsigned[2..]),
        [b'0', _, ..] => (8, &unsigned[1..]),
        _ => (10, unsigned),
    };
    let magnitude = magnitude(digits, radix)?;
    if text.starts_with('-') {
        return 0_i64.checked_sub_unsigned(magnitude).map(Value::Int);
    }
    match i64::try_from(magnitude) {
        Ok(n) => Some(Value::Int(n)),
        Err(_) => (unsigned.len() == text.len()).then_some(Value::BigInt(magnitude)),
    }
}

/// yaml.v2 tries binary numbers once more by hand and then lets `0b-11` be -3.
fn signed_after_0b(text: &str) -> Option<Value> {
    let digits = text.strip_prefix("0b")?;
    i64::from_str_radix(digits, 2).ok().map(Value::Int)
}

/// Rust's parsing lets a plus stand before the digits, where we had one already.
fn magnitude(digits: &str, radix: u32) -> Option<u64> {
    if digits.starts_with('+') {
        return None;
    }
    u64::from_str_radix(digits, radix).ok()
}

/// yaml.v2's `^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`. What is too large stays a text, as Go calls it an error.
fn float(text: &str) -> Option<Value> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent.strip_prefix(['+', '-']).unwrap_or(exponent))),
        None => (unsigned, None),
    };
    let all_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let well_formed = match mantissa.split_once('.') {
        Some(("", fraction)) => !fraction.is_empty() && all_digits(fraction),
        Some((whole, fraction)) => all_digits(whole) && all_digits(fraction),
        None => !mantissa.is_empty() && all_digits(mantissa),
    } && exponent.is_none_or(|e| !e.is_empty() && all_digits(e));
    if !well_formed {
        return None;
    }
    text.parse().ok().filter(|f: &f64| f.is_finite()).map(Value::Float)
}

/// What starts with a dot goes to Go's `ParseFloat` as it is, which takes `.5_0` but not `.5__0`.
fn without_underscores_between_digits(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('_') {
        return Some(Cow::Borrowed(text));
    }
    let bytes = text.as_bytes();
    let digit = |i: usize| bytes.get(i).is_some_and(u8::is_ascii_digit);
    let between = |i: usize| i > 0 && digit(i - 1) && digit(i + 1);
    let allowed = bytes.iter().enumerate().all(|(i, b)| *b != b'_' || between(i));
    allowed.then(|| Cow::Owned(text.replace('_', "")))
}

fn is_merge(key: &Node) -> bool {
    matches!(&key.kind, Kind::Scalar(scalar) if scalar.is_merge())
}

/// The pairs that a `<<` brings, least important first: yaml.v2 goes through a list of maps backwards.
fn merged(value: Node) -> Result<Vec<(Node, Node)>, Trouble> {
    let no_map = |spot| Trouble::new(spot, "`<<` takes a map or a list of maps").hint("quote '<<' if it is meant as a key");
    match value.kind {
        Kind::Map(pairs) => Ok(pairs),
        Kind::List(items) => {
            let mut pairs = Vec::new();
            for item in items.into_iter().rev() {
                let Kind::Map(more) = item.kind else { return Err(no_map(item.spot)) };
                pairs.extend(more);
            }
            Ok(pairs)
        }
        Kind::Scalar(_) => Err(no_map(value.spot)),
    }
}

fn identity(key: &Node) -> Identity<'_> {
    match &key.kind {
        Kind::Scalar(scalar) => scalar.identity(),
        // `put` lets none through.
        Kind::List(_) | Kind::Map(_) => Identity::Null,
    }
}

fn has_repeats(pairs: &[(Node, Node)]) -> bool {
    if pairs.len() <= PAIRWISE_MAX {
        return pairs.iter().enumerate().any(|(i, (key, _))| pairs[..i].iter().any(|(other, _)| same(key, other)));
    }
    let mut seen = HashSet::with_capacity(pairs.len());
    !pairs.iter().all(|(key, _)| seen.insert(identity(key)))
}

/// Whether two keys are equal, with as little resolving as that takes.
fn same(a: &Node, b: &Node) -> bool {
    let (Kind::Scalar(x), Kind::Scalar(y)) = (&a.kind, &b.kind) else { return false };
    // Two different texts can only be one value if each is more than text.
    (x.text == y.text || (x.value() != Value::Text && y.value() != Value::Text)) && x.identity() == y.identity()
}

/// Leaves one item per key, where the first of them stood. `clash` is told the place among those left.
fn last_wins<T>(items: Vec<T>, key: impl Fn(&T) -> &Node, mut clash: impl FnMut(usize, &mut T, T)) -> Vec<T> {
    let mut slots = Vec::with_capacity(items.len());
    let mut left = HashMap::with_capacity(items.len());
    for item in &items {
        let next = left.len();
        slots.push(*left.entry(identity(key(item))).or_insert(next));
    }
    let mut out: Vec<T> = Vec::with_capacity(left.len());
    drop(left);
    for (slot, item) in slots.into_iter().zip(items) {
        match out.get_mut(slot) {
            Some(old) => clash(slot, old, item),
            None => out.push(item),
        }
    }
    out
}

fn repeated(key: &Node, old: &Node, new: &Node) -> String {
    let (name, line) = (key_text(key), key.spot.line);
    match (&old.kind, &new.kind) {
        (Kind::Map(_), Kind::Map(_)) => format!("the key `{name}` stood on line {line} already: the two maps are joined, this one counts"),
        _ => format!("the key `{name}` stood on line {line} already: only this one counts"),
    }
}

fn overwritten(key: &Node) -> String {
    format!("`<<` replaces `{}` of line {}, which stands above it: put `<<` first if it should not", key_text(key), key.spot.line)
}

fn key_text(key: &Node) -> String {
    match &key.kind {
        Kind::Scalar(scalar) => shortened(&scalar.text),
        Kind::List(_) | Kind::Map(_) => String::new(),
    }
}

/// For messages: one line, and not a page of it.
fn shortened(text: &str) -> String {
    const CHARS_MAX: usize = 60;
    let line = text.lines().next().unwrap_or_default();
    if line.len() == text.len() && line.chars().count() <= CHARS_MAX {
        return line.to_owned();
    }
    line.chars().take(CHARS_MAX).chain("..".chars()).collect()
}

fn spot_at(mark: Marker, pads: &Pads) -> Spot {
    let pad = pads.get(&mark.line()).copied().unwrap_or_default();
    Spot::new(mark.line(), mark.col().saturating_sub(pad) + 1, 1)
}

/// Whether the parser refuses for a reason that yaml.v2 does not know, see [`Sketch`].
fn too_strict(error: &ScanError) -> bool {
    error.info().contains("indentation") || error.info().starts_with("':' must be followed")
}

fn sketch(source: &str) -> Sketch {
    let mut eased = String::with_capacity(source.len() + source.len() / 8);
    let mut pads = HashMap::new();
    let mut unclosed: Vec<(char, Spot)> = Vec::new();
    let mut quote = None;
    // The column of the key or dash whose value this is: what belongs to it must be indented more.
    let mut parent: Option<usize> = None;
    let mut in_block_scalar = false;
    let mut mismatch = false;
    let mut tab = None;
    for (line, text) in source.split_inclusive('\n').enumerate().map(|(i, text)| (i + 1, text)) {
        let content = text.trim_start_matches(' ');
        let indent = text.len() - content.len();
        let blank = content.trim_end().is_empty();
        in_block_scalar &= blank || parent.is_none_or(|parent| indent > parent);
        if blank || in_block_scalar || mismatch {
            eased.push_str(text);
            continue;
        }
        let in_block = quote.is_none() && unclosed.is_empty();
        let text_of_line = content.trim();
        if in_block
            && tab.is_none()
            && content.starts_with('\t')
            && (text_of_line.starts_with("- ") || text_of_line.contains(": ") || text_of_line.ends_with(':'))
            && !text_of_line.starts_with('#')
        {
            tab = Some(Spot::new(line, indent + 1, 1));
        }
        let floor = parent.map_or(0, |parent| parent + 1);
        // The second condition is for a key at column 1,000,000 with as many lines in its brackets.
        if !in_block && indent < floor && eased.len() < 2 * FILE_BYTES_MAX {
            eased.extend(std::iter::repeat_n(' ', floor - indent));
            pads.insert(line, floor - indent);
        }
        eased.push_str(&text[..indent]);

        // Whether a token may start here; where the last plain one did.
        let (mut fresh, mut start) = (true, indent);
        let mut before = ' ';
        let mut chars = content.chars().enumerate().map(|(i, c)| (indent + i, c)).peekable();
        while let Some((column, c)) = chars.next() {
            let next = chars.peek().map_or('\n', |(_, c)| *c);
            let in_flow = !unclosed.is_empty();
            eased.push(c);
            if let Some(q) = quote {
                if (q == '"' && c == '\\') || (q == '\'' && c == q && next == q) {
                    eased.extend(chars.next_if(|(_, c)| *c != '\n').map(|(_, c)| c));
                } else if c == q {
                    quote = None;
                }
                (fresh, before) = (false, c);
                continue;
            }
            match c {
                '#' if before.is_whitespace() => {
                    eased.extend(chars.by_ref().map(|(_, c)| c));
                }
                '"' | '\'' if fresh => {
                    (quote, start) = (Some(c), column);
                }
                '[' | '{' if fresh || in_flow => {
                    unclosed.push((c, Spot::new(line, column + 1, 1)));
                    fresh = true;
                }
                ']' | '}' if in_flow => {
                    let open = if c == ']' { '[' } else { '{' };
                    if unclosed.last().is_some_and(|(last, _)| *last != open) {
                        mismatch = true;
                        eased.extend(chars.by_ref().map(|(_, c)| c));
                    } else {
                        unclosed.pop();
                    }
                    fresh = false;
                }
                ',' if in_flow => fresh = true,
                ':' if next.is_whitespace() => {
                    if !in_flow {
                        parent = Some(start);
                    }
                    while let Some((_, c)) = chars.next_if(|(_, c)| matches!(c, ' ' | '\t')) {
                        eased.push(if c == '\t' { ' ' } else { c });
                    }
                    (fresh, before) = (true, ' ');
                    continue;
                }
                '-' | '?' if fresh && !in_flow && next.is_whitespace() => parent = Some(column),
                '|' | '>' if fresh && !in_flow => {
                    in_block_scalar = true;
                    eased.extend(chars.by_ref().map(|(_, c)| c));
                }
                '&' | '!' if fresh => {
                    while let Some((_, c)) = chars.next_if(|(_, c)| !c.is_whitespace()) {
                        eased.push(c);
                    }
                }
                _ if c.is_whitespace() => {}
                _ if fresh => (fresh, start) = (false, column),
                _ => {}
            }
            before = c;
        }
    }
    Sketch { eased, pads, unclosed, tab }
}

/// The parser's refusal in words for someone who writes rules and not parsers, at the place where the mistake was probably made.
fn explain(source: &str, error: &ScanError, pads: &Pads) -> Trouble {
    let near = Near::new(source, *error.marker());
    let info = error.info();
    let mut trouble = if info.contains("tab") && !info.contains("alphabetic") {
        tab(&near)
    } else if BRACKETS.iter().any(|known| info.contains(known)) {
        bracket(source, near.spot)
    } else if LINES.iter().any(|known| info.contains(known)) && !info.contains("quoted") {
        misplaced_line(&near, info)
    } else {
        reworded(info, &near)
    };
    if near.line.contains("{{") {
        trouble.hint = Some("a placeholder such as {{ .x }} must be filled in before the file is read".into());
    }
    if let Some(pad) = pads.get(&(trouble.spot.line as usize)) {
        trouble.spot =
            Spot::new(trouble.spot.line as usize, (trouble.spot.column as usize).saturating_sub(*pad).max(1), trouble.spot.width as usize);
    }
    trouble
}

fn tab(near: &Near<'_>) -> Trouble {
    // Where a text might go on the parser is still at its first line.
    for (number, line) in [(near.spot.line as usize, near.line), (near.spot.line as usize + 1, near.below)] {
        let content = line.trim_start_matches(' ');
        if content.starts_with('\t') {
            return indented_with_tab(Spot::new(number, line.len() - content.len() + 1, 1));
        }
    }
    Trouble::new(near.spot, "a tab stands where only spaces may").hint("write spaces")
}

fn indented_with_tab(spot: Spot) -> Trouble {
    Trouble::new(spot, "this line is indented with a tab").hint("indent with spaces")
}

fn bracket(source: &str, spot: Spot) -> Trouble {
    match sketch(source).unclosed.last() {
        Some((open, at)) => {
            let close = if *open == '[' { ']' } else { '}' };
            Trouble::new(*at, format!("the `{open}` is never closed")).hint(format!("add the missing `{close}`"))
        }
        None => Trouble::new(spot, "a comma or a closing bracket is missing, or a text needs quotes")
            .hint("separate items with `,`, and quote a text that contains `: `, a comma or a bracket"),
    }
}

/// Mistakes that the parser notices on the line itself or, when that one could still have become something, on the next.
fn misplaced_line(near: &Near<'_>, info: &str) -> Trouble {
    let here = (near.spot.line as usize, near.line);
    let suspects = || std::iter::once(here).chain(near.above);
    if let Some(trouble) = suspects().find_map(|(number, line)| missing_space(number, line)) {
        return trouble;
    }
    let whole = |(number, line): (usize, &str)| {
        let indent = line.chars().take_while(|c| c.is_whitespace()).count();
        Spot::new(number, indent + 1, line.trim().chars().count().max(1))
    };
    let has_key = |line: &str| line.contains(": ") || line.trim_end().ends_with(':');
    if info.contains("simple key")
        && let Some(lone) = suspects().find(|(_, line)| !has_key(line))
    {
        return Trouble::new(whole(lone), "this line is neither `key: value` nor a list item")
            .hint("put a colon and a space after the key");
    }
    let before: String = near.line.chars().take(near.spot.column as usize - 1).collect();
    if info.contains("mapping values") && before.contains(": ") {
        return Trouble::new(near.spot, "a second `: ` stands on this line")
            .hint("quote the value if the colon belongs to it, or start a new line");
    }
    Trouble::new(whole(here), "this line's indentation does not fit the lines above")
        .hint("indent the keys of one map alike, and the dashes of one list alike")
}

/// `key:value` and `-item`, which YAML takes for texts.
fn missing_space(number: usize, line: &str) -> Option<Trouble> {
    let column = |rest: &str| line.chars().count() - rest.chars().count() + 1;
    let content = line.trim_start_matches([' ', '-']);
    if let Some((key, value)) = content.split_once(':')
        && !key.is_empty()
        && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !value.is_empty()
        && !value.starts_with([' ', '\t', '\r', '/'])
    {
        let spot = Spot::new(number, column(content), key.len() + 1);
        let hint = format!("write `{}: {}`", shortened(key), shortened(value.trim_end()));
        return Some(Trouble::new(spot, format!("a space is missing after `{}:`", shortened(key))).hint(hint));
    }
    let item = line.trim_start().strip_prefix('-').filter(|item| item.starts_with(char::is_alphabetic))?;
    let spot = Spot::new(number, column(item) - 1, 1);
    Some(Trouble::new(spot, "a space is missing after the `-`").hint(format!("write `- {}`", shortened(item.trim_end()))))
}

fn reworded(info: &str, near: &Near<'_>) -> Trouble {
    let (spot, word) = (near.spot, near.word());
    let word = shortened(word);
    let first = word.chars().next().unwrap_or_default();
    let say = |text: &str, hint: &str| Trouble::new(spot, text).hint(hint);
    let quote = |text: String| {
        let spot = Spot::new(spot.line as usize, spot.column as usize, word.chars().count().max(1));
        Trouble::new(spot, text).hint(format!("quote it: '{}'", word.replace('\'', "''")))
    };
    match info {
        "while parsing node, found unknown anchor" => quote(format!("`{word}` is an alias, and nothing above has that anchor")),
        _ if info.starts_with("while scanning an anchor") => {
            quote(format!("a value that starts with `{first}` is {}", if first == '*' { "an alias" } else { "an anchor" }))
        }
        _ if info.starts_with("unexpected character") => quote(format!("no value may start with `{first}`")),
        _ if first == '!' && (info.contains("tag") || info.contains("handle")) => {
            quote("a value that starts with `!` is a tag, and this is none".into())
        }
        _ if info.starts_with("plain scalar cannot start with '-'") => say("a `-` cannot stand alone in brackets", "quote it: '-'"),
        "misplaced bracket" => say("this bracket closes nothing", "remove it, or quote the text that it belongs to"),
        "recursion limit exceeded" => Trouble::new(spot, too_deep()),
        _ if info.starts_with("invalid trailing content after double") => say(
            "the text goes on after its closing quote",
            "put the quotes around all of it; within '..' write '' for a quote, within \"..\" write \\\"",
        ),
        "while scanning a quoted scalar, found unexpected end of stream"
        | "while scanning a quoted scalar, found unexpected document indicator"
        | "invalid indentation in quoted scalar" => say("this quote is never closed", "add the closing quote"),
        _ if info.starts_with("while parsing a quoted scalar") => {
            say("a backslash in this text starts no known escape", "write \\\\ for a backslash, or use single quotes")
        }
        "block sequence entries are not allowed in this context" => {
            say("no list item can start here", "start the list on the next line, or quote a text that starts with `- `")
        }
        "mapping keys are not allowed in this context" => say("no key can start here", "quote a text that starts with `? `"),
        "comment intercepting the multiline text" => say("a comment stands in the middle of a text of several lines", "quote the text"),
        "while scanning a block scalar, did not find expected comment or line break" => {
            say("something follows the `|` or `>` on its line", "start the text on the next line, or quote it if it starts with `|` or `>`")
        }
        "wrongly indented line in block scalar" => say("this line of a `|` or `>` text is indented differently", "indent all of it alike"),
        "comments must be separated from other tokens by whitespace" => say("a space is missing before `#`", "write ` #` before a comment"),
        "did not find expected <document start>" => say("a `---` is missing between the line with `%` and this one", "remove that line"),
        _ => Trouble::new(spot, info.strip_prefix("while ").unwrap_or(info)),
    }
}

fn too_deep() -> String {
    format!("lists and maps are nested more than {DEPTH_MAX} deep here")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_scalars_mean_what_they_mean_to_yaml_v2() {
        for text in NULLS.split(' ') {
            assert_eq!(value_of(text), Value::Null, "{text}");
        }
        for (texts, expected) in [(TRUE, true), (FALSE, false)] {
            for text in texts.split(' ') {
                assert_eq!(value_of(text), Value::Bool(expected), "{text}");
            }
        }
        for (text, expected) in INTS {
            assert_eq!(value_of(text), Value::Int(*expected), "{text}");
        }
        for (text, expected) in BIG_INTS {
            assert_eq!(value_of(text), Value::BigInt(*expected), "{text}");
        }
        for (text, expected) in FLOATS {
            let Value::Float(float) = value_of(text) else { panic!("{text} is {:?}", value_of(text)) };
            assert!(float.to_bits() == expected.to_bits() || (float.is_nan() && expected.is_nan()), "{text} is {float}");
        }
        for text in TEXTS.split(' ') {
            assert_eq!(value_of(text), Value::Text, "{text}");
            assert_eq!(scalar_of(text).text, text);
        }
        assert_eq!(value_of(""), Value::Null);
    }

    #[test]
    fn quotes_and_blocks_are_texts_and_tags_decide() {
        for (written, value, text) in [
            ("'yes'", Value::Text, "yes"),
            ("\"7\"", Value::Text, "7"),
            ("'~'", Value::Text, "~"),
            ("''", Value::Text, ""),
            ("'it''s'", Value::Text, "it's"),
            ("\"tab\\there \\u00e9\"", Value::Text, "tab\there é"),
            ("|\n  1\n  2", Value::Text, "1\n2\n"),
            (">-\n  two\n  words", Value::Text, "two words"),
            ("two\n  words", Value::Text, "two words"),
            ("!!str 5", Value::Text, "5"),
            ("!!str ~", Value::Text, "~"),
            ("!!str", Value::Text, ""),
            ("! yes", Value::Text, "yes"),
            ("!own yes", Value::Text, "yes"),
            ("!!timestamp 2026-01-01", Value::Text, "2026-01-01"),
            ("!!int \"7\"", Value::Int(7), "7"),
            ("!<tag:yaml.org,2002:int> 0x10", Value::Int(16), "0x10"),
            ("!!bool 'on'", Value::Bool(true), "on"),
            ("!!float 1", Value::Float(1.0), "1"),
            ("!!null ''", Value::Null, ""),
            ("!!null", Value::Null, ""),
        ] {
            assert_eq!((value_of(written), scalar_of(written).text.as_str()), (value, text), "{written}");
        }
        for refused in
            ["!!int x", "!!int 1.5", "!!int", "!!float yes", "!!float 18446744073709551615", "!!bool 1", "!!null x", "!!binary aGk="]
        {
            assert!(read(&format!("v: {refused}\n")).is_err(), "{refused}");
        }
    }

    #[test]
    fn the_tree_has_the_shape_of_the_text() {
        for (text, expected) in [
            ("a: b\nc: [1, {d: }]\n", "{a: b, c: [1, {d: ~}]}"),
            ("a:\n- b\n- c: d\n  e: f\n-\n", "{a: [b, {c: d, e: f}, ~]}"),
            ("a:\n  - - b\n    - c\n", "{a: [[b, c]]}"),
            ("? a\n: b\n? c\n", "{a: b, c: ~}"),
            ("{\"a\":[\"b\"],\"c\":{}}", "{a: [b], c: {}}"),
            ("\u{feff}a: b\r\nc: d\r\n", "{a: b, c: d}"),
            ("%YAML 1.1\n---\na: b\n", "{a: b}"),
            ("--- text\n", "text"),
            ("---\n", "~"),
        ] {
            assert_eq!(shape_of(text), expected, "{text:?}");
        }
        for nothing in ["", "\n\n", "# only\n", "  # a comment\n# and another"] {
            assert!(read(nothing).unwrap().root.is_none(), "{nothing:?}");
        }
    }

    #[test]
    fn merges_apply_where_they_stand_as_in_yaml_v2() {
        let shape = |map: &str| {
            shape_of(&format!("[&a {{k: a, x: ax}}, &b {{k: b, y: by}}, {map}]")).split_off("[{k: a, x: ax}, {k: b, y: by}, ".len())
        };
        for (map, expected) in [
            ("{<<: *a, k: own}", "{k: own, x: ax}]"),
            // In YAML's own words the explicit key should win here too. It does not in yaml.v2.
            ("{k: own, <<: *a}", "{k: a, x: ax}]"),
            ("{<<: [*a, *b]}", "{k: a, y: by, x: ax}]"),
            ("{<<: [*b, *a], y: own}", "{k: b, x: ax, y: own}]"),
            ("{<<: *a, <<: *b}", "{k: b, x: ax, y: by}]"),
            ("{<<: {z: 1}}", "{z: 1}]"),
            ("{!!merge <<: *a}", "{k: a, x: ax}]"),
            ("{'<<': *a}", "{<<: {k: a, x: ax}}]"),
            ("{!!str <<: *a}", "{<<: {k: a, x: ax}}]"),
        ] {
            assert_eq!(shape(map), expected, "{map}");
        }
        for refused in ["<<: 1\n", "<<:\n", "<<: [[a: b]]\n", "<<: [1]\n"] {
            assert!(read(refused).unwrap_err().text.starts_with("`<<` takes"), "{refused}");
        }
    }

    #[test]
    fn a_merged_map_within_is_joined_as_when_yaml_v2_fills_a_struct() {
        let base = "- &b {key: a, rate_limit: {unit: hour, requests_per_unit: 5}}\n";
        let joined = format!("{base}- <<: *b\n  rate_limit: {{requests_per_unit: 6}}\n");
        assert_eq!(
            shape_of(&joined),
            "[{key: a, rate_limit: {unit: hour, requests_per_unit: 5}}, {key: a, rate_limit: {unit: hour, requests_per_unit: 6}}]"
        );
        assert!(read(&joined).unwrap().notes.is_empty());
        // One level only, as there; a list or a null replaces.
        assert_eq!(shape_of("{m: {a: {x: 1}, b: 2}, m: {a: {y: 1}}}"), "{m: {a: {y: 1}, b: 2}}");
        assert_eq!(shape_of("{m: {a: 1}, m: , m: {b: 2}}"), "{m: {b: 2}}");
    }

    #[test]
    fn the_last_of_repeated_keys_counts_and_is_noted() {
        let text = "a: 1\nb: 2\na: 3\n\"a\": 4\n";
        let document = read(text).unwrap();
        assert_eq!(shape(document.root.as_ref().unwrap()), "{a: 4, b: 2}");
        let spots: Vec<_> = document.notes.iter().map(|note| note.spot).collect();
        assert_eq!(spots, [Spot::new(3, 1, 1), Spot::new(4, 1, 3)]);
        assert_eq!(document.notes[0].text, "the key `a` stood on line 1 already: only this one counts");
        // Equal is what has one value, not one spelling.
        assert_eq!(shape_of("{1: a, 0x1: b, '1': c, y: d, yes: e, 1.0: f}"), "{0x1: b, 1: c, yes: e, 1.0: f}");
        let long: Vec<String> = (0..300).map(|i| format!("k{}: {i}", i % 250)).collect();
        let document = read(&long.join("\n")).unwrap();
        let Some(Node { kind: Kind::Map(pairs), .. }) = document.root else { panic!("no map") };
        assert_eq!((pairs.len(), document.notes.len()), (250, 50));
        assert!(read(&"k: v\n".repeat(100_000)).unwrap().notes.len() <= NOTES_MAX + 1);
    }

    #[test]
    fn a_merge_that_replaces_an_explicit_key_is_noted() {
        let document = read("a: &a {k: 1}\nb:\n  k: 2\n  <<: *a\n").unwrap();
        assert_eq!(document.notes.len(), 1);
        assert_eq!(document.notes[0].spot, Spot::new(4, 3, 2));
        assert!(document.notes[0].text.contains("put `<<` first"));
    }

    #[test]
    fn only_the_first_document_is_read() {
        for (text, spot) in [
            ("a: b\n---\nc: d\n", Spot::new(2, 1, 1)),
            ("a: b\n...\nc: d\n", Spot::new(3, 1, 1)),
            ("a: b\n---\n@@ no yaml {\n", Spot::new(2, 1, 1)),
            ("a: b\n---\nc:\n\t- d: e\n", Spot::new(2, 1, 1)),
            ("  a: b\nc: d\n", Spot::new(2, 1, 1)),
        ] {
            let document = read(text).unwrap();
            assert_eq!(shape(document.root.as_ref().unwrap()), "{a: b}", "{text:?}");
            assert_eq!(document.notes.iter().map(|note| note.spot).collect::<Vec<_>>(), [spot], "{text:?}");
        }
        assert!(read("---\na: b\n...\n").unwrap().notes.is_empty());
    }

    #[test]
    fn aliases_are_copies_that_stand_where_the_alias_does() {
        let document = read("a: &x {k: [v]}\nb: *x\nc: &y 5\nd: *y\n").unwrap();
        let root = document.root.unwrap();
        assert_eq!(shape(&root), "{a: {k: [v]}, b: {k: [v]}, c: 5, d: 5}");
        let copy = value_at(&root, 1);
        assert_eq!(copy.spot, Spot::new(2, 4, 2));
        assert_eq!(value_at(copy, 0).spot, Spot::new(1, 11, 1));
        assert_eq!(value_at(&root, 3).spot, Spot::new(4, 4, 2));
    }

    #[test]
    fn bad_aliases_are_refused() {
        for (text, spot, says) in [
            ("a: &x [1, *x]\n", Spot::new(1, 11, 2), "within the very thing"),
            ("a: &x\n  b: *x\n", Spot::new(2, 6, 2), "within the very thing"),
            ("a: *gone\n", Spot::new(1, 4, 5), "`*gone` is an alias"),
            ("a: &x 1\n---\nb: *x\n", Spot::default(), ""),
        ] {
            match read(text) {
                Ok(_) => assert!(says.is_empty(), "{text:?}"),
                Err(trouble) => {
                    assert_eq!(trouble.spot, spot, "{text:?}");
                    assert!(trouble.text.contains(says), "{trouble}");
                }
            }
        }
    }

    #[test]
    fn an_alias_bomb_is_refused_at_the_alias() {
        for (first, open, close, item) in [("[x, x]", '[', ']', "*a"), ("{x: 1}", '{', '}', "k: *a")] {
            let mut text = format!("a0: &a0 {first}\n");
            for level in 1..40 {
                let items: Vec<String> = (0..9).map(|i| format!("{}{}", item.replace("k:", &format!("k{i}:")), level - 1)).collect();
                text += &format!("a{level}: &a{level} {open}{}{close}\n", items.join(", "));
            }
            let trouble = read(&text).unwrap_err();
            assert!(trouble.text.contains("aliases such as this one") && trouble.text.contains("4000000 nodes"), "{trouble}");
            assert!(trouble.spot.line > 2 && trouble.spot.width == 3, "{trouble}");
        }
    }

    #[test]
    fn depth_is_bounded_aliases_followed() {
        let nested = |n: usize| format!("{}x{}", "[".repeat(n), "]".repeat(n));
        assert!(read(&nested(DEPTH_MAX)).is_ok());
        assert!(read(&nested(DEPTH_MAX + 1)).unwrap_err().text.contains("128 deep"));
        assert!(read(&"- ".repeat(DEPTH_MAX + 1)).unwrap_err().text.contains("128 deep"));
        let mut chain = "a0: &a0 [x]\n".to_owned();
        for i in 1..=DEPTH_MAX {
            chain += &format!("a{i}: &a{i} [*a{}]\n", i - 1);
        }
        let trouble = read(&chain).unwrap_err();
        assert!(trouble.text.contains("128 deep"), "{trouble}");
        assert_eq!(trouble.spot.line as usize, DEPTH_MAX);
    }

    #[test]
    fn size_is_bounded_and_100_000_rules_are_within() {
        assert!(read(&"#".repeat(FILE_BYTES_MAX + 1)).unwrap_err().text.contains("bytes long"));
        assert!(read(&format!("[{}", "? ".repeat(TOKENS_MAX + 1))).unwrap_err().text.contains("tokens"));
        let mut rules = "domain: d\ndescriptors:\n".to_owned();
        for i in 0..100_000 {
            rules +=
                &format!("- {{\"key\": \"k\", \"value\": \"v{i}\", \"rate_limit\": {{\"unit\": \"hour\", \"requests_per_unit\": 5}}}}\n");
        }
        assert!(read(&rules).is_ok());
    }

    #[test]
    fn every_node_knows_where_it_stands() {
        let text = concat!(
            "domain: é \"q\"\n",
            "list: # why\n",
            "- plain\n",
            "- \"quo\\\"ted\"  # comment\n",
            "- 'it''s' \n",
            "- &anchor 'x'\n",
            "- |\n",
            "  literal\n",
            "  lines\n",
            "- two\n",
            "  lines\n",
            "map: {é: 'é', empty: , \"k\": [1, 22]}\n",
            "nothing:\n",
            "last: {a:\n",
            "  'x'}\n",
        );
        let expected = "1:1+6 1:1+6 1:9+5 2:1+4 3:3+1 3:3+5 4:3+10 5:3+7 6:3+11 8:3+7 10:3+3 12:1+3 12:6+1 12:7+1 12:10+3 12:15+5 12:15+5 \
                        12:24+3 12:29+1 12:30+1 12:33+2 13:1+7 13:1+7 14:1+4 14:7+1 14:8+1 15:3+3";
        let spots = |text: &str| {
            let mut all = Vec::new();
            collect_spots(&read(text).unwrap().root.unwrap(), &mut all);
            let shown: Vec<String> = all.iter().map(|s| format!("{}:{}+{}", s.line, s.column, s.width)).collect();
            shown.join(" ")
        };
        assert_eq!(spots(text), expected);
        assert_eq!(spots(&text.replace('\n', "\r\n")), expected);
        assert_eq!(spots(&format!("\u{feff}{text}")), expected);
    }

    #[test]
    fn what_only_yaml_1_2_refuses_is_read_and_keeps_its_spots() {
        let text = "domain:\td\ndescriptors: [\n{key: a},\n\t{key: \"b\n c\"},\n]\nx: |\n  [ 'kept\nz: 1\n";
        let root = read(text).unwrap().root.unwrap();
        assert_eq!(shape(&root), "{domain: d, descriptors: [{key: a}, {key: b c}], x: [ 'kept\n, z: 1}");
        assert_eq!(value_at(&root, 0).spot, Spot::new(1, 9, 1));
        let Kind::List(items) = &value_at(&root, 1).kind else { panic!("no list") };
        assert_eq!(items[0].spot, Spot::new(3, 1, 1));
        assert_eq!(value_at(&items[0], 0).spot, Spot::new(3, 7, 1));
        assert_eq!(items[1].spot, Spot::new(4, 2, 1));
        assert_eq!(shape_of("a: \"one\ntwo\"\n"), "{a: one two}");
        // The fault that remains is told where it stands in the file as written.
        let trouble = read("a: [\n{b: c d: e}\n]\n").unwrap_err();
        assert_eq!((trouble.spot.line, trouble.spot.column), (2, 8), "{trouble}");
    }

    #[test]
    fn common_mistakes_are_named_where_they_are_made() {
        for (text, line, column, says, hints) in [
            ("a:\n\t- b\n", 2, 1, "indented with a tab", "spaces"),
            ("\ta: b\n", 1, 1, "indented with a tab", "spaces"),
            ("a:\n  \t- b: c\n", 2, 3, "indented with a tab", "spaces"),
            ("a:\n  - b: c\n\td: e\n", 3, 1, "indented with a tab", "spaces"),
            ("domain:d\nb: c\n", 1, 1, "a space is missing after `domain:`", "`domain: d`"),
            ("a:\n  - key: x\n    value:y\n    c: d\n", 3, 5, "a space is missing after `value:`", "`value: y`"),
            ("a:\n  - b: c\n  -d: e\n", 3, 3, "a space is missing after the `-`", "`- d: e`"),
            ("a: b\nlone\nc: d\n", 2, 1, "neither `key: value` nor", "colon"),
            ("a: [\n  b\n", 1, 4, "the `[` is never closed", "`]`"),
            ("a:\n- {b: c, d: {e: f}\n- {g: h}\n", 2, 3, "the `{` is never closed", "`}`"),
            ("a: [b}\n", 1, 4, "the `[` is never closed", "`]`"),
            ("a: {b: c d: e}\n", 1, 11, "a comma or a closing bracket is missing", "quote"),
            ("a: b\n}\n", 2, 1, "closes nothing", "remove"),
            ("a: *.example\n", 1, 4, "is an alias", "quote it: '*.example'"),
            ("a: * b\n", 1, 4, "is an alias", "quote it: '*'"),
            ("a: @b\n", 1, 4, "no value may start with `@`", "'@b'"),
            ("a: `b`\n", 1, 4, "no value may start with ```", "'`b`'"),
            ("a: %b\n", 1, 4, "no value may start with `%`", "'%b'"),
            ("a: !b!c d\n", 1, 4, "is a tag", "'!b!c'"),
            ("a: \"b\nc: d\n", 1, 4, "never closed", "closing quote"),
            ("a: 'b\n  c: d\n", 1, 4, "never closed", "closing quote"),
            ("a: 'it's'\n", 1, 8, "goes on after its closing quote", "''"),
            ("a: \"\\d+\"\n", 1, 4, "backslash", "single quotes"),
            ("a: b: c\n", 1, 5, "a second `: `", "quote"),
            ("a: b\n  c: d\n", 2, 3, "indentation", "alike"),
            ("a:\n  - b: c\n - d: e\n", 3, 2, "indentation", "alike"),
            ("a: - b\n", 1, 4, "no list item", "next line"),
            ("a: {b: -}\n", 1, 8, "alone in brackets", "'-'"),
            ("a: {{ .Values.x }}\n", 1, 5, "where a key must be", "placeholder"),
            ("{{ if .x }}\na: b\n{{ end }}\n", 1, 2, "", "placeholder"),
            ("[a]: b\n", 1, 1, "where a key must be", "quote"),
            ("a: \u{7}\n", 1, 4, "U+0007", "\\xNN"),
            ("a: \0\n", 1, 4, "U+0000", "\\xNN"),
        ] {
            let trouble = read(text).map(|d| d.root).expect_err(text);
            assert_eq!((trouble.spot.line, trouble.spot.column), (line, column), "{text:?}: {trouble}");
            assert!(trouble.text.contains(says), "{text:?}: {trouble}");
            assert!(trouble.hint.as_ref().is_some_and(|hint| hint.contains(hints)), "{text:?}: {:?}", trouble.hint);
        }
    }

    #[test]
    fn no_repetition_brings_it_down() {
        const PIECES: &str = "[|{|- |a: |? |-\n|[],|{a: |{[|&a |*a |!a |'|\"|'' |: |:|,|]|}|>\n|%|---\n|...\n|#|\n| |\t|\r|\0|x |x: y\n|\
                              a:\n |é|[? |[a: |\"a\\\n|'a\n|key: [\n|\\|!<|!!str |@|<<: |'a': b\n|%TAG ! x\n|a: >\n  b\n|a: &a b\n";
        // A worker thread's stack may be small: nothing here recurses deeper than DEPTH_MAX.
        let all = || {
            for piece in PIECES.split('|') {
                for start in ["", "[", "a: ", "a:\n  ", "\"", ">\n  "] {
                    let _ = read(&format!("{start}{}", piece.repeat(20_000)));
                }
            }
        };
        std::thread::Builder::new().stack_size(512 << 10).spawn(all).unwrap().join().unwrap();
    }

    #[test]
    fn no_mutation_brings_it_down_or_puts_a_spot_outside_the_text() {
        const SAMPLE: &str = "domain: é\ndescriptors:\n- key: a\n  value: \"b*\"  # c\n  rate_limit: &r {unit: hour, requests_per_unit: 0x10}\n\
                              - <<: *r\n  key: 'it''s'\n  metadata: {x: [1, ~], y: >-\n  }\n  descriptors: [\n  {key: c, rate_limit: *r}\n]\n- |\n  text\n\n";
        const PIECES: &[char] =
            &[' ', '\n', '\t', ':', '-', '[', ']', '{', '}', ',', '#', '"', '\'', '|', '>', '&', '*', '!', '?', '%', 'é', '\r', 'y'];
        let mut state = 7_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        for _ in 0..5_000 {
            let mut chars: Vec<char> = SAMPLE.chars().collect();
            for _ in 0..=random(4) {
                let at = random(chars.len());
                match random(3) {
                    0 => chars.insert(at, PIECES[random(PIECES.len())]),
                    1 => chars[at] = PIECES[random(PIECES.len())],
                    _ => drop(chars.drain(at..(at + 1 + random(4)).min(chars.len()))),
                }
            }
            let text: String = chars.into_iter().collect();
            let mut spots = Vec::new();
            match read(&text) {
                Ok(document) => {
                    spots.extend(document.notes.iter().map(|note| note.spot));
                    document.root.iter().for_each(|root| collect_spots(root, &mut spots));
                }
                Err(trouble) => spots.push(trouble.spot),
            }
            let lines: Vec<&str> = text.split('\n').flat_map(|line| line.split('\r')).collect();
            for spot in spots {
                assert!(spot.line >= 1 && spot.column >= 1 && spot.width >= 1, "{spot:?} in {text:?}");
                assert!(spot.line as usize <= lines.len(), "{spot:?} in {text:?}");
                assert!((spot.column + spot.width) as usize <= text.chars().count() + 2, "{spot:?} in {text:?}");
            }
        }
    }

    fn scalar_of(written: &str) -> Scalar {
        let root = read(&format!("v: {written}\n")).expect(written).root.unwrap();
        let Kind::Scalar(scalar) = &value_at(&root, 0).kind else { panic!("{written} is no scalar") };
        scalar.clone()
    }

    fn value_of(written: &str) -> Value {
        scalar_of(written).value()
    }

    fn value_at(node: &Node, index: usize) -> &Node {
        match &node.kind {
            Kind::Map(pairs) => &pairs[index].1,
            Kind::List(items) => &items[index],
            Kind::Scalar(_) => panic!("a scalar has no values"),
        }
    }

    fn shape_of(text: &str) -> String {
        shape(&read(text).expect(text).root.unwrap())
    }

    fn shape(node: &Node) -> String {
        match &node.kind {
            Kind::Scalar(scalar) if scalar.value() == Value::Null => "~".into(),
            Kind::Scalar(scalar) => scalar.text.clone(),
            Kind::List(items) => format!("[{}]", items.iter().map(shape).collect::<Vec<_>>().join(", ")),
            Kind::Map(pairs) => {
                let pairs: Vec<String> = pairs.iter().map(|(key, value)| format!("{}: {}", shape(key), shape(value))).collect();
                format!("{{{}}}", pairs.join(", "))
            }
        }
    }

    fn collect_spots(node: &Node, spots: &mut Vec<Spot>) {
        spots.push(node.spot);
        match &node.kind {
            Kind::Scalar(_) => {}
            Kind::List(items) => items.iter().for_each(|item| collect_spots(item, spots)),
            Kind::Map(pairs) => pairs.iter().for_each(|(key, value)| {
                collect_spots(key, spots);
                collect_spots(value, spots);
            }),
        }
    }

    // What gopkg.in/yaml.v2 v2.4.0 made of `v: <text>`, by a program that ran it (Go 1.26).

    const NULLS: &str = "\
        NULL Null null ~";

    const TRUE: &str = "\
        ON On TRUE True Y YES Yes on true y yes";

    const FALSE: &str = "\
        FALSE False N NO No OFF Off false n no off";

    #[rustfmt::skip]
    #[expect(clippy::unreadable_literal, reason = "a table, printed by a program")]
    const INTS: &[(&str, i64)] = &[
        ("+0", 0), ("+00", 0), ("+0000", 0), ("+007", 7), ("+01", 1), ("+010", 8), ("+017", 15), ("+07", 7), ("+0777", 511),
        ("+0777777777777777777777", i64::MAX), ("+0B11", 3), ("+0O17", 15), ("+0X1f", 31), ("+0_", 0), ("+0_0", 0), ("+0_1", 1),
        ("+0b1", 1), ("+0b11", 3), ("+0b1_0", 2), ("+0b_1", 1), ("+0o17", 15), ("+0o_1", 1), ("+0x1", 1), ("+0x1F", 31), ("+0x1_0", 16),
        ("+0x7fffffffffffffff", i64::MAX), ("+0x_1", 1), ("+1", 1), ("+12", 12), ("+123", 123),
        ("+123456789012345678", 123456789012345678), ("+1_", 1), ("+1_000", 1000), ("+1_2_3", 123), ("+1__0", 10),
        ("+2147483648", 2147483648), ("+4294967295", 4294967295), ("+4294967296", 4294967296), ("+7", 7), ("+8", 8), ("+9", 9),
        ("+9007199254740993", 9007199254740993), ("+9223372036854775807", i64::MAX), ("-0", 0), ("-00", 0), ("-0000", 0), ("-007", -7),
        ("-01", -1), ("-010", -8), ("-017", -15), ("-07", -7), ("-0777", -511), ("-0777777777777777777777", -9223372036854775807),
        ("-0B11", -3), ("-0O17", -15), ("-0X1f", -31), ("-0_", 0), ("-0_0", 0), ("-0_1", -1), ("-0b1", -1),
        ("-0b1000000000000000000000000000000000000000000000000000000000000000", i64::MIN), ("-0b11", -3), ("-0b1_0", -2), ("-0b_1", -1),
        ("-0o17", -15), ("-0o_1", -1), ("-0x1", -1), ("-0x1F", -31), ("-0x1_0", -16), ("-0x7fffffffffffffff", -9223372036854775807),
        ("-0x8000000000000000", i64::MIN), ("-0x_1", -1), ("-1", -1), ("-12", -12), ("-123", -123),
        ("-123456789012345678", -123456789012345678), ("-1_", -1), ("-1_000", -1000), ("-1_2_3", -123), ("-1__0", -10),
        ("-2147483648", -2147483648), ("-4294967295", -4294967295), ("-4294967296", -4294967296), ("-7", -7), ("-8", -8), ("-9", -9),
        ("-9007199254740993", -9007199254740993), ("-9223372036854775807", -9223372036854775807), ("-9223372036854775808", i64::MIN),
        ("0", 0), ("00", 0), ("0000", 0), ("007", 7), ("01", 1), ("010", 8), ("017", 15), ("07", 7), ("0777", 511),
        ("0777777777777777777777", i64::MAX), ("0B11", 3), ("0O17", 15), ("0X1f", 31), ("0_", 0), ("0_0", 0), ("0_1", 1), ("0b+1", 1),
        ("0b-1", -1), ("0b1", 1), ("0b11", 3), ("0b1_0", 2), ("0b_1", 1), ("0o17", 15), ("0o_1", 1), ("0x1", 1), ("0x1F", 31),
        ("0x1_0", 16), ("0x7fffffffffffffff", i64::MAX), ("0x_1", 1), ("1", 1), ("12", 12), ("123", 123),
        ("123456789012345678", 123456789012345678), ("1_", 1), ("1_000", 1000), ("1_2_3", 123), ("1__0", 10), ("2147483648", 2147483648),
        ("4294967295", 4294967295), ("4294967296", 4294967296), ("7", 7), ("8", 8), ("9", 9), ("9007199254740993", 9007199254740993),
        ("9223372036854775807", i64::MAX),
    ];

    #[rustfmt::skip]
    #[expect(clippy::unreadable_literal, reason = "a table, printed by a program")]
    const BIG_INTS: &[(&str, u64)] = &[
        ("01777777777777777777777", 18446744073709551615),
        ("0b1000000000000000000000000000000000000000000000000000000000000000", 9223372036854775808),
        ("0b1111111111111111111111111111111111111111111111111111111111111111", 18446744073709551615),
        ("0x8000000000000000", 9223372036854775808), ("0xffffffffffffffff", 18446744073709551615),
        ("18446744073709551615", 18446744073709551615), ("9223372036854775808", 9223372036854775808),
    ];

    #[rustfmt::skip]
    #[expect(clippy::unreadable_literal, reason = "a table, printed by a program")]
    const FLOATS: &[(&str, f64)] = &[
        ("+.5", 0.5), ("+.5_", 0.5), ("+.5_0", 0.5), ("+.5__0", 0.5), ("+.5e-1_0", 5e-11), ("+.5e1_", 5.0), ("+.5e1_0", 5000000000.0),
        ("+.5e3", 500.0), ("+.5e_1", 5.0), ("+.INF", f64::INFINITY), ("+.Inf", f64::INFINITY), ("+._5", 0.5), ("+.inf", f64::INFINITY),
        ("+0.1", 0.1), ("+00.5", 0.5), ("+010.5", 10.5), ("+01777777777777777777777", 1.7777777777777778e21), ("+018", 18.0),
        ("+02000000000000000000000", 2e21), ("+08", 8.0), ("+08.5", 8.5), ("+09", 9.0), ("+0_8", 8.0), ("+0e5", 0.0),
        ("+0e99999999999999999999", 0.0), ("+1.", 1.0), ("+1.5", 1.5), ("+1.5_0", 1.5), ("+1.5e3", 1500.0),
        ("+1.7976931348623157e308", 1.7976931348623157e308), ("+1.e3", 1000.0), ("+18446744073709551615", 1.8446744073709552e19),
        ("+18446744073709551616", 1.8446744073709552e19), ("+1E3", 1000.0), ("+1_0.5", 10.5), ("+1_0e1_0", 100000000000.0),
        ("+1e+3", 1000.0), ("+1e-3", 0.001), ("+1e-400", 0.0), ("+1e-99999999999999999999", 0.0), ("+1e3", 1000.0), ("+1e308", 1e308),
        ("+2.2250738585072011e-308", 2.225073858507201e-308), ("+3.25", 3.25), ("+4.9e-324", 5e-324),
        ("+9223372036854775808", 9.223372036854776e18), ("+99999999999999999999", 1e20), ("-.5", -0.5), ("-.5_", -0.5), ("-.5_0", -0.5),
        ("-.5__0", -0.5), ("-.5e-1_0", -5e-11), ("-.5e1_", -5.0), ("-.5e1_0", -5000000000.0), ("-.5e3", -500.0), ("-.5e_1", -5.0),
        ("-.INF", f64::NEG_INFINITY), ("-.Inf", f64::NEG_INFINITY), ("-._5", -0.5), ("-.inf", f64::NEG_INFINITY), ("-0.1", -0.1),
        ("-00.5", -0.5), ("-010.5", -10.5), ("-01777777777777777777777", -1.7777777777777778e21), ("-018", -18.0),
        ("-02000000000000000000000", -2e21), ("-08", -8.0), ("-08.5", -8.5), ("-09", -9.0), ("-0_8", -8.0), ("-0e5", -0.0),
        ("-0e99999999999999999999", -0.0), ("-1.", -1.0), ("-1.5", -1.5), ("-1.5_0", -1.5), ("-1.5e3", -1500.0),
        ("-1.7976931348623157e308", -1.7976931348623157e308), ("-1.e3", -1000.0), ("-18446744073709551615", -1.8446744073709552e19),
        ("-18446744073709551616", -1.8446744073709552e19), ("-1E3", -1000.0), ("-1_0.5", -10.5), ("-1_0e1_0", -100000000000.0),
        ("-1e+3", -1000.0), ("-1e-3", -0.001), ("-1e-400", -0.0), ("-1e-99999999999999999999", -0.0), ("-1e3", -1000.0),
        ("-1e308", -1e308), ("-2.2250738585072011e-308", -2.225073858507201e-308), ("-3.25", -3.25), ("-4.9e-324", -5e-324),
        ("-99999999999999999999", -1e20), (".5", 0.5), (".5_0", 0.5), (".5e-1_0", 5e-11), (".5e1_0", 5000000000.0), (".5e3", 500.0),
        (".INF", f64::INFINITY), (".Inf", f64::INFINITY), (".NAN", f64::NAN), (".NaN", f64::NAN), (".inf", f64::INFINITY),
        (".nan", f64::NAN), ("0.1", 0.1), ("00.5", 0.5), ("010.5", 10.5), ("018", 18.0), ("02000000000000000000000", 2e21), ("08", 8.0),
        ("08.5", 8.5), ("09", 9.0), ("0_8", 8.0), ("0e5", 0.0), ("0e99999999999999999999", 0.0), ("1.", 1.0), ("1.5", 1.5),
        ("1.5_0", 1.5), ("1.5e3", 1500.0), ("1.7976931348623157e308", 1.7976931348623157e308), ("1.e3", 1000.0),
        ("18446744073709551616", 1.8446744073709552e19), ("1E3", 1000.0), ("1_0.5", 10.5), ("1_0e1_0", 100000000000.0), ("1e+3", 1000.0),
        ("1e-3", 0.001), ("1e-400", 0.0), ("1e-99999999999999999999", 0.0), ("1e3", 1000.0), ("1e308", 1e308),
        ("2.2250738585072011e-308", 2.225073858507201e-308), ("3.25", 3.25), ("4.9e-324", 5e-324), ("99999999999999999999", 1e20),
    ];

    const TEXTS: &str = "\
        + ++1 +-1 +. +.0x1 +.NAN +.NaN +.Nan +.e5 +.iNF +.infinity +.nan +0.1e +0b +0b+1 +0b--1 +0b-1 \
        +0b1000000000000000000000000000000000000000000000000000000000000000 \
        +0b10000000000000000000000000000000000000000000000000000000000000000 +0b101.1 \
        +0b1111111111111111111111111111111111111111111111111111111111111111 +0b2 +0o +0o-1 +0o8 +0x +0x+1 +0x-1 +0x1.0 +0x1.8p1 \
        +0x10000000000000000 +0x1p4 +0x8000000000000000 +0xffffffffffffffff +0xg +0٣ +1,000 +1.2.3 +1.7976931348623159e308 +1/2 \
        +10m +12:30 +12:30:45 +190:20:30 +1:30 +1e +1e+ +1e1.5 +1e309 +1e400 +1e5x +1e99999999999999999999 +1k \
        +2001-12-14T21:59:43Z +2001-12-14t21:59:43.10-05:00 +2026-01-01 +2026-1-1 +20:30 +5% +5s +Inf +Infinity +NaN +_ +inf \
        +infinity +nan +٣ -+1 -- -. -.0x1 -.NAN -.NaN -.Nan -.e5 -.iNF -.infinity -.nan -0.1e -0b -0b+1 -0b--1 -0b-1 \
        -0b10000000000000000000000000000000000000000000000000000000000000000 -0b101.1 \
        -0b1111111111111111111111111111111111111111111111111111111111111111 -0b2 -0o -0o-1 -0o8 -0x -0x+1 -0x-1 -0x1.0 -0x1.8p1 \
        -0x10000000000000000 -0x1p4 -0xffffffffffffffff -0xg -0٣ -1,000 -1.2.3 -1.7976931348623159e308 -1/2 -10m -12:30 \
        -12:30:45 -190:20:30 -1:30 -1e -1e+ -1e1.5 -1e309 -1e400 -1e5x -1e99999999999999999999 -1k -2001-12-14T21:59:43Z \
        -2001-12-14t21:59:43.10-05:00 -2026-01-01 -2026-1-1 -20:30 -5% -5s -Inf -Infinity -NaN -_ -a -inf -infinity -nan -٣ . \
        .0x1 .5_ .5__0 .5e1_ .5e_1 .Nan ._5 .e5 .iNF .infinity 0.1e 0b 0b--1 \
        0b10000000000000000000000000000000000000000000000000000000000000000 0b101.1 0b2 0o 0o-1 0o8 0x 0x+1 0x-1 0x1.0 0x1.8p1 \
        0x10000000000000000 0x1p4 0xg 0٣ 1,000 1.2.3 1.7976931348623159e308 1/2 10m 12:30 12:30:45 190:20:30 1:30 1e 1e+ 1e1.5 \
        1e309 1e400 1e5x 1e99999999999999999999 1k 2001-12-14T21:59:43Z 2001-12-14t21:59:43.10-05:00 2026-01-01 2026-1-1 20:30 \
        5% 5s :a < << = ?a A B F FALS Fals Inf Infinity NIL NONE NUL NaN Nil None Nul O OF ON1 Of On1 T TRU Tru Y- YE YES! Ye \
        Yes! ZERO Zero _ a a,b a::b a:b a[b a] a} b f fals http://x:80/a?b=c inf infinity nULL nan nil none nul o oN of on1 t \
        tRUE tru y- yEs ye yes! zero ~A ~a ~~ é ٣ 日本";
}
