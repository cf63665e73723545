//! Rules of a git revision, read by the `git` program: nothing is checked out.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::base::environment::Environment;
use crate::rules::config::Source;
use crate::rules::source::files::{FILES_MAX, has_cases, read_text_from};
use crate::rules::source::settings::Reading;

/// A file of a revision.
struct File<'l> {
    object: &'l str,
    /// From the current folder.
    path: &'l str,
}

/// Reads `REV:PATH`: a file, or a folder as `serve` would read it. PATH begins at the current
/// folder.
///
/// # Errors
/// There is no such revision or path, or too many files.
pub(super) fn read(
    revision: &str,
    reading: &Reading,
    environment: &Environment,
) -> anyhow::Result<Vec<Source>> {
    let shown = format!("git:{revision}");
    let Some((commit, path)) = revision.split_once(':') else {
        bail!("{shown}: write it as git:REV:PATH, such as git:HEAD~1:config");
    };
    let path = path.trim_end_matches('/');
    let path = if path.is_empty() { "." } else { path };
    let directory = reading.files(Some(path.into()), environment).map_err(anyhow::Error::msg)?;
    // Neither a revision nor a path is read as an option.
    let listed = run(&["ls-tree", "-r", "-z", "--", commit, path])?;
    let listed = String::from_utf8_lossy(&listed);
    let mut files: Vec<File<'_>> = listed.split('\0').filter_map(file).collect();
    files.retain(|file| {
        !directory.ignores(below(file.path, path)) && !has_cases(Path::new(file.path))
    });
    if files.is_empty() {
        bail!("{shown}: no files");
    }
    if files.len() > FILES_MAX {
        bail!("{shown}: more than {FILES_MAX} files; is it the right folder?");
    }
    let sources = files.iter().map(|file| {
        let text = run(&["cat-file", "blob", file.object])?;
        let path_shown = format!("git:{commit}:{}", file.path);
        let below = below(file.path, path);
        let name = match below.to_str() {
            None | Some("") => {
                Path::new(file.path).file_name().unwrap_or_default().to_string_lossy()
            }
            Some(below) => below.replace('/', ".").into(),
        };
        Ok(Source {
            name: name.into(),
            text: read_text_from(&*text, &path_shown)?.into(),
            path: path_shown.into(),
        })
    });
    sources.collect()
}

/// A line of `git ls-tree`: mode, type and object, then a tab and the path.
fn file(line: &str) -> Option<File<'_>> {
    let (about, path) = line.split_once('\t')?;
    let mut about = about.split(' ');
    // Links and submodules have other modes.
    let mode = about.next()?;
    let object = about.nth(1)?;
    mode.starts_with("100").then_some(File { object, path })
}

/// The part of a path below a folder; empty for the path itself.
fn below<'p>(file: &'p str, folder: &str) -> &'p Path {
    let file = Path::new(file);
    file.strip_prefix(folder).unwrap_or(file)
}

fn run(arguments: &[&str]) -> anyhow::Result<Vec<u8>> {
    let command = format!("git {}", arguments.join(" "));
    let ran = Command::new("git").args(arguments).output();
    let ran = ran.with_context(|| format!("run {command}"))?;
    if !ran.status.success() {
        let why = String::from_utf8_lossy(&ran.stderr);
        bail!("{command}: {}", why.trim());
    }
    Ok(ran.stdout)
}
