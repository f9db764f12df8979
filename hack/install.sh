#!/usr/bin/env bash
# Creates .venv and installs Fractile into it, with the exact versions of constraints.txt. It can be rerun after a kill:
# the stamp is written last, and a broken virtual environment is recreated.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    echo "make install: $1" >&2
    exit 1
}

python=${PYTHON:-python3}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

command -v "$python" >/dev/null || fail "$python not found; install Python 3.11 or newer (Debian: apt-get install python3 python3-venv)"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version) is too old; install Python 3.11 or newer and run make install PYTHON=python3.11"

began=$SECONDS
printf '  %-34s ' "Python packages into .venv"
if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    "$python" -c 'import ensurepip, venv' 2>/dev/null || {
        echo failed
        fail "Python's venv module is missing; install it (Debian: apt-get install python3-venv)"
    }
    "$python" -m venv --clear .venv
fi
if ! .venv/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt >"$log" 2>&1; then
    echo failed
    cat "$log" >&2
    fail "pip could not install the packages; its message is above"
fi
touch .venv/.installed
echo "done ($((SECONDS - began)) s)"
