#!/bin/sh
# Installs into .tools what the chart's tests need and is not there, then runs them. Arguments are for check.py.
#
# Helm is taken from the PATH if it is there, else built by Go, as kubeconform is; Python has a virtual environment of its own.
set -eu

# Kubernetes that a Helm built by `go install` renders for; released ones are told when they are built.
kubernetes=34
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
bin=$root/.tools/bin
home=$root/.tools/helm

fail() {
    echo "tests/helm/run.sh: $1" >&2
    exit 1
}

build() {
    command -v go >/dev/null || fail "$1 is missing, and so is Go to build it with: install Go 1.26 or later from https://go.dev, or $1 on the PATH"
    echo "building $2 into $bin"
    GOBIN=$bin go install ${3:+-ldflags "$3"} "$2" || fail "go could not build $2 (see above); is the Go module proxy reachable?"
}

helm=$(command -v helm || true)
case $("${helm:-false}" version --short 2>/dev/null) in v3.*) ;; *) helm=$bin/helm ;; esac
if [ "$helm" = "$bin/helm" ] && [ ! -x "$helm" ]; then
    flags=
    for package in chartutil lint/rules; do
        flags="$flags -X helm.sh/helm/v3/pkg/$package.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/$package.k8sVersionMinor=$kubernetes"
    done
    build helm helm.sh/helm/v3/cmd/helm@v3.22.0 "$flags"
fi

kubeconform=$(command -v kubeconform || true)
[ -n "$kubeconform" ] || kubeconform=$bin/kubeconform
[ -x "$kubeconform" ] || build kubeconform github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0

# Compared with what was installed rather than looked for: requirements change.
if ! cmp -s "$root/tests/helm/requirements.txt" "$home/installed.txt" || ! "$home/bin/python3" -c 'import yaml' 2>/dev/null; then
    command -v python3 >/dev/null || fail "python3 is missing: install Python 3.10 or later (Debian: apt-get install python3 python3-venv)"
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || fail "$(python3 --version) is too old: install Python 3.10 or later"
    python3 -c 'import ensurepip, venv' 2>/dev/null || fail "python3 has no venv: install it (Debian: apt-get install python3-venv)"
    echo "installing the schemas of Kubernetes into $home"
    python3 -m venv --clear "$home"
    "$home/bin/python3" -m pip install --quiet --disable-pip-version-check --requirement "$root/tests/helm/requirements.txt" ||
        fail "pip could not install tests/helm/requirements.txt (see above); is PyPI reachable?"
    cp "$root/tests/helm/requirements.txt" "$home/installed.txt"
fi

for program in promtool redis-server openssl; do
    case $program in promtool) package=prometheus ;; *) package=$program ;; esac
    command -v $program >/dev/null || fail "$program is missing: install it (Debian: apt-get install --no-install-recommends $package)"
done
HELM=$helm KUBECONFORM=$kubeconform PYTHONDONTWRITEBYTECODE=1 exec "$home/bin/python3" "$root/tests/helm/check.py" "$@"
