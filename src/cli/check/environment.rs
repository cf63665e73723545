//! `tollgate check --environment`: what each variable of a deployment of envoyproxy/ratelimit means
//! to Tollgate, the rules files that would be read, and the commands that Redis must allow.
//!
//! Pages of docs say both: the tables of settings and of commands are those of the pages.

use std::io::Read as _;
use std::path::Path;
use std::process::ExitCode;
use std::{fs, io};

use anyhow::Context as _;
use clap::{Arg, Args as _, Command, FromArgMatches as _};

use crate::app::settings::{Resolved, Settings};
use crate::base::environment::Environment;
use crate::base::named_enum::named_enum;
use crate::base::text::Escaped;
use crate::cli::output::{CliError, counted, print};
use crate::cli::table::table;
use crate::rules::source::Origin;
use crate::store::settings::BackendChoice;

/// Names, the default there, here, what, and a test.
const SETTINGS: &[&[&str]] = include!(concat!(env!("OUT_DIR"), "/settings.rs"));
/// Names, and what for.
const COMMANDS: &[&[&str]] = include!(concat!(env!("OUT_DIR"), "/commands.rs"));

/// A variable that is a setting, or was meant as one.
struct Row {
    name: String,
    verdict: Verdict,
    note: String,
}

named_enum! {
    /// What a variable means here, the worst first.
    pub enum Verdict {
        /// The value cannot be used.
        Invalid = "invalid",
        /// It has no effect.
        Ignored = "ignored",
        /// It means something else.
        Different = "different",
        /// It means the same.
        Same = "same",
    }
}

/// Prints what becomes of the environment: that of this process, or that of a file with a variable
/// a line, as `env` prints it; `-` is stdin.
///
/// # Errors
/// A setting is invalid, so `serve` would not start.
pub(super) fn run(file: Option<&Path>, own: &Environment) -> Result<ExitCode, CliError> {
    let variables = match file {
        None => own.variables().to_vec(),
        Some(file) => read(file)?,
    };
    let (mut rows, valid) = settings(&variables);
    let environment = Environment::new(variables, []);
    let resolved = valid.map(|settings| settings.resolve(None, &environment));
    let mut text = String::new();
    match &resolved {
        Some(Ok(resolved)) => warn(&mut rows, &resolved.warnings),
        Some(Err(error)) => rows.push(Row {
            name: "together".to_owned(),
            verdict: Verdict::Invalid,
            note: error.clone(),
        }),
        None => {}
    }
    rows.sort_by(|one, other| {
        (one.verdict as u8, &one.name).cmp(&(other.verdict as u8, &other.name))
    });
    let cells = rows.iter().map(|row| {
        let note = Escaped(&row.note).to_string();
        vec![row.verdict.name().to_owned(), row.name.clone(), note]
    });
    text += &table(3, &[], cells);
    if rows.is_empty() {
        text += "no setting is in the environment\n";
    }
    if let Some(Ok(resolved)) = &resolved {
        text += &files(resolved);
        text += &commands(resolved, &environment);
    }
    print(&text);
    let invalid = rows.iter().filter(|row| row.verdict == Verdict::Invalid).count();
    if invalid > 0 {
        let invalid = counted(invalid, "setting");
        return Err(CliError::Config(format!("{invalid} invalid: serve would not start")));
    }
    Ok(ExitCode::SUCCESS)
}

/// The variables of a file. Lines without `=` belong to the value before them.
fn read(file: &Path) -> anyhow::Result<Vec<(String, String)>> {
    let mut text = String::new();
    if file == Path::new("-") {
        io::stdin().read_to_string(&mut text).context("read stdin")?;
    } else {
        let read = fs::read_to_string(file);
        text = read.with_context(|| format!("read {}", file.display()))?;
    }
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let variables = lines.filter_map(|line| line.split_once('='));
    Ok(variables.map(|(name, value)| (name.trim().to_owned(), value.to_owned())).collect())
}

