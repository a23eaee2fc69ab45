#!/usr/bin/env bash
# Sets up each supported Python from nothing, in a copy of the checkout, and has it run a WordCount whose slot is killed.
#
#   scripts/versions_check.sh [VERSION...]     VERSION: 3.12; without any: every version that is supported
#
# An interpreter is python3.12 on the PATH, or one of pyenv. A version without one fails the check.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly SUPPORTED=(3.10 3.11 3.12 3.13 3.14)
readonly DEMO_LIMIT_S=600

# Prints the path of an interpreter of version $1 that runs.
find_interpreter() {
    local candidate
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
        if "$candidate" -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != sys.argv[1])' "$1" 2>/dev/null; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    return 1
}

# Sets up the copy of the checkout in the directory $1 with the interpreter $2, and runs the demo there.
check_copy() {
    cd "$1" && PYTHON=$2 bash scripts/setup.sh && .venv/bin/python -m pip check &&
        . scripts/java_env.sh && timeout "$DEMO_LIMIT_S" .venv/bin/flinkplus demo
}

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
failed=()
[ $# -gt 0 ] || set -- "${SUPPORTED[@]}"
for version in "$@"; do
    if ! interpreter=$(find_interpreter "$version"); then
        echo "Python $version: no interpreter found on the PATH or in pyenv" >&2
        failed+=("$version")
        continue
    fi
    echo "Python $version: $interpreter"
    mkdir "$copy/$version"
    git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents --target-directory "$copy/$version"
    if (check_copy "$copy/$version" "$interpreter"); then
        echo "Python $version: passed"
    else
        echo "Python $version: failed" >&2
        failed+=("$version")
    fi
    rm -rf "${copy:?}/$version"
done
[ ${#failed[@]} = 0 ] || { echo "not passed: ${failed[*]}" >&2; exit 1; }
