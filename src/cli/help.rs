//! Help: commands by what they are for, `-h` that fits a screen, and the list of settings.

use std::fmt::Write as _;

use clap::{Arg, Command};

use crate::settings::definition::Definition;

/// Every command, by what it is for.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Serve", &["serve", "config", "healthcheck"]),
    (
        "Author rules",
        &["check", "explain", "test", "simulate", "replay", "diff"],
    ),
    (
        "Operate",
        &["top", "counter", "rules", "candidate", "trial"],
    ),
    ("Others", &["version", "completions", "man", "help"]),
];
const HELP: &str = "Print the whole help of a command, or `tollgate help settings`";

/// Settings on the `-h` of `serve` and `config`: those that nearly every deployment sets.
const COMMON: [&str; 6] = [
    "PORT",
    "GRPC_PORT",
    "DEBUG_PORT",
    "RUNTIME_ROOT",
    "REDIS_URL",
    "LOG_LEVEL",
];
const USAGE: &str = "tollgate [OPTIONS] [DIR]\n       tollgate <COMMAND>";
const MORE: &str =
    "`tollgate COMMAND -h` is about a command, and `tollgate help settings` lists all settings.";

/// With this help.
pub(super) fn with_help(command: Command) -> Command {
    let groups = groups(&command);
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}{{all-args}}{{after-help}}"
    );
    let command = command.mut_subcommands(|subcommand| subcommand.hide(true));
    shortened(command)
        .override_usage(USAGE)
        .help_template(template)
        .after_help(MORE)
}

/// The commands with their lines, by group.
fn groups(command: &Command) -> String {
    let mut text = String::new();
    for (heading, names) in GROUPS {
        let _ = writeln!(text, "{heading}:");
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map_or_else(|| HELP.to_owned(), ToString::to_string);
            let _ = writeln!(text, "  {name:<11}  {about}");
        }
        text.push('\n');
    }
    text
}

/// Leaves settings out of `-h`, in all subcommands.
fn shortened(command: Command) -> Command {
    let serves = ["serve", "config"].contains(&command.get_name());
    let shorten = |argument: Arg| {
        let Some(name) = argument
            .get_env()
            .filter(|_| argument.get_help_heading().is_some())
        else {
            return argument;
        };
        let is_common = serves && COMMON.iter().any(|common| name == *common);
        argument.hide_short_help(!is_common)
    };
    command.mut_args(shorten).mut_subcommands(shortened)
}

/// All settings.
pub(super) fn settings() -> String {
    let mut text =
        "Every setting is an environment variable and a flag: GRPC_PORT is --grpc-port.\n"
            .to_owned();
    let mut section = String::new();
    for setting in Definition::all() {
        if setting.section != section {
            let _ = writeln!(text, "\n{}:", setting.section);
            section = setting.section;
        }
        let default = setting.default_in_words.or(setting.default);
        let default = default.map(|default| format!(" [default: {default}]"));
        let (name, value) = (setting.name, setting.value);
        let _ = writeln!(text, "  {name} <{value}>{}", default.unwrap_or_default());
        let _ = writeln!(text, "      {}", setting.description);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_command_is_in_one_group() {
        use clap::CommandFactory as _;
        let command = crate::cli::Cli::command();
        let names: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
        let grouped = GROUPS.iter().flat_map(|(_, names)| names.iter().copied());
        let grouped: Vec<&str> = grouped.filter(|name| *name != "help").collect();
        assert_eq!(grouped.len(), names.len());
        assert_eq!(BTreeSet::from_iter(grouped), BTreeSet::from_iter(names));
    }
}
