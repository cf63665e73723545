#!/bin/sh
# Compiles Tollgate for $1 (amd64 or arm64) into the folder $2. PROFILE=dev for a quick one.
#
# A release for the processor of this machine is optimized by a profile: it is compiled to count what it executes, runs under load, and is
# compiled again with the counts. That needs redis-server, python3, and llvm-profdata in the version of rustc's LLVM.
set -eu

fail() {
    echo "build.sh: $1" >&2
    exit 1
}

profile=${PROFILE:-release}
target=${CARGO_TARGET_DIR:-target}
case $1 in
    amd64) triple=x86_64-unknown-linux-gnu cross=x86_64-linux-gnu ;;
    arm64) triple=aarch64-unknown-linux-gnu cross=aarch64-linux-gnu ;;
    *) fail "$1 is neither amd64 nor arm64" ;;
esac
# Keeps function names for backtraces and removes debug information.
export CARGO_PROFILE_RELEASE_STRIP=debuginfo CARGO_PROFILE_DEV_STRIP=debuginfo

# Compiles into the folder $1 with the flags $2, and prints the binary's path.
compile() {
    RUSTFLAGS="${RUSTFLAGS:-} $2" cargo build --locked --profile "$profile" --target "$triple" --target-dir "$1" --bin tollgate
    case $profile in dev) echo "$1/$triple/debug/tollgate" ;; *) echo "$1/$triple/$profile/tollgate" ;; esac
}

# Writes the counts of a run under load into the file $1.
count() {
    merge=$(rustc --print target-libdir)/../bin/llvm-profdata
    [ -x "$merge" ] || merge=llvm-profdata
    llvm=$(rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
    "$merge" --version 2>&1 | grep -q "LLVM version $llvm\." || fail "llvm-profdata of LLVM $llvm is missing; install it: rustup component add llvm-tools"
    command -v redis-server >/dev/null || fail "redis-server is missing; install it: https://redis.io"
    rm -rf "$1.runs"
    instrumented=$(compile "$target/instrumented" "-Cprofile-generate=$1.runs")
    benches/train.py "$instrumented"
    "$merge" merge --output "$1" "$1.runs"
}

flags=
if [ "$(rustc -vV | sed -n 's/^host: //p')" != "$triple" ]; then
    upper=$(echo "$triple" | tr a-z- A-Z_)
    export "CARGO_TARGET_${upper}_LINKER=$cross-gcc" "CC_$(echo "$triple" | tr - _)=$cross-gcc" "AR_$(echo "$triple" | tr - _)=$cross-ar"
elif [ "$profile" = release ]; then
    mkdir -p "$target"
    counts=$(cd "$target" && pwd)/tollgate.profdata
    count "$counts"
    flags=-Cprofile-use=$counts
    target=$target/optimized
fi
binary=$(compile "$target" "$flags")
mkdir -p "$2"
cp "$binary" "$2/tollgate"
