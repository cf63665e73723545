//! What is written in a file that users apply, for a test to use word by word. It reads no YAML, it
//! cuts it: these files are ours.

use std::fs;
use std::path::Path;

/// A file of `deploy/`.
pub(crate) struct Sample(String);

impl Sample {
    /// Reads it.
    pub(crate) fn read(file: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(file);
        Self(
            fs::read_to_string(&path)
                .unwrap_or_else(|error| panic!("read {}: {error}", path.display())),
        )
    }

    /// What is indented below the first line that is `key`, behind the first one that is `mark`.
    pub(crate) fn below(&self, mark: &str, key: &str) -> String {
        let mut lines = self
            .0
            .lines()
            .skip_while(|line| plain(line) != mark)
            .skip_while(|line| plain(line) != key);
        let head = lines.next().unwrap_or_else(|| panic!("there is no `{key}` behind `{mark}`"));
        let depth = indent(head);
        // The items of a list may stand as deep as what they belong to.
        let belongs = |line: &&str| {
            indent(line) > depth || (indent(line) == depth && line.trim_start().starts_with("- "))
        };
        let block: Vec<&str> = lines.take_while(belongs).collect();
        let depth = block.first().map_or(0, |line| indent(line));
        block.iter().flat_map(|line| [&line[depth..], "\n"]).collect()
    }

    /// The environment of the container whose command is this.
    pub(crate) fn environment(&self, command: &str) -> Vec<(String, String)> {
        let text = self.below(command, "env:");
        let lines: Vec<&str> = text.lines().map(plain).collect();
        let pairs = lines.chunks_exact(2).map(|pair| {
            let name = pair[0].strip_prefix("name: ").unwrap_or_else(|| panic!("a name: {pair:?}"));
            let value =
                pair[1].strip_prefix("value: ").unwrap_or_else(|| panic!("a value: {pair:?}"));
            (name.to_owned(), value.trim_matches('"').to_owned())
        });
        pairs.collect()
    }
}

/// A text with `depth` spaces before each line.
pub(crate) fn indented(text: &str, depth: usize) -> String {
    let spaces = " ".repeat(depth);
    text.lines().flat_map(|line| [&*spaces, line, "\n"]).collect()
}

/// A line without what says where it belongs.
fn plain(line: &str) -> &str {
    line.trim().trim_start_matches("- ")
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}
