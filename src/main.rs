//! The binary: parse, run, and turn an error into an exit code.

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// glibc's allocator takes a fifth more CPU per request: it returns memory to the kernel and
/// requests it again under steady load.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    // As Redis does. Where the kernel gives huge pages to every process, an idle one would have
    // 12 MiB more. A kernel without them, or one that forbids this, changes nothing.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    tollgate::cli::run()
}
