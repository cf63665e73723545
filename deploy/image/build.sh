#!/bin/sh
# Compiles Tollgate for $1 (amd64 or arm64) into the folder $2. PROFILE=dev for a quick one.
set -eu

profile=${PROFILE:-release}
case $1 in
    amd64) triple=x86_64-unknown-linux-gnu cross=x86_64-linux-gnu ;;
    arm64) triple=aarch64-unknown-linux-gnu cross=aarch64-linux-gnu ;;
    *) echo "build.sh: $1 is neither amd64 nor arm64" >&2; exit 1 ;;
esac
if [ "$(rustc -vV | sed -n 's/^host: //p')" != "$triple" ]; then
    upper=$(echo "$triple" | tr a-z- A-Z_)
    export "CARGO_TARGET_${upper}_LINKER=$cross-gcc" "CC_$(echo "$triple" | tr - _)=$cross-gcc" "AR_$(echo "$triple" | tr - _)=$cross-ar"
fi
# Keeps function names for backtraces and removes debug information.
export CARGO_PROFILE_RELEASE_STRIP=debuginfo CARGO_PROFILE_DEV_STRIP=debuginfo

cargo build --locked --profile "$profile" --target "$triple" --bin tollgate
case $profile in dev) built=debug ;; *) built=$profile ;; esac
mkdir -p "$2"
cp "${CARGO_TARGET_DIR:-target}/$triple/$built/tollgate" "$2/tollgate"
