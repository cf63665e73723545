#!/bin/sh
# The steps of a release, for .github/workflows/release.yml and deploy/image/rehearse.py:
#   release.sh versions VERSION            the tag, Cargo.toml, the chart and CHANGELOG.md agree
#   release.sh archives VERSION [FOLDER]   binary, license and bill of materials of each processor, and checksums. FOLDER has the image's files
#                                          of each processor, as linux_amd64; without it they are built
#   release.sh package VERSION             packages the chart
#   release.sh chart VERSION REPOSITORY    packages the chart, pushes it to oci://REPOSITORY and signs it
#   release.sh sign VERSION IMAGE@DIGEST   signs what is in a registry
# All files are written to target/release-files. With DRY_RUN=1, commands that publish or sign are printed instead.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
cd "$root"
step=${1:?usage: release.sh versions|archives|package|chart|sign VERSION [...]}
version=${2:?a version is missing, such as v0.1.0}
number=${version#v}
files=$root/target/release-files

fail() {
    echo "deploy/image/release.sh: $1" >&2
    exit 1
}

publish() {
    if [ -n "${DRY_RUN:-}" ]; then echo "$*"; else "$@"; fi
}

package() {
    mkdir -p "$files"
    helm package helm/tollgate --version "$number" --app-version "$number" --destination "$files"
}

sign() {
    publish cosign sign --yes "$1"
}

case $step in
versions)
    [ "$version" = "v$number" ] || fail "$version is no tag of a version, such as v0.1.0"
    grep -qxF "version = \"$number\"" Cargo.toml || fail "Cargo.toml has another version than $number"
    grep -qxF "version: $number" helm/tollgate/Chart.yaml || fail "the chart has another version than $number"
    grep -qxF "appVersion: $number" helm/tollgate/Chart.yaml || fail "the chart has another appVersion than $number"
    grep -qF "## [$number] - " CHANGELOG.md || fail "CHANGELOG.md has no section [$number]"
    ;;
archives)
    content=${3:-target/image/files}
    [ -n "${3:-}" ] || deploy/image/make.sh tollgate files
    rm -rf "$files"
    mkdir -p "$files" target/image
    for each in "$content"/linux_*; do
        [ -d "$each" ] || fail "$content has no folder such as linux_amd64"
        name=tollgate-$version-linux-${each##*/linux_}
        rm -rf "target/image/$name"
        mkdir "target/image/$name"
        cp "$each/bin/tollgate" "$each/usr/share/doc/tollgate/LICENSE" "$each/usr/share/sbom/tollgate.cdx.json" "target/image/$name/"
        cp "$each/usr/share/sbom/tollgate.cdx.json" "$files/$name.cdx.json"
        tar --create --gzip --owner=0 --group=0 --file "$files/$name.tar.gz" --directory target/image "$name"
    done
    cd "$files"
    sha256sum -- * >SHA256SUMS
    ;;
package) package ;;
chart)
    repository=${3:?a repository is missing, such as registry.example.com/charts}
    package
    pushed=$(publish helm push "$files/tollgate-$number.tgz" "oci://$repository" 2>&1) || fail "$pushed"
    echo "$pushed"
    digest=$(echo "$pushed" | sed -n 's/^Digest: //p')
    [ -n "${DRY_RUN:-}" ] && digest=sha256:DIGEST
    [ -n "$digest" ] || fail "helm push printed no digest"
    sign "$repository/tollgate@$digest"
    ;;
sign) sign "${3:?an image with its digest is missing, such as registry.example.com/tollgate@sha256:DIGEST}" ;;
*) fail "$step is none of versions, archives, package, chart and sign" ;;
esac
