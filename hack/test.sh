#!/usr/bin/env bash
# Runs every check and every test in order and stops at the first that fails; with the argument "lint", the checks only.
# A check that passes is one line; the tests show pytest's own output, and its closing line is the last of all.
set -euo pipefail
cd "$(dirname "$0")/.."

bin=.venv/bin
log=$(mktemp)
summary=$(mktemp)
trap 'rm -f "$log" "$summary"' EXIT

seconds() { # since $1
    awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f s", b - a }'
}

check() { # name, command...
    local name=$1 began=$EPOCHREALTIME
    shift
    if "$@" >"$log" 2>&1; then
        printf '  %-34s ok (%s)\n' "$name" "$(seconds "$began")" | tee -a "$summary"
    else
        printf '  %-34s FAILED (%s): %s\n' "$name" "$(seconds "$began")" "$*"
        cat "$log"
        exit 1
    fi
}

tests() { # name, pytest arguments...
    local name=$1 began=$EPOCHREALTIME colour=no outcome=0
    shift
    [ -t 1 ] && colour=yes
    printf '  %-34s ...\n' "$name"
    "$bin/pytest" --color="$colour" "$@" 2>&1 | tee "$log" || outcome=$?
    if [ "$outcome" -ne 0 ]; then
        exit "$outcome"
    fi
    printf '  %-34s ok (%s)\n' "$name" "$(seconds "$began")" >>"$summary"
}

check "format (ruff)" "$bin/ruff" format --check --quiet .
check "style (ruff)" "$bin/ruff" check --quiet .
check "rings (import-linter)" "$bin/lint-imports"
check "types (pyright)" "$bin/pyright"
if [ "${1:-}" = lint ]; then
    exit 0
fi
# What the tests of the real components need. Without root or Go it cannot be had: those tests then say SKIPPED and why.
began=$EPOCHREALTIME
if "$bin/fractile" prepare; then
    printf '  %-34s ok (%s)\n' "cluster programs" "$(seconds "$began")" | tee -a "$summary"
else
    printf '  %-34s not available, see above; tests that need them are SKIPPED\n' "cluster programs" | tee -a "$summary"
fi
tests "unit, property, contract (pytest)" tests --ignore tests/e2e -q
first=$(tail -n 1 "$log")
tests "end to end (pytest)" tests/e2e
last=$(tail -n 1 "$log")

echo
cat "$summary"
echo "  without the cluster: $first"
echo "$last"
