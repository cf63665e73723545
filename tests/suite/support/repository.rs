//! A git repository of a user, in a temporary folder.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Output};

use super::folder::Folder;

/// A repository whose programs find the binary of this build in PATH, and no settings of this machine.
pub(crate) struct Repository(pub(crate) Folder);

impl Repository {
    /// With one commit.
    pub(crate) fn with(files: &[(&str, &str)]) -> Self {
        let repository = Self(Folder::with(files));
        repository.git(&["init", "-q"]);
        repository.commit(&[]);
        repository
    }

    /// Commits everything, with these files.
    pub(crate) fn commit(&self, files: &[(&str, &str)]) {
        let ran = self.try_commit(files);
        assert!(ran.status.success(), "{ran:?}");
    }

    /// The same, if hooks let it pass.
    pub(crate) fn try_commit(&self, files: &[(&str, &str)]) -> Output {
        for (name, text) in files {
            self.0.write(name, text);
        }
        self.git(&["add", "-A"]);
        let commit = ["commit", "-qm", "files", "--allow-empty"];
        self.run("git", &commit, &HashMap::new())
    }

    pub(crate) fn git(&self, arguments: &[&str]) {
        let ran = self.run("git", arguments, &HashMap::new());
        assert!(ran.status.success(), "{ran:?}");
    }

    /// Runs a program in it until it ends.
    pub(crate) fn run(
        &self,
        program: &str,
        arguments: &[&str],
        variables: &HashMap<String, String>,
    ) -> Output {
        let binary = Path::new(env!("CARGO_BIN_EXE_tollgate"));
        let binaries = binary.parent().expect("it is in a folder").display();
        let searched = std::env::var("PATH").expect("there is a PATH");
        Command::new(program)
            .args(arguments)
            .current_dir(self.0.path(""))
            .env_clear()
            .env("PATH", format!("{binaries}:{searched}"))
            .env("HOME", self.0.path(".git/home"))
            .envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_NAME"), "test")))
            .envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_EMAIL"), "test@localhost")))
            .envs(variables)
            .output()
            .unwrap_or_else(|error| panic!("{program}: {error}"))
    }
}
