//! Replaces a file so that a reader, or a process that is started after a crash, finds the old or
//! the new content, never a part; and says why files cannot be replaced.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::Path;

use rustix::fs::{Access, access};

use crate::rules::source::edit::EditError;
use crate::rules::source::files::Directory;

/// A link to the current version of the files, which kubelet adds to a mounted ConfigMap.
const CONFIG_MAP_LINK: &str = "..data";
/// The permissions of a mode, without the type of the file.
const PERMISSIONS: u32 = 0o7777;

/// # Errors
/// The files of a folder cannot be replaced, as far as known before.
pub(super) fn check_folder(directory: &Directory) -> Result<(), EditError> {
    let path = &directory.path;
    let top = directory.root.as_deref().unwrap_or(path);
    let mut above = path.ancestors().take_while(|above| above.starts_with(top));
    if let Some(link) = above.find(|path| path.is_symlink()) {
        return Err(linked(link));
    }
    if path.join(CONFIG_MAP_LINK).is_symlink() {
        return Err(linked(path));
    }
    let allowed = access(path, Access::WRITE_OK | Access::EXEC_OK);
    allowed.map_err(|errno| failed(path)(errno.into()))
}

/// Replacing a link, or the file behind it, would be undone by the next change of the link.
pub(super) fn linked(path: &Path) -> EditError {
    EditError::Unwritable(format!("{} is a link, as in a ConfigMap", path.display()))
}

/// An error of the system about a path that is written.
pub(super) fn failed(path: &Path) -> impl Fn(io::Error) -> EditError {
    move |error| {
        let reason = match error.kind() {
            ErrorKind::ReadOnlyFilesystem => "is on a read-only mount",
            ErrorKind::PermissionDenied => "is not writable for this process",
            ErrorKind::ResourceBusy => "is a mount of its own",
            _ => return EditError::Io(path.to_owned(), error),
        };
        EditError::Unwritable(format!("{} {reason}", path.display()))
    }
}

/// Writes a file that no one reads yet, with the permissions of another, to the disk.
///
/// # Errors
/// It cannot be written.
pub(super) fn write_new(path: &Path, bytes: &[u8], like: &Metadata) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(path)?;
    file.write_all(bytes)?;
    // Only root can give a file to another user; for others the rules may get another owner.
    let _ = fchown(&file, Some(like.uid()), Some(like.gid()));
    let mode = like.permissions().mode() & PERMISSIONS;
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.sync_all()
}

/// Puts a file in the place of another, in one step.
///
/// # Errors
/// The other one is still there.
pub(super) fn replace(new: &Path, path: &Path) -> io::Result<()> {
    fs::rename(new, path)?;
    // The change is made; only after a power failure the old file could be back.
    if let Some(Err(error)) = path.parent().map(|folder| File::open(folder)?.sync_all()) {
        tracing::warn!(%error, path = %path.display(), "cannot write a folder to the disk");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn a_refusal_names_its_reason() {
        let path = Path::new("/rules/a.yaml");
        for (errno, expected) in [
            (Errno::ROFS, Some("is on a read-only mount")),
            (Errno::ACCESS, Some("is not writable for this process")),
            (Errno::PERM, Some("is not writable for this process")),
            (Errno::BUSY, Some("is a mount of its own")),
            (Errno::NOSPC, None),
            (Errno::IO, None),
        ] {
            let reason = match failed(path)(errno.into()) {
                EditError::Unwritable(reason) => Some(reason),
                _ => None,
            };
            let named =
                reason.as_ref().map(|reason| expected.is_some_and(|text| reason.contains(text)));
            assert_eq!(named, expected.map(|_| true), "{errno}: {reason:?}");
        }
    }

    #[test]
    fn a_new_file_has_the_permissions_of_the_old_one() {
        let folder = TempDir::new().unwrap();
        let [path, new] = ["a.yaml", "new"].map(|name| folder.path().join(name));
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let like = fs::metadata(&path).unwrap();
        write_new(&new, b"new", &like).unwrap();
        replace(&new, &path).unwrap();
        let replaced = fs::metadata(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(replaced.permissions(), like.permissions());
        assert_eq!((replaced.uid(), replaced.gid()), (like.uid(), like.gid()));
        assert_ne!(replaced.ino(), like.ino(), "it is another file");
    }
}
