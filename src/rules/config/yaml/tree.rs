//! Builds the tree from the parser's events: anchors, aliases, bounds on nodes and depth.
//!
//! The builder has its own stack, so that no file makes it recurse deeper than [`DEPTH_MAX`].

use std::collections::HashMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span};

use crate::rules::config::yaml::input::{BoundedInput, Introduced, KeptTokens};
use crate::rules::config::yaml::lines::{Lines, location};
use crate::rules::config::yaml::memory::{TreeMemory, too_large};
use crate::rules::config::yaml::merge;
use crate::rules::config::yaml::node::{
    DEPTH_MAX, Diagnostic, Document, ITEMS_MAX, Kind, Location, Node, Scalar,
};

/// Files with fewer nodes, or fewer nodes from aliases, may have any share of aliases, as in
/// yaml.v2.
const NODES_FREE: usize = 1_000;
const NODES_ALIASED_FREE: usize = 100;

/// Covers the mistakes that are made most, and the two constructs that only yaml.v2 accepts.
const SYNTAX_HINT: &str = "indent with spaces, also inside brackets and quotes; write `: ` after a key, and \
                           quote a text that contains it or starts with a special character";

#[derive(Default)]
struct Builder<'t> {
    lines: Lines<'t>,
    open: Vec<Open>,
    root: Option<Node>,
    /// By anchor number: what its aliases expand to, sharing lists and maps with the tree.
    kept: HashMap<usize, (Node, Size)>,
    /// Nodes so far, with aliases expanded.
    nodes: usize,
    nodes_max: usize,
    memory: TreeMemory,
    /// Nodes so far that come from aliases.
    nodes_aliased: usize,
    last_alias: Location,
    warnings: Vec<Diagnostic>,
}

/// A list or map whose end was not read yet.
struct Open {
    location: Location,
    anchor: usize,
    /// In brackets, directly or further out.
    in_brackets: bool,
    content: Content,
    /// So far, itself included.
    size: Size,
}

enum Content {
    List(Vec<Node>),
    Map { pairs: Vec<(Node, Node)>, key: Option<Node> },
}

/// The size of a node with aliases expanded. A map with merge keys may be smaller.
#[derive(Clone, Copy)]
struct Size {
    nodes: usize,
    depth: usize,
}

/// Parses the first document of a text, if it has at most `nodes_max` nodes.
///
/// # Errors
/// The first syntax error: what follows it cannot be interpreted. Or a bound that is exceeded.
pub(super) fn build(text: &str, nodes_max: usize) -> Result<Document, Diagnostic> {
    let introduced = Introduced::new(text);
    let kept = KeptTokens::default();
    let input = BoundedInput::new(introduced.text(text), kept.clone());
    let mut parser = Parser::new(input);
    let mut builder = Builder { lines: Lines::new(text), nodes_max, ..Builder::default() };
    let mut last = Location::new(1, 1, 1);
    loop {
        kept.begin(builder.memory.tokens_max());
        let event = parser.next_event();
        if kept.is_exceeded() {
            return Err(too_large(last));
        }
        builder.memory.add_tokens(kept.count());
        let Some(event) = event else { break };
        let (event, span) = event
            .map_err(|error| syntax_error(text, introduced.mark(*error.marker()), error.info()))?;
        if event == Event::DocumentEnd {
            match parser.next_event() {
                None | Some(Ok((Event::StreamEnd, _))) => {}
                Some(Ok((_, span))) => builder.warnings.push(Diagnostic::new(
                    location(introduced.mark(span.start)),
                    "a second document starts here and is not read",
                )),
                // A stray word, or the first line is indented and the second is not.
                Some(Err(error)) => builder.warnings.push(Diagnostic::new(
                    location(introduced.mark(*error.marker())),
                    "the document ended above and nothing is read from here on: is its first line indented?",
                )),
            }
            break;
        }
        let span = introduced.span(span);
        last = location(span.start);
        builder.take(event, span)?;
    }
    let mut warnings = builder.warnings;
    warnings.sort_by_key(|warning| (warning.location.line, warning.location.column));
    Ok(Document { root: builder.root, warnings })
}

