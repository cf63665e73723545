#!/bin/sh
# Checks the requirements of the machine before anything is built, and prints one line per missing item.
#
# Usage: tests/requirements.sh ITEM... with items of: linux rust lint cc python. Everything else is installed by tests/tools.py.
set -u

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
status=0

missing() {
    echo "missing: $1; install it: $2" >&2
    status=1
}

# at_least VERSION MINIMUM
at_least() {
    [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

for item; do
    case $item in
    linux)
        [ "$(uname -s)" = Linux ] || missing "Linux (this is $(uname -s))" "run the tests in a Linux virtual machine or container"
        ;;
    rust)
        minimum=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml")
        version=$(cd "$root" && cargo --version >/dev/null 2>&1 && rustc --version 2>/dev/null | cut -d ' ' -f 2)
        if [ -z "$version" ]; then
            missing "Rust $minimum or later" "curl --proto '=https' -sSf https://sh.rustup.rs | sh"
        elif ! at_least "$version" "$minimum"; then
            missing "Rust $minimum or later (this is $version)" "rustup update stable"
        fi
        ;;
    lint)
        for component in rustfmt clippy; do
            (cd "$root" && cargo "$(echo $component | sed s/rustfmt/fmt/)" --version) >/dev/null 2>&1 ||
                missing "$component" "rustup component add $component"
        done
        ;;
    cc)
        echo 'int main(void) { return 0; }' | ${CC:-cc} -x c -o /dev/null - -include stdlib.h 2>/dev/null ||
            missing "a C compiler with its headers" "apt-get install gcc libc6-dev"
        ;;
    python)
        if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            missing "Python 3.10 or later" "apt-get install python3 python3-venv"
        elif ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
            missing "Python's venv" "apt-get install python3-venv"
        fi
        ;;
    *)
        echo "tests/requirements.sh: unknown item $item" >&2
        status=2
        ;;
    esac
done
exit $status
