//! Rules in Kubernetes manifests: the data of ConfigMaps.
//!
//! Data in block style (`shop.yaml: |`) is compiled with its lines where they are in the manifest,
//! so every position in a message is one in the manifest:
//!
//! ```text
//!  manifest                     what is compiled
//!  kind: ConfigMap
//!  data:
//!    shop.yaml: |
//!      domain: shop                 domain: shop
//!      descriptors: []              descriptors: []
//! ```
//! The lines of a quoted text are not lines of the manifest: their positions are those within the
//! data.

use crate::rules::config::Source;
use crate::rules::config::yaml::{self, Location, Node};

/// The rules of a manifest.
#[derive(Debug, Default)]
pub(super) struct Manifest {
    /// The rules of each ConfigMap that has some. ConfigMaps are mounted as separate folders.
    pub(super) config_maps: Vec<Vec<Source>>,
    /// Sources with positions of their own.
    pub(super) quoted: Vec<Quoted>,
    /// The name and text of each rules file of those ConfigMaps.
    texts: Vec<Vec<(String, String)>>,
}

/// A source whose lines are not lines of the file that it is in.
#[derive(Debug)]
pub(super) struct Quoted {
    /// The path of the source.
    pub(super) path: String,
    /// The file.
    pub(super) file: String,
    /// Where the source begins in the file.
    pub(super) location: Location,
}

/// Reads a file; `None` if it is no manifest.
pub(super) fn read(file: &Source) -> Option<Manifest> {
    let mut manifest = Manifest::default();
    let mut is_manifest = false;
    for (first, text) in documents(&file.text) {
        let has_line = |start: &str| text.lines().any(|line| line.starts_with(start));
        match yaml::read(text) {
            Ok(document) => {
                let Some(root) = document.root else { continue };
                is_manifest |= field(&root, "apiVersion").is_some();
                for map in config_maps(&root) {
                    manifest.add(file, map, first);
                }
            }
            Err(_) if has_line("kind: ConfigMap") => {
                is_manifest = true;
                // The compiler reports the error.
                manifest.config_maps.push(vec![Source {
                    text: ("\n".repeat(first) + text).into(),
                    ..file.clone()
                }]);
            }
            Err(_) => is_manifest |= has_line("apiVersion:"),
        }
    }
    is_manifest.then_some(manifest)
}

impl Manifest {
    /// Adds the rules of a ConfigMap, unless they are those of an earlier one: a hook of a chart
    /// has a copy. Its document begins behind `first` lines.
    fn add(&mut self, file: &Source, map: &Node, first: usize) {
        let data = field(map, "data").and_then(Node::pairs).unwrap_or_default();
        let rules = data.iter().filter(|(_, value)| is_rules(value.text()));
        let texts = rules.clone().map(|(key, value)| (key.text().into(), value.text().into()));
        let texts: Vec<(String, String)> = texts.collect();
        if self.texts.contains(&texts) {
            return;
        }
        self.texts.push(texts);
        let mut sources = Vec::new();
        for (key, value) in rules {
            let location = Location {
                line: value.location.line + u32::try_from(first).unwrap_or(u32::MAX),
                ..value.location
            };
            let in_place = in_place(&file.text, location, value.text());
            let name = key.text();
            sources.push(match in_place {
                Some(text) => {
                    Source { name: name.into(), path: file.path.clone(), text: text.into() }
                }
                None => self.quoted(file, name, value.text(), location),
            });
        }
        if !sources.is_empty() {
            self.config_maps.push(sources);
        }
    }

    fn quoted(&mut self, file: &Source, name: &str, text: &str, location: Location) -> Source {
        let path = format!("{}:{} data.{name}", file.path, location.line);
        self.quoted.push(Quoted { path: path.clone(), file: file.path.to_string(), location });
        Source { name: name.into(), path: path.into(), text: text.into() }
    }
}

/// The documents of a file, and how many lines are before each.
fn documents(text: &str) -> Vec<(usize, &str)> {
    let mut documents = Vec::new();
    let mut start = 0;
    let mut first = 0;
    let mut end = 0;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        if is_document_marker(line, "---") && end > start {
            documents.push((first, &text[start..end]));
            (start, first) = (end, number);
        }
        end += line.len();
    }
    documents.push((first, &text[start..]));
    documents
}

fn is_document_marker(line: &str, marker: &str) -> bool {
    let rest = line.strip_prefix(marker);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
}

/// The ConfigMaps in a document: itself, or items of a list.
fn config_maps(root: &Node) -> Vec<&Node> {
    match field(root, "kind").map(Node::text) {
        Some("ConfigMap") => vec![root],
        Some("List" | "ConfigMapList") => {
            let items = field(root, "items").and_then(Node::items);
            items.unwrap_or_default().iter().flat_map(config_maps).collect()
        }
        _ => Vec::new(),
    }
}

