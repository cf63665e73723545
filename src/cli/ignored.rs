//! Arguments that containers of envoyproxy/ratelimit have, and which it ignores: it reads its
//! environment alone.

use std::ffi::OsString;
use std::path::Path;

/// The names of the binary in the image.
const REFERENCE: &str = "ratelimit";
const NAMES: [&str; 2] = ["tollgate", REFERENCE];

/// Removes a path to this program from the front, and all arguments of `ratelimit` that are not
/// Tollgate's. Returns a warning about what was removed.
pub(super) fn remove_ignored(
    arguments: &mut Vec<OsString>,
    is_ours: impl FnOnce(&[OsString]) -> bool,
) -> Option<String> {
    let mut removed = Vec::new();
    if arguments.get(1).is_some_and(is_this_program) {
        removed.push(arguments.remove(1));
        arguments[0].clone_from(&removed[0]);
    }
    let is_reference = arguments.first().and_then(name) == Some(REFERENCE);
    if is_reference && arguments.len() > 1 && !is_ours(arguments) {
        removed.extend(arguments.drain(1..));
    }
    let removed: Vec<_> = removed.iter().map(|one| one.to_string_lossy()).collect();
    (!removed.is_empty()).then(|| {
        format!(
            "ignored arguments: {}; envoyproxy/ratelimit reads none, settings are environment variables",
            removed.join(" ")
        )
    })
}

/// Whether an argument is the program's own path, as where an image's entrypoint is not replaced
/// but gets the command of another image. A directory is one of rules.
fn is_this_program(argument: &OsString) -> bool {
    name(argument).is_some_and(|name| NAMES.contains(&name)) && !Path::new(argument).is_dir()
}

fn name(path: &OsString) -> Option<&str> {
    Path::new(path).file_name()?.to_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_reference_ignores_is_removed() {
        for (line, kept, removed) in [
            ("tollgate", "tollgate", None),
            ("tollgate /bin/ratelimit", "/bin/ratelimit", Some("/bin/ratelimit")),
            ("/bin/tollgate /x/tollgate check", "/x/tollgate check", Some("/x/tollgate")),
            (
                "tollgate /bin/ratelimit -config f",
                "/bin/ratelimit",
                Some("/bin/ratelimit -config f"),
            ),
            ("/bin/ratelimit -config f", "/bin/ratelimit", Some("-config f")),
            ("ratelimit check", "ratelimit check", None),
            ("tollgate -config f", "tollgate -config f", None),
            ("tollgate explian", "tollgate explian", None),
            // A directory of this crate.
            ("tollgate src", "tollgate src", None),
        ] {
            let mut arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let is_ours = |arguments: &[OsString]| arguments[1] == "check";
            let warning = remove_ignored(&mut arguments, is_ours);
            let text = warning.as_deref().and_then(|text| text.split(';').next());
            let text = text.and_then(|text| text.strip_prefix("ignored arguments: "));
            assert_eq!(text, removed, "{line}");
            assert_eq!(arguments.join(" ".as_ref()), kept, "{line}");
        }
    }
}