/// A row for each setting, and what they are together, if each is valid.
fn settings(variables: &[(String, String)]) -> (Vec<Row>, Option<Settings>) {
    let definitions = Settings::augment_args(Command::new(env!("CARGO_PKG_NAME")));
    let definitions = definitions.mut_args(|flag| flag.env(None::<&str>));
    let named = Settings::augment_args(Command::new(""));
    let flag_of = |name: &str| {
        let mut flags = named.get_arguments();
        flags.find(|flag| flag.get_env().is_some_and(|env| env == name))
    };
    let mut rows = Vec::new();
    let mut arguments = vec![env!("CARGO_PKG_NAME").to_owned()];
    let mut are_valid = true;
    for (name, value) in variables.iter().filter(|(_, value)| !value.is_empty()) {
        let flag = flag_of(name);
        let argument = flag.and_then(Arg::get_long);
        let argument = argument.map(|long| format!("--{long}={value}"));
        let parsed = argument.as_ref().map(|argument| {
            let line = [env!("CARGO_PKG_NAME"), argument];
            definitions.clone().try_get_matches_from(line)
        });
        let row = match parsed {
            Some(Err(error)) => {
                are_valid = false;
                Some((Verdict::Invalid, invalid(&error)))
            }
            _ => documented(name),
        };
        arguments.extend(argument);
        rows.extend(row.map(|(verdict, note)| Row { name: name.clone(), verdict, note }));
    }
    let parsed = are_valid.then(|| definitions.try_get_matches_from(arguments));
    let parsed = parsed.and_then(Result::ok);
    let settings = parsed.and_then(|parsed| Settings::from_arg_matches(&parsed).ok());
    (rows, settings)
}

/// Why a value is invalid, without the value: it may be a secret.
fn invalid(error: &clap::Error) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| "the value is invalid".to_owned(), ToString::to_string)
}

/// What the page of settings says of one.
fn documented(name: &str) -> Option<(Verdict, String)> {
    let is_named = |names: &str| {
        names.split(", ").any(|known| match known.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => known == name,
        })
    };
    let row = SETTINGS.iter().find(|row| is_named(row[0].trim()))?;
    let [_, _, here, what, ..] = row else {
        return None;
    };
    let what = what.trim().to_owned();
    Some(match here.trim() {
        "no effect" => (Verdict::Ignored, what),
        "same" | "more" => (Verdict::Same, String::new()),
        _ => (Verdict::Different, what),
    })
}

/// Adds the warnings of the start, each to the variable that it begins with.
fn warn(rows: &mut Vec<Row>, warnings: &[String]) {
    for warning in warnings {
        let (name, note) = warning.split_once(' ').unwrap_or((warning, ""));
        let is_name = |name: &str| name.contains('_') && !name.contains(char::is_lowercase);
        match rows.iter_mut().find(|row| row.name == name) {
            Some(row) if row.verdict == Verdict::Ignored => {}
            Some(row) => {
                row.verdict = Verdict::Different;
                note.clone_into(&mut row.note);
            }
            None if is_name(name) => rows.push(Row {
                name: name.to_owned(),
                verdict: Verdict::Ignored,
                note: note.to_owned(),
            }),
            None => rows.push(Row {
                name: "together".to_owned(),
                verdict: Verdict::Different,
                note: warning.clone(),
            }),
        }
    }
}

/// The rules files that would be read.
fn files(resolved: &Resolved) -> String {
    let directory = match &resolved.rules_from {
        Origin::Files(directory) => directory,
        origin @ Origin::Xds(_) => return format!("\nrules: {origin}\n"),
    };
    match directory.read() {
        Err(error) => format!("\nrules: {error:#}; run this where the rules are mounted\n"),
        Ok(sources) => {
            let names = sources.iter().map(|source| format!("  {}\n", Escaped(&source.path)));
            let (path, names) = (directory.path.display(), names.collect::<String>());
            format!("\nrules in {path}: {}\n{names}", counted(sources.len(), "file"))
        }
    }
}

/// The commands that Redis must allow, with what they are for.
fn commands(resolved: &Resolved, environment: &Environment) -> String {
    if matches!(resolved.backend, BackendChoice::Memory) {
        return "\nstore: memory, which replicas do not share\n".to_owned();
    }
    let types = ["REDIS_TYPE", "REDIS_PERSECOND_TYPE"].map(|name| {
        let of_type = environment.get(name).unwrap_or_default();
        of_type.to_lowercase()
    });
    let rows = COMMANDS.iter().map(|row| [row[0].trim(), row[1].trim()]);
    let is_needed = |[_, what]: &[&str; 2]| {
        ["Sentinel", "Cluster"].iter().all(|kind| {
            !what.starts_with(kind) || types.iter().any(|of_type| *of_type == kind.to_lowercase())
        })
    };
    let rows =
        rows.filter(is_needed).map(|[names, what]| vec![format!("  {names}"), what.to_owned()]);
    format!(
        "\ncommands that the user of Redis must be allowed (docs/redis.md#users-of-redis)\n{}",
        table(2, &[], rows)
    )
}