/// Whether data of a ConfigMap is a rules file; it may be invalid.
fn is_rules(text: &str) -> bool {
    const KEYS: [&str; 2] = ["domain", "descriptors"];
    match yaml::read(text) {
        Ok(document) => {
            let root = document.root.as_ref();
            root.is_some_and(|root| KEYS.iter().any(|key| field(root, key).is_some()))
        }
        Err(_) => {
            text.lines().filter_map(|line| line.split_once(':')).any(|(key, _)| KEYS.contains(&key))
        }
    }
}

/// The text with its lines where they are in the file; `None` if they are no lines of the file.
fn in_place(file: &str, at: Location, text: &str) -> Option<String> {
    // It begins at the first line with text.
    let empty = text.lines().take_while(|line| line.is_empty()).count();
    let first = (at.line as usize).checked_sub(1 + empty)?;
    let indent = (at.column as usize).checked_sub(1)?;
    let mut placed = "\n".repeat(first);
    let mut lines = file.lines().skip(first);
    for line in text.lines() {
        let written = lines.next()?;
        let (margin, rest) = written.split_at_checked(indent).unwrap_or((written, ""));
        if rest != line || !margin.trim_start_matches(' ').is_empty() {
            return None;
        }
        // These have a meaning at the start of a line only.
        let is_marker = is_document_marker(line, "---") || is_document_marker(line, "...");
        placed += if is_marker { line } else { written };
        placed.push('\n');
    }
    Some(placed)
}

fn field<'n>(map: &'n Node, name: &str) -> Option<&'n Node> {
    let (_, value) = map.pairs()?.iter().find(|(key, _)| key.text() == name)?;
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: &str = "\
# a deployment comes first
apiVersion: apps/v1
kind: Deployment
---
apiVersion: v1
kind: ConfigMap
data:
  shop.yaml: |

    # rules of the shop
    domain: shop

    descriptors:
      - key: user
  envoy.yaml: |
    static_resources: {}
---
apiVersion: v1
kind: List
items:
  - apiVersion: v1
    kind: ConfigMap
    data:
      other.yaml: |-
        ---
        domain: other
        descriptors: [{key: a]
      quoted: \"domain: quoted\\ndescriptors: []\\n\"
";

    fn source(text: &str) -> Source {
        Source { name: "m.yaml".into(), path: "m.yaml".into(), text: text.into() }
    }

    #[test]
    fn blocks_of_config_maps_keep_their_lines() {
        let manifest = read(&source(BLOCKS)).expect("it is a manifest");
        let names = manifest.config_maps.iter().map(|sources| {
            let names: Vec<&str> = sources.iter().map(|source| &*source.name).collect();
            names
        });
        assert_eq!(names.collect::<Vec<_>>(), [vec!["shop.yaml"], vec!["other.yaml", "quoted"]]);
        let lines: Vec<&str> = BLOCKS.lines().collect();
        for (source, first) in [(&manifest.config_maps[0][0], 8), (&manifest.config_maps[1][0], 24)]
        {
            let placed: Vec<&str> = source.text.lines().collect();
            assert!(placed[..first].iter().all(|line| line.is_empty()));
            for (number, line) in placed.iter().enumerate().skip(first) {
                assert_eq!(line.trim(), lines[number].trim(), "{}", number + 1);
            }
            assert!(placed.len() > first, "{}", source.text);
        }
        assert_eq!(&*manifest.config_maps[1][1].path, "m.yaml:28 data.quoted");
        assert_eq!(manifest.quoted[0].location.line, 28);
    }

    #[test]
    fn copies_of_a_config_map_are_read_once() {
        let map = |name: &str, domain: &str| {
            format!(
                "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata:\n  shop.yaml: |\n    domain: {domain}\n"
            )
        };
        let text = [map("rules", "shop"), map("rules-check", "shop"), map("other", "other")];
        let manifest = read(&source(&text.concat())).expect("it is a manifest");
        assert_eq!(manifest.config_maps.len(), 2);
    }

    #[test]
    fn rules_files_are_no_manifests() {
        for text in ["domain: d\n", "domain: d\nmetadata: {kind: ConfigMap}\n", "domain: [\n", ""] {
            assert!(read(&source(text)).is_none(), "{text}");
        }
    }

    #[test]
    fn a_broken_config_map_is_compiled_for_its_error() {
        let text = "kind: Deployment\napiVersion: v1\n---\nkind: ConfigMap\ndata: [\n";
        let manifest = read(&source(text)).expect("it is a manifest");
        let expected = "\n\n---\nkind: ConfigMap\ndata: [\n";
        assert_eq!(&*manifest.config_maps[0][0].text, expected);
    }
}
