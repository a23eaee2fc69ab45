#!/usr/bin/env bash
# Makes .venv with the pinned dependencies and checks for Java 17+. Says nothing when there is nothing to do.
#
# Never asks a question: what needs root is installed by apt-get when that is possible without asking, else one line says
# what to do. PYTHON=/path/to/python chooses the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly VENV=.venv STAMP=.venv/.setup_stamp JAVA_NOTE=.venv/.java_home
readonly MIN_JAVA=17

fail() {
    echo "setup: $*" >&2
    exit 1
}

# Runs apt-get without asking anything; false when there is no apt-get or no right to use it.
apt_install() {
    command -v apt-get >/dev/null || return 1
    local as_root=()
    if [ "$(id -u)" != 0 ]; then
        sudo -n true 2>/dev/null </dev/null || return 1
        as_root=(sudo -n)
    fi
    echo "setup: installing $* (apt-get)" >&2
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq </dev/null >/dev/null 2>&1 || true
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "$@" </dev/null >/dev/null 2>&1
}

# --- Python -----------------------------------------------------------------------------------------------------------

# Prints the first interpreter that runs and is 3.10 to 3.14, those that `make versions-check` tries.
# Of an active virtual environment it prints the interpreter beneath, since the environment may be the one to replace.
find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python3.10 python3.14; do
        if "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; then
            "$candidate" -c 'import sys; print(sys._base_executable or sys.executable)'
            return
        fi
        [ -z "${PYTHON:-}" ] || fail "PYTHON=$PYTHON is not a Python 3.10 to 3.14 that runs"
    done
    fail "no Python 3.10 to 3.14 found; install one (Debian, Ubuntu: sudo apt-get install python3 python3-venv)"
}

make_venv() {
    local python=$1 version
    "$python" -c 'import ensurepip, venv' 2>/dev/null || {
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        apt_install "python$version-venv" || apt_install python3-venv || true
        "$python" -c 'import ensurepip, venv' 2>/dev/null ||
            fail "$python cannot make virtual environments; run: sudo apt-get install python$version-venv"
    }
    rm -rf "$VENV"
    "$python" -m venv "$VENV"
}

# The stamp changes with the pinned versions, the package's own settings, this script, the interpreter and the directory.
wanted_stamp() {
    { cat requirements.lock pyproject.toml scripts/setup.sh; echo "$1"; pwd; } | sha256sum | cut -d ' ' -f 1
}

# Installs what requirements.lock pins, each file checked against its hash, and the package itself from this directory.
# What has no wheel is built with the pinned setuptools, which therefore goes first.
install_locked() {
    local pip=("$VENV/bin/python" -m pip --quiet --disable-pip-version-check --no-input install)
    awk '/^setuptools==/ { found = 1 } found { print } found && !/\\$/ { exit }' requirements.lock >"$VENV/build.lock"
    "${pip[@]}" --require-hashes --only-binary :all: -r "$VENV/build.lock" </dev/null &&
        "${pip[@]}" --require-hashes --no-build-isolation --use-pep517 -r requirements.lock </dev/null &&
        "${pip[@]}" --no-deps --no-build-isolation --use-pep517 -e . </dev/null
}

setup_python() {
    local python stamp
    python=$(find_python)
    stamp=$(wanted_stamp "$python")
    if [ -x "$VENV/bin/python" ] && [ "$(cat "$STAMP" 2>/dev/null)" = "$stamp" ]; then return; fi
    echo "setup: installing the pinned dependencies into $VENV (some minutes, once)" >&2
    make_venv "$python"
    install_locked || fail "pip could not install the dependencies (its messages are above); run make setup again when that is mended"
    echo "$stamp" >"$STAMP"
}

# --- Java -------------------------------------------------------------------------------------------------------------

# Major version of the given java: 17 of "17.0.15", 8 of "1.8.0_392"; 0 when it does not run.
java_major() {
    local line
    line=$("$1" -version 2>&1 </dev/null | grep -m 1 ' version "') || { echo 0; return; }
    line=${line#*version \"}
    line=${line#1.}
    echo "${line%%[!0-9]*}"
}

# Prints the home of an installed Java that would do, though it is not the one on the PATH.
other_java_home() {
    local java
    for java in /usr/lib/jvm/*/bin/java; do
        if [ -x "$java" ] && [ "$(java_major "$java")" -ge "$MIN_JAVA" ]; then
            dirname "$(dirname "$java")"
            return
        fi
    done
    return 1
}

setup_java() {
    local found=no_java major=0 before
    before=$(cat "$JAVA_NOTE" 2>/dev/null || true)
    rm -f "$JAVA_NOTE"
    if [ -n "${JAVA_HOME:-}" ]; then found=$JAVA_HOME/bin/java; else found=$(command -v java || echo no_java); fi
    [ "$found" = no_java ] || major=$(java_major "$found")
    if [ "$major" -ge "$MIN_JAVA" ]; then return; fi
    if ! other_java_home >"$JAVA_NOTE"; then
        apt_install openjdk-17-jre-headless || apt_install openjdk-21-jre-headless || true
        other_java_home >"$JAVA_NOTE" || {
            rm -f "$JAVA_NOTE"
            [ "$found" = no_java ] && found="there is none" || found="$found is version $major"
            fail "Spark needs Java $MIN_JAVA or newer, $found; run: sudo apt-get install openjdk-17-jre-headless (or openjdk-21-jre-headless)"
        }
    fi
    [ "$before" = "$(cat "$JAVA_NOTE")" ] || echo "setup: using Java of $(cat "$JAVA_NOTE")" >&2
}

setup_python
setup_java
