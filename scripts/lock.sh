#!/usr/bin/env bash
# Resolves pyproject.toml for every supported Python at once into requirements.lock: exact versions, with hashes.
#
#   scripts/lock.sh            keep the versions that are locked, and add, change or drop what pyproject.toml asks for
#   scripts/lock.sh --upgrade  take the newest versions; `--upgrade-package NAME` takes those of one package
#   scripts/lock.sh --check    change nothing; fail when the lock does not fit pyproject.toml, or contradicts itself
#
# Needs uv: .venv/bin has it after `make setup`; otherwise use `pip install uv`. Needs access to the package registry.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly LOCK=requirements.lock

uv=.venv/bin/uv
[ -x "$uv" ] || uv=$(command -v uv) || {
    echo "lock: no uv found; run: pip install uv" >&2
    exit 1
}
oldest=$(sed -n 's/^requires-python = ">=\([0-9.]*\).*/\1/p' pyproject.toml)

# Writes the lock to $1, whose versions are kept where they fit.
resolve() {
    local target=$1
    shift
    "$uv" pip compile --quiet --no-config --universal --python-version "$oldest" --all-extras --generate-hashes \
        --no-annotate --custom-compile-command "make lock" --output-file "$target" "$@" pyproject.toml
}

if [ "${1:-}" = --check ]; then
    fresh=$(mktemp)
    trap 'rm -f "$fresh"' EXIT
    cp "$LOCK" "$fresh"
    resolve "$fresh"
    diff -u "$LOCK" "$fresh" >&2 || { echo "lock: $LOCK does not fit pyproject.toml; run: make lock" >&2; exit 1; }
else
    resolve "$LOCK" "$@"
fi
