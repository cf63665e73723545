//! Runs programs in Linux namespaces of their own.

use std::process::{Command, Stdio};

/// What `unshare` needs besides, for users other than root.
const AS_ROOT: [&str; 2] = ["--user", "--map-root-user"];

/// The begin of a command that runs `script` in a shell in new namespaces: as root, or with user
/// namespaces.
pub(crate) fn unshare<'c>(namespaces: &[&'c str], script: &'c str) -> Vec<&'c str> {
    let ways = [&[][..], &AS_ROOT].map(|user| [user, namespaces].concat());
    let works = |way: &Vec<&str>| {
        let tried = Command::new("unshare").args(way).arg("true").stderr(Stdio::null()).status();
        tried.expect("unshare comes with util-linux, on Linux").success()
    };
    let way = ways.into_iter().find(works).expect("this needs root or user namespaces");
    [&["unshare"], &way[..], &["sh", "-c", script]].concat()
}
