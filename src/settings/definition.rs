//! The definitions of all settings as data: for `tollgate help settings`, `tollgate config` and
//! `docs/settings.md`.

use clap::{Arg, Args as _, Command};

use crate::settings::Settings;

/// A setting.
#[derive(Debug)]
pub struct Definition {
    /// The heading of its group.
    pub section: String,
    /// The environment variable.
    pub name: String,
    /// The kind of value.
    pub value: String,
    /// The value while it is not set.
    pub default: Option<String>,
    /// What applies while it is not set, in words: it depends on something else.
    pub default_in_words: Option<String>,
    /// What it does.
    pub description: String,
    /// Whether the value may be or have a credential.
    pub is_secret: bool,
}

impl Definition {
    /// All settings by section, in the order of the help.
    pub fn all() -> Vec<Self> {
        let command = Settings::augment_args(Command::new(""));
        let mut all: Vec<Self> = command.get_arguments().filter_map(Self::of).collect();
        let sections: Vec<String> = all.iter().map(|one| one.section.clone()).collect();
        all.sort_by_key(|one| sections.iter().position(|section| *section == one.section));
        all
    }

    fn of(argument: &Arg) -> Option<Self> {
        let name = argument.get_env()?.to_str()?.to_owned();
        let help = argument.get_help().map(ToString::to_string)?;
        let (description, in_words) = match help.split_once(" [default: ") {
            Some((help, default)) => (help.to_owned(), Some(default.trim_end_matches(']'))),
            None => (help.clone(), None),
        };
        let defaults = argument.get_default_values().iter();
        let default: String = defaults.map(|value| value.to_string_lossy()).collect();
        let values = argument.get_value_names().unwrap_or_default();
        Some(Self {
            section: argument.get_help_heading()?.to_owned(),
            name,
            value: values.join(" "),
            default: Some(default).filter(|default| !default.is_empty()),
            default_in_words: in_words.map(str::to_owned),
            description,
            is_secret: argument.is_hide_env_values_set(),
        })
    }
}
