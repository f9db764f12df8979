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

compiler() { # whether there is one; as root it is installed where there is apt-get
    command -v cc >/dev/null && echo '#include <stdio.h>' | cc -E - >/dev/null 2>&1 && return
    [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null || return
    echo "installing a C compiler"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get -q install -y build-essential || { apt-get -q update && apt-get -q install -y build-essential; }; } >"$log" 2>&1
}

why_skipped() { # of the output of the native tests: each test that was skipped, and its reason
    awk '/^== / { name = $2; told = 0; before = "" }
         /^skip / { print "    SKIPPED " name ": " substr($0, 6); told = 1 }
         /^[0-9]+ passed.* [1-9][0-9]* skipped/ && name && !told {
             print "    SKIPPED " name ": " (match($0, /skipped: /) ? substr($0, RSTART + 9) : before)
         }
         /^[0-9]+ passed/ { name = "" }
         { before = $0 }' "$1"
}

native() { # what is written in C; every failure is shown, of the rest only what was skipped and the sum
    local name="native (make -C native check)" began=$EPOCHREALTIME
    if ! compiler; then
        printf '  %-34s SKIPPED: no C compiler; install one (Debian: apt-get install build-essential)\n' "$name" | tee -a "$summary"
        return
    fi
    if ! make -C native -j"$(nproc)" check >"$log" 2>&1; then
        cat "$log"
        printf '  %-34s FAILED (%s)\n' "$name" "$(seconds "$began")"
        exit 1
    fi
    printf '  %-34s ok (%s): %s\n' "$name" "$(seconds "$began")" "$(grep -E '^[0-9]+ passed' "$log" | tail -n 1)" | tee -a "$summary"
    why_skipped "$log" | tee -a "$summary"
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
native
tests "unit, property, contract (pytest)" tests --ignore tests/e2e -q
first=$(tail -n 1 "$log")
tests "end to end (pytest)" tests/e2e
last=$(tail -n 1 "$log")

echo
cat "$summary"
echo "  without the cluster: $first"
echo "$last"
