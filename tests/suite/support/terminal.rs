//! A terminal as the stdout of a process.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::Stdio;
use std::thread::{self, JoinHandle};

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// Opens a pseudo-terminal and copies what is printed there to a file, with plain line ends. The
/// thread that copies ends with the process.
pub(crate) fn copied_to(path: &Path) -> (Stdio, JoinHandle<()>) {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
        .expect("a pseudo-terminal can be opened");
    grantpt(&controller).and_then(|()| unlockpt(&controller)).expect("it belongs to this process");
    let name = ptsname(&controller, Vec::new()).expect("it has a name");
    let terminal = open(&*name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())
        .expect("it is unlocked");
    let (mut printed, mut copy) =
        (File::from(controller), File::create(path).expect("a file can be made"));
    let copying = thread::spawn(move || {
        let mut buffer = [0; 4_096];
        // Reading fails once the process has ended and nobody else has the terminal open.
        while let Ok(length @ 1..) = printed.read(&mut buffer) {
            let text: Vec<u8> =
                buffer[..length].iter().copied().filter(|byte| *byte != b'\r').collect();
            if copy.write_all(&text).is_err() {
                return;
            }
        }
    });
    (terminal.into(), copying)
}
