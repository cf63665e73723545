//! Command lines of earlier versions: the URL of a service among the words, entries as
//! `-e KEY=VALUE`, rules as `--rules DIR`.

use std::ffi::OsString;

/// Commands that were written in another way.
const CHANGED: &str = "counter explain replay rules simulate top trial";

/// The command line that does the same; `None` if this one is in today's form.
pub(super) fn rewritten(arguments: &[OsString]) -> Option<String> {
    let words: Option<Vec<&str>> = arguments.iter().map(|word| word.to_str()).collect();
    let words = words?;
    let command = *words.get(1)?;
    if !CHANGED.split(' ').any(|changed| changed == command) {
        return None;
    }
    let (mut kept, mut moved, mut url) = (Vec::new(), Vec::new(), None);
    let mut rest = words.iter().copied();
    while let Some(word) = rest.next() {
        let attached = word.split_once('=').filter(|_| word.starts_with("--"));
        let flag = attached.map_or(word, |(flag, _)| flag);
        let mut value = || attached.map(|(_, value)| value).or_else(|| rest.next());
        match (flag, command) {
            // Rules are before the domain.
            ("--rules", "explain") => kept.insert(2, value()?),
            ("-e" | "--entry" | "--descriptor", _)
            | ("--rules", "replay")
            | ("--domain", "simulate") => moved.push(value()?),
            ("--url", _) => kept.extend([flag, value()?]),
            ("--live", _) if attached.is_some() => {
                kept.push(flag);
                url = value();
            }
            _ if word.starts_with("http://") => url = Some(word),
            _ => kept.push(word),
        }
    }
    if moved.is_empty() && url.is_none() && !words.iter().any(|word| word.starts_with("--rules")) {
        return None;
    }
    kept.extend(moved);
    kept.extend(url.into_iter().flat_map(|url| ["--url", url]));
    Some(kept.into_iter().map(quoted).collect::<Vec<_>>().join(" "))
}

/// A word as shells read it.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "-_./:=,@%+".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An old command line, and the new one.
    const LINES: &str = "
tollgate counter get http://h:6070 shop -e user=42 => tollgate counter get shop user=42 --url http://h:6070
tollgate counter grant http://h shop --entry a=b --entry=c=d --hits 5 => tollgate counter grant shop --hits 5 a=b c=d --url http://h
tollgate explain --live http://h shop user=42 => tollgate explain --live shop user=42 --url http://h
tollgate explain --live=http://h shop -e user=* => tollgate explain --live shop 'user=*' --url http://h
tollgate explain --rules config shop user=42 => tollgate explain config shop user=42
tollgate explain shop -e user=42 => tollgate explain shop user=42
tollgate simulate config --domain shop -e user=ann --traffic double => tollgate simulate config --traffic double shop user=ann
tollgate replay --rules config access.log => tollgate replay access.log config
tollgate top --fleet http://h => tollgate top --fleet --url http://h
tollgate trial report http://h => tollgate trial report --url http://h
tollgate rules rollback http://h shop.yaml => tollgate rules rollback shop.yaml --url http://h";

    #[test]
    fn old_command_lines_are_rewritten_and_new_ones_are_not() {
        let words = |line: &str| -> Vec<OsString> { line.split(' ').map(OsString::from).collect() };
        for line in LINES.trim().lines() {
            let (old, new) = line.split_once(" => ").expect("old => new");
            assert_eq!(rewritten(&words(old)).as_deref(), Some(new), "{old}");
            assert_eq!(rewritten(&words(&new.replace('\'', ""))), None, "{new}");
        }
        for line in [
            "tollgate",
            "tollgate top",
            "tollgate explain shop url=http://h",
            "tollgate top --url=http://h --domain shop",
            "tollgate diff http://h config",
            "tollgate explain --json -",
            "tollgate top --url=http://h",
        ] {
            assert_eq!(rewritten(&words(line)), None, "{line}");
        }
    }
}
