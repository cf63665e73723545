//! The settings that a service runs with, as `tollgate config` shows them.

use serde::Serialize;

use crate::base::named_enum::named_enum;

#[derive(Debug, Serialize)]
pub(crate) struct EffectiveSettings {
    pub(crate) settings: Vec<EffectiveSetting>,
    /// A sentence for each variable that has no effect, or is no setting and resembles one.
    pub(crate) warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct EffectiveSetting {
    pub(crate) name: String,
    /// `<hidden>` if it may have a credential; `None` if the setting is not set and has no constant
    /// default, or is read from a file.
    pub(crate) value: Option<String>,
    pub(crate) source: SettingSource,
}

named_enum! {
    /// Where the value of a setting comes from.
    pub enum SettingSource {
        /// It is not set.
        Default = "default",
        /// The environment variable.
        Environment = "environment",
        /// The flag on the command line.
        Flag = "flag",
        /// The file that the setting with `_FILE` names.
        File = "file",
    }
}
