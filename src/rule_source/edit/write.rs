//! Replaces files so that a reader, or a process that is started after a crash, finds the old or
//! the new content, never a part; and says why files cannot be replaced.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::Path;

use rustix::fs::{Access, CWD, RenameFlags, access, renameat_with};
use rustix::io::Errno;

use crate::rule_source::edit::etag::ETag;
use crate::rule_source::edit::hash::hash;
use crate::rule_source::files::Directory;

/// A link to the current version of the files, which kubelet adds to a mounted ConfigMap.
const CONFIG_MAP_LINK: &str = "..data";
/// How often a file is put back that editors replace meanwhile.
// bound restores_max: what an editor wrote last may be in the folder of versions; -
const RESTORES_MAX: usize = 100;
/// The permissions of a mode, without the type of the file.
const PERMISSIONS: u32 = 0o7777;

/// Why the files of a folder cannot be replaced; `None` if they can, as far as known before.
pub(crate) fn unwritable(directory: &Directory) -> Option<String> {
    let path = &directory.path;
    let top = directory.root.as_deref().unwrap_or(path);
    let above = path.ancestors().take_while(|above| above.starts_with(top));
    if let Some(link) = above.into_iter().find(|path| path.is_symlink()) {
        return Some(linked(link));
    }
    if path.join(CONFIG_MAP_LINK).is_symlink() {
        return Some(linked(path));
    }
    let error = access(path, Access::WRITE_OK | Access::EXEC_OK).err()?;
    let error = io::Error::from(error);
    Some(refusal(path, &error).unwrap_or_else(|| format!("{}: {error}", path.display())))
}

/// Why a file cannot be replaced; `None` if it can.
pub(crate) fn unwritable_file(path: &Path) -> Option<String> {
    path.is_symlink().then(|| linked(path))
}

/// Replacing a link, or the file behind it, would be undone by the next change of the link.
fn linked(path: &Path) -> String {
    let path = path.display();
    format!("{path} is a link, as in a ConfigMap; change the rules where they come from")
}

/// Why the system does not let this process write; `None` for errors of another kind.
pub(crate) fn refusal(path: &Path, error: &io::Error) -> Option<String> {
    let reason = match error.kind() {
        ErrorKind::ReadOnlyFilesystem => "is on a read-only mount",
        ErrorKind::PermissionDenied => "is not writable for this process",
        ErrorKind::ResourceBusy => "is a mount of its own",
        _ => return None,
    };
    let path = path.display();
    Some(format!(
        "{path} {reason}; change the rules where they come from"
    ))
}

/// Writes a file that no one reads yet, with the permissions of another, to the disk.
///
/// # Errors
/// It cannot be written.
pub(crate) fn write_new(path: &Path, bytes: &[u8], like: &Metadata) -> io::Result<()> {
    // Left by a process that was killed.
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
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
pub(crate) fn replace(new: &Path, path: &Path) -> io::Result<()> {
    fs::rename(new, path)?;
    sync_folder_of(path);
    Ok(())
}

/// Puts a file in the place of another if that has the expected content; else returns the ETag of
/// what it has, and the other file is as it was.
///
/// The two are exchanged, and then what was there is compared, so no write of an editor that
/// replaces the file is lost. An editor that opened the file before and writes to it in place
/// afterwards writes to the version that was replaced. File systems that cannot exchange files
/// (NFS, and some by FUSE) compare before they replace: a write between the two is lost.
///
/// # Errors
/// The other one is still there.
pub(crate) fn replace_expected(
    new: &Path,
    path: &Path,
    expected: &ETag,
) -> io::Result<Result<(), ETag>> {
    let ours = etag_of(new)?;
    match exchange(new, path) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            let found = etag_of(path)?;
            if found != *expected {
                return Ok(Err(found));
            }
            return replace(new, path).map(Ok);
        }
        exchanged => exchanged?,
    }
    let found = etag_of(new);
    if found.as_ref().is_ok_and(|found| found == expected) {
        sync_folder_of(path);
        // What remains is replaced by the next change.
        let _ = fs::remove_file(new);
        return Ok(Ok(()));
    }
    restore(new, path, ours)?;
    found.map(Err)
}

/// Puts a file back in the place of the one with the ETag `put`. If another is there, an editor was
/// faster, and that is put back instead.
fn restore(taken: &Path, path: &Path, mut put: ETag) -> io::Result<()> {
    for _ in 0..RESTORES_MAX {
        let restored = etag_of(taken);
        exchange(taken, path)?;
        // A folder or the like is put back once.
        let (Ok(restored), Ok(found)) = (restored, etag_of(taken)) else {
            break;
        };
        if found == put {
            break;
        }
        put = restored;
    }
    sync_folder_of(path);
    Ok(())
}

fn exchange(one: &Path, other: &Path) -> Result<(), Errno> {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)
}

fn etag_of(path: &Path) -> io::Result<ETag> {
    hash(path).map(|(etag, _)| etag)
}

/// The change is made; only after a power failure the old file could be back.
fn sync_folder_of(path: &Path) {
    if let Some(Err(error)) = path.parent().map(|folder| File::open(folder)?.sync_all()) {
        tracing::warn!(%error, path = %path.display(), "cannot write a folder to the disk");
    }
}

#[cfg(test)]
mod tests {
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
            let reason = refusal(path, &errno.into());
            let named = reason
                .as_ref()
                .map(|reason| expected.is_some_and(|text| reason.contains(text)));
            assert_eq!(named, expected.map(|_| true), "{errno}: {reason:?}");
        }
    }

    #[test]
    fn only_the_expected_content_is_replaced() {
        let folder = TempDir::new().unwrap();
        let [path, new] = ["a.yaml", "new"].map(|name| folder.path().join(name));
        let texts = || [&path, &new].map(|path| fs::read_to_string(path).ok());
        fs::write(&path, "old").unwrap();
        fs::write(&new, "new").unwrap();
        // An editor wrote after the file was read.
        let replaced = replace_expected(&new, &path, &ETag::of(b"older")).unwrap();
        assert_eq!(replaced, Err(ETag::of(b"old")));
        assert_eq!(texts(), [Some("old".into()), Some("new".into())]);
        let replaced = replace_expected(&new, &path, &ETag::of(b"old")).unwrap();
        assert_eq!(replaced, Ok(()));
        assert_eq!(texts(), [Some("new".into()), None]);
    }

    #[test]
    fn what_an_editor_writes_while_a_file_is_put_back_stays() {
        let folder = TempDir::new().unwrap();
        let [path, taken] = ["a.yaml", "new"].map(|name| folder.path().join(name));
        fs::write(&taken, "first of the editor").unwrap();
        // It replaced what this process had put there.
        fs::write(&path, "second of the editor").unwrap();
        restore(&taken, &path, ETag::of(b"ours")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second of the editor");
    }

    #[test]
    fn a_new_file_has_the_permissions_of_the_old_one() {
        let folder = TempDir::new().unwrap();
        let [path, new] = ["a.yaml", "new"].map(|name| folder.path().join(name));
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        fs::write(&new, "left by a process that was killed").unwrap();
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
