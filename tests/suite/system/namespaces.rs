//! Runs programs in Linux namespaces of their own.

use std::process::{Command, Stdio};

/// Every Linux lets root make namespaces. Another user needs a user namespace, too.
const WAYS: [&[&str]; 2] = [&[], &["--user", "--map-root-user"]];
const NONE: &str = "\
this kernel gives namespaces neither to you nor to a user namespace of yours: run the tests as root (in a container: with CAP_SYS_ADMIN), or \
allow user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0)";

/// The begin of a command in new namespaces: `unshare`, with what works here.
pub(crate) fn unshare<'c>(namespaces: &[&'c str]) -> Vec<&'c str> {
    let ways = WAYS.map(|user| [&["unshare"], user, namespaces].concat());
    let works = |way: &Vec<&str>| {
        let tried = Command::new(way[0]).args(&way[1..]).arg("true").stderr(Stdio::null()).status();
        tried.expect("unshare comes with util-linux, on Linux").success()
    };
    ways.into_iter().find(works).expect(NONE)
}

/// The same for a script of a shell.
pub(crate) fn unshare_shell<'c>(namespaces: &[&'c str], script: &'c str) -> Vec<&'c str> {
    [&unshare(namespaces)[..], &["sh", "-c", script]].concat()
}