impl Builder<'_> {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), Diagnostic> {
        // The parser reports an end at the next token.
        if !matches!(event, Event::SequenceEnd | Event::MappingEnd)
            && !self.in_brackets()
            && let Some(tab) = self.lines.tab_before(span.start)
        {
            let text = "this line is indented with a tab";
            return Err(Diagnostic::new(tab, text).hint("indent with spaces"));
        }
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let location = self.lines.location_of(span, style, &text);
                self.count(1, location)?;
                let text = self.memory.text(&text);
                let scalar = Scalar::new(text, style, tag.as_deref(), location)?;
                let kind = Kind::Scalar(scalar);
                self.put(Node { location, kind }, Size::SCALAR, anchor)
            }
            Event::SequenceStart(anchor, _) => self.begin(span, anchor, Content::List(Vec::new())),
            Event::MappingStart(anchor, _) => {
                self.begin(span, anchor, Content::Map { pairs: Vec::new(), key: None })
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => self.expand(span, anchor),
            _ => Ok(()),
        }
    }

    fn begin(&mut self, span: Span, anchor: usize, content: Content) -> Result<(), Diagnostic> {
        let location = location(span.start);
        self.count(1, location)?;
        self.memory.add_shared(location)?;
        if self.open.len() >= DEPTH_MAX {
            return Err(Diagnostic::new(
                location,
                format!("lists and maps are nested more than {DEPTH_MAX} deep"),
            ));
        }
        let in_brackets = self.in_brackets() || self.lines.has_bracket(span);
        self.open.push(Open { location, anchor, in_brackets, content, size: Size::EMPTY });
        Ok(())
    }

    fn end(&mut self) -> Result<(), Diagnostic> {
        let Some(Open { mut location, anchor, content, size, .. }) = self.open.pop() else {
            return Ok(());
        };
        let kind = match content {
            Content::List(items) => Kind::List(items.into()),
            Content::Map { pairs, .. } => {
                if let Some((key, _)) = pairs.first()
                    && (key.location.line, key.location.column) == (location.line, location.column)
                {
                    location = key.location;
                }
                let written = pairs.len();
                let pairs = merge::apply(pairs, &mut self.warnings)?;
                // Merged pairs are copies.
                let merged = pairs.len().saturating_sub(written);
                self.memory.add_nodes(2 * merged, location)?;
                Kind::Map(pairs.into())
            }
        };
        self.put(Node { location, kind }, size, anchor)
    }

    fn expand(&mut self, span: Span, anchor: usize) -> Result<(), Diagnostic> {
        let location = self.lines.location_of(span, ScalarStyle::Plain, "");
        let Some((kept, size)) = self.kept.get(&anchor) else {
            return Err(Diagnostic::new(
                location,
                "this alias is inside the value of its own anchor",
            ));
        };
        let kind = kept.kind.clone();
        let size = *size;
        self.nodes_aliased += size.nodes;
        self.last_alias = location;
        // The alias itself is a node of the text, as in yaml.v2.
        self.count(1 + size.nodes, location)?;
        if self.open.len() + size.depth > DEPTH_MAX {
            let text = format!(
                "with this alias expanded lists and maps are nested more than {DEPTH_MAX} deep"
            );
            return Err(Diagnostic::new(location, text));
        }
        self.put(Node { location, kind }, size, 0)
    }

    /// Adds a finished node to the list or map around it.
    fn put(&mut self, mut node: Node, size: Size, anchor: usize) -> Result<(), Diagnostic> {
        if node.location.width == 0 {
            // An empty value.
            node.location = match self.open.last() {
                Some(Open { content: Content::Map { key: Some(key), .. }, .. }) => key.location,
                _ => Location { width: 1, ..node.location },
            };
        }
        if anchor != 0 {
            self.kept.insert(anchor, (node.clone(), size));
        }
        self.memory.add_nodes(1, node.location)?;
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        open.size.add(size);
        if open.content.len() >= ITEMS_MAX {
            let text = format!("a list or a map has more than {ITEMS_MAX} items (rules_items_max)");
            return Err(Diagnostic::new(node.location, text));
        }
        match &mut open.content {
            Content::List(items) => items.push(node),
            Content::Map { pairs, key } => match key.take() {
                Some(key) => pairs.push((key, node)),
                None if matches!(node.kind, Kind::Scalar(_)) => *key = Some(node),
                None => {
                    return Err(Diagnostic::new(node.location, "a list or a map is used as a key")
                        .hint("quote a text that starts with `{` or `[`; fill in placeholders such as {{ .x }} beforehand"));
                }
            },
        }
        Ok(())
    }

    fn count(&mut self, nodes: usize, location: Location) -> Result<(), Diagnostic> {
        self.nodes += nodes;
        let is_large = self.nodes > NODES_FREE && self.nodes_aliased > NODES_ALIASED_FREE;
        if is_large && self.nodes_aliased * 100 > self.nodes * aliased_percent_max(self.nodes) {
            let percent = self.nodes_aliased * 100 / self.nodes;
            let text = format!(
                "document contains excessive aliasing: {percent} % of {} nodes come from aliases such as this one",
                self.nodes
            );
            return Err(Diagnostic::new(self.last_alias, text)
                .hint("write out what the aliases of aliases expand to"));
        }
        let nodes_max = self.nodes_max;
        if self.nodes > nodes_max {
            let text = format!("the text has more than {nodes_max} nodes up to here");
            return Err(Diagnostic::new(location, text));
        }
        Ok(())
    }

    fn in_brackets(&self) -> bool {
        self.open.last().is_some_and(|open| open.in_brackets)
    }
}

impl Content {
    fn len(&self) -> usize {
        match self {
            Self::List(items) => items.len(),
            Self::Map { pairs, .. } => pairs.len(),
        }
    }
}

impl Size {
    const SCALAR: Self = Self { nodes: 1, depth: 0 };
    /// An empty list or map.
    const EMPTY: Self = Self { nodes: 1, depth: 1 };

    fn add(&mut self, below: Self) {
        *self = Self { nodes: self.nodes + below.nodes, depth: self.depth.max(below.depth + 1) };
    }
}

/// The percentage of `nodes` that may come from aliases, by yaml.v2's `allowedAliasRatio`: 99 of a
/// file of ordinary size, 10 of a very large one, linear in between.
fn aliased_percent_max(nodes: usize) -> usize {
    const LOW: usize = 400_000;
    const HIGH: usize = 4_000_000;
    99 - 89 * (nodes.clamp(LOW, HIGH) - LOW) / (HIGH - LOW)
}

/// The parser reports the end of the text on the line after it; editors do not show that line, so
/// the end of the last line with text is reported.
fn syntax_error(text: &str, mark: Marker, info: &str) -> Diagnostic {
    let mut at = location(mark);
    let end = text.trim_end();
    let lines = end.matches('\n').count() + 1;
    if at.line as usize > lines {
        let last = end.rsplit('\n').next().unwrap_or_default();
        at = Location::new(lines, last.chars().count().max(1), 1);
    }
    let text = info.strip_prefix("while ").unwrap_or(info);
    Diagnostic::new(at, text).hint(SYNTAX_HINT)
}

#[cfg(test)]
mod tests;
