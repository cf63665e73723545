#!/bin/sh
# The steps of a release, for .github/workflows/release.yml:
#   release.sh check VERSION               the tag, Cargo.toml, the chart and CHANGELOG.md agree
#   release.sh archives VERSION            target/release-archives: binary, license and bill of materials of each processor, and checksums
#   release.sh chart VERSION REPOSITORY    packages the chart, pushes it to oci://REPOSITORY and signs it
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
cd "$root"
step=${1:?usage: release.sh check|archives|chart VERSION [REPOSITORY]}
version=${2:?a version is missing, such as v0.1.0}
number=${version#v}
archives=$root/target/release-archives

fail() {
    echo "deploy/image/release.sh: $1" >&2
    exit 1
}

case $step in
check)
    grep -q "^version = \"$number\"$" Cargo.toml || fail "Cargo.toml has another version than $number"
    grep -q "^version: $number$" helm/tollgate/Chart.yaml || fail "the chart has another version than $number"
    grep -q "^appVersion: $number$" helm/tollgate/Chart.yaml || fail "the chart has another appVersion than $number"
    grep -q "^## .*$number" CHANGELOG.md || fail "CHANGELOG.md has no section for $number"
    ;;
archives)
    deploy/image/make.sh tollgate files
    rm -rf "$archives"
    mkdir -p "$archives"
    for processor in amd64 arm64; do
        name=tollgate-$version-linux-$processor
        content=target/image/files/linux_$processor
        mkdir -p "target/image/$name"
        cp "$content/bin/tollgate" "$content/usr/share/doc/tollgate/LICENSE" "target/image/$name/"
        cp "$content/usr/share/sbom/tollgate.cdx.json" "target/image/$name/"
        cp "$content/usr/share/sbom/tollgate.cdx.json" "$archives/$name.cdx.json"
        tar --create --gzip --owner=0 --group=0 --file "$archives/$name.tar.gz" --directory target/image "$name"
    done
    cd "$archives"
    sha256sum -- * >SHA256SUMS
    ;;
chart)
    repository=${3:?a repository is missing, such as registry.example.com/charts}
    mkdir -p target/chart
    helm package helm/tollgate --version "$number" --app-version "$number" --destination target/chart
    pushed=$(helm push "target/chart/tollgate-$number.tgz" "oci://$repository" 2>&1)
    echo "$pushed"
    digest=$(echo "$pushed" | sed -n 's/^Digest: //p')
    [ -n "$digest" ] || fail "helm push printed no digest"
    cosign sign --yes "$repository/tollgate@$digest"
    ;;
*) fail "$step is none of check, archives and chart" ;;
esac
