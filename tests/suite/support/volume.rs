//! A ConfigMap or a Secret, mounted as a kubelet does it: names lead through `..data` to one of the
//! hidden directories, and a change is one rename, which replaces all files at once.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The directory on the host.
pub(crate) struct Volume(PathBuf);

impl Volume {
    /// With these files, in a directory that may be new.
    pub(crate) fn new(directory: PathBuf, files: &[(&str, &str)]) -> Self {
        let volume = Self(directory);
        volume.turn_to(1, files);
        for (file, _) in files {
            symlink(Path::new("..data").join(file), volume.0.join(file)).expect("its name is new");
        }
        volume
    }

    /// Puts other files of the same names in their place.
    pub(crate) fn replace(&self, files: &[(&str, &str)]) {
        let old = fs::read_link(self.0.join("..data")).expect("there is one");
        let number = old.extension().and_then(|number| number.to_str()?.parse::<u32>().ok());
        self.turn_to(number.expect("a number of ours") + 1, files);
        fs::remove_dir_all(self.0.join(old)).expect("nothing is mounted there");
    }

    /// Where it is on the host.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    fn turn_to(&self, number: u32, files: &[(&str, &str)]) {
        let hidden = format!("..2026_11_22_09_00_00.{number}");
        let directory = self.0.join(&hidden);
        fs::create_dir_all(&directory).expect("it is the test's own");
        for (file, text) in files {
            fs::write(directory.join(file), text).expect("it is the test's own");
        }
        let link = self.0.join("..data_tmp");
        symlink(hidden, &link).expect("its name is new");
        fs::rename(link, self.0.join("..data")).expect("both are in one directory");
    }
}
