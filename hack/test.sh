#!/usr/bin/env bash
# Runs all checks and tests except the long ones, and stops at the first failure. Arguments:
#   lint   only the checks
#   check  the checks and the quick tests of the Python code, which start no cluster and no C compiler
#   long   only the long tests: in Python those marked `long`, in C those that native/tests/run.sh lists, the fuzzers, and the chart's own cluster
# A check that passes prints one line; the tests show pytest's own output, and its closing line comes last. The types
# are checked while the first tests run, because these leave a core free.
# The tests in C measure shares of time, among other things, so nothing else runs beside them. The tests in Python
# mostly wait, so they run in parallel parts, as several users of one machine would run them; the output of a background
# part is shown when it is done. The end-to-end tests run in two halves in parallel, each with its own cluster.
set -euo pipefail
cd "$(dirname "$0")/.."

bin=.venv/bin
export PYTEST_ADDOPTS="--durations=20 --durations-min=5 ${PYTEST_ADDOPTS:-}" # the slowest tests of each part are printed
logs=$(mktemp -d)
log=$logs/now
summary=$logs/summary
declare -A pid=()

finish() { # interrupts background jobs, as Ctrl-C would, and kills jobs that do not end
    local one tries
    for one in "${pid[@]}"; do kill -INT -- "-$one" 2>/dev/null || true; done
    for one in "${pid[@]}"; do
        for ((tries = 0; tries < 200; tries++)); do
            kill -0 -- "-$one" 2>/dev/null || continue 2
            sleep 0.1
        done
        kill -KILL -- "-$one" 2>/dev/null || true
    done
    rm -rf "$logs"
}
trap finish EXIT
trap 'exit 130' INT TERM

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

behind() { # key, command...: runs it in the background in its own process group, with its output in a file
    local key=$1
    shift
    set -m
    (
        trap - EXIT INT TERM
        began=$EPOCHREALTIME outcome=0
        "$@" >"$logs/$key" 2>&1 </dev/null || outcome=$?
        echo "$outcome $(seconds "$began")" >"$logs/$key.end"
    ) &
    pid[$key]=$!
    set +m
}

ended() { # key: waits for the background job; sets outcome, its status, and took, its time
    wait "${pid[$1]}" || true
    unset "pid[$1]"
    outcome=1 took="killed"
    read -r outcome took <"$logs/$1.end" || true
}

checked() { # key, name: a check that ran in the background
    local key=$1 name=$2 outcome took
    ended "$key"
    if [ "$outcome" -ne 0 ]; then
        cat "$logs/$key"
        printf '  %-34s FAILED (%s)\n' "$name" "$took"
        exit 1
    fi
    printf '  %-34s ok (%s)\n' "$name" "$took" | tee -a "$summary"
}

part() { # key, name: Python tests that ran in the background; shows all their output
    local key=$1 name=$2 outcome took
    ended "$key"
    printf '  %-34s ...\n' "$name"
    cat "$logs/$key"
    if [ "$outcome" -ne 0 ]; then
        exit "$outcome"
    fi
    printf '  %-34s ok (%s)\n' "$name" "$took" >>"$summary"
}

compiler() { # whether a C compiler exists; installs one if run as root and apt-get exists
    command -v cc >/dev/null && echo '#include <stdio.h>' | cc -E - >/dev/null 2>&1 && return
    [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null || return
    echo "installing a C compiler"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get -q install -y build-essential || { apt-get -q update && apt-get -q install -y build-essential; }; } >"$log" 2>&1
}

fuzzing() { # whether clang can build fuzzers; installs it if run as root and apt-get exists
    can_fuzz && return
    [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null || return
    echo "installing clang, for the fuzzers"
    export DEBIAN_FRONTEND=noninteractive
    local wanted=(clang libclang-rt-dev)
    { apt-get -q install -y --no-install-recommends "${wanted[@]}" ||
        { apt-get -q update && apt-get -q install -y --no-install-recommends "${wanted[@]}"; }; } >"$log" 2>&1
    can_fuzz
}

can_fuzz() {
    command -v clang >/dev/null || return
    echo 'int LLVMFuzzerTestOneInput(const char *data, unsigned long size) { return !data && size; }' |
        clang -x c - -fsanitize=fuzzer,address -o "$logs/fuzzer" >/dev/null 2>&1
}

why_skipped() { # output of the native tests: prints each skipped test and its reason
    awk '/^== / { name = $2; told = 0; before = "" }
         /^skip / { print "    SKIPPED " name ": " substr($0, 6); told = 1 }
         /^[0-9]+ passed.* [1-9][0-9]* skipped/ && name && !told {
             print "    SKIPPED " name ": " (match($0, /skipped: /) ? substr($0, RSTART + 9) : before)
         }
         /^[0-9]+ passed/ { name = "" }
         { before = $0 }' "$1"
}

native() { # the tests in C: shows every failure, and otherwise only skipped tests and the totals
    local name="native (make -C native check)" outcome took
    if [ -z "${pid[native]:-}" ]; then
        printf '  %-34s SKIPPED: no C compiler; install one (Debian: apt-get install build-essential)\n' "$name" | tee -a "$summary"
        return
    fi
    ended native
    if [ "$outcome" -ne 0 ]; then
        cat "$logs/native"
        printf '  %-34s FAILED (%s)\n' "$name" "$took"
        exit 1
    fi
    printf '  %-34s ok (%s): %s\n' "$name" "$took" "$(grep -E '^[0-9]+ passed' "$logs/native" | tail -n 1)" | tee -a "$summary"
    why_skipped "$logs/native" | tee -a "$summary"
}

prepare() { # installs the programs that the tests with real components need; without root or Go that fails, and those tests report SKIPPED
    local began=$EPOCHREALTIME
    if "$bin/fractile" prepare; then
        printf '  %-34s ok (%s)\n' "cluster programs" "$(seconds "$began")" | tee -a "$summary"
    else
        printf '  %-34s not available, see above; tests that need them are SKIPPED\n' "cluster programs" | tee -a "$summary"
    fi
}

in_c() { # quick or long: the tests in C, alone
    if compiler; then
        behind native make -C native -j"$(nproc)" check WHICH="$1"
    fi
    native
}

fuzz() { # the fuzzers in C, in the background
    if [ -f native/build/gen/region.h ] && fuzzing; then
        behind fuzz nice -n 10 make -C native fuzz SECONDS=15
    else
        printf '  %-34s SKIPPED: no clang with libFuzzer (Debian: apt-get install clang libclang-rt-dev)\n' "$fuzzers" | tee -a "$summary"
    fi
}

in_python() { # all tests in Python that need no cluster, except the long ones; those that start programs and wait for them in the background
    behind agent "$bin/pytest" tests/agent -m "not long" -q -p no:cacheprovider
    behind programs "$bin/pytest" "${programs[@]}" -m "not long" -q -p no:cacheprovider
    tests "unit, property (pytest)" tests --ignore tests/e2e --ignore tests/agent "${programs[@]/#/--ignore=}" -m "not long" -q
    unit=$(tail -n 1 "$log")
}

end_to_end() { # which: two halves, each with its own cluster
    behind others env FRACTILE_TEST_CLUSTER=e2e-others "$bin/pytest" "${others[@]}" -m "$1" -p no:cacheprovider
    tests "end to end (pytest)" tests/e2e "${others[@]/#/--ignore=}" -m "$1"
    first=$(tail -n 1 "$log")
    part others "end to end, second cluster (pytest)"
    last=$(tail -n 1 "$logs/others")
}

totals() {
    echo
    cat "$summary"
    echo "           no cluster: $unit"
    [ ! -e "$logs/agent" ] || echo "                agent: $(tail -n 1 "$logs/agent")"
    [ ! -e "$logs/programs" ] || echo "             programs: $(tail -n 1 "$logs/programs")"
    echo "        first cluster: $first"
    echo "       second cluster: $last"
}

fuzzers="fuzzers in C (make -C native fuzz)"
programs=(tests/charts tests/contract tests/main tests/versions)
others=(tests/e2e/local/test_{cluster,chaos,demos,install_scheduler}.py tests/e2e/placing/test_{class_controllers,classes,policies,quota,webhook}.py)

if [ "${1:-}" = long ]; then
    prepare
    in_c long
    fuzz
    tests "contract, programs (pytest)" tests --ignore tests/e2e -m long -q
    unit=$(tail -n 1 "$log")
    [ -z "${pid[fuzz]:-}" ] || checked fuzz "$fuzzers"
    end_to_end long
    check "chart (make test-chart)" make test-chart
    totals
    exit 0
fi

check "format (ruff)" "$bin/ruff" format --check --quiet .
check "style (ruff)" "$bin/ruff" check --quiet .
check "rings (import-linter)" "$bin/lint-imports"
if [ "${1:-}" = check ]; then
    behind types "$bin/pyright"
    slow=(tests/e2e tests/agent "${programs[@]}")
    FRACTILE_QUICK=1 tests "unit, property (pytest)" tests "${slow[@]/#/--ignore=}" -m "not slow and not long" -q
    checked types "types (pyright)"
    echo
    cat "$summary"
    exit 0
fi
check "links of the pages (sphinx)" make docs
if [ "${1:-}" = lint ]; then
    check "types (pyright)" "$bin/pyright"
    exit 0
fi
prepare
in_c quick                                                                                   # tests in Python use its build
[ ! -d native/build/simgpu ] || behind foreign make -C native --no-print-directory programs # these tests load libraries and mostly wait
behind types nice -n 10 "$bin/pyright"
in_python
checked types "types (pyright)"
[ -z "${pid[foreign]:-}" ] || checked foreign "third-party programs (make programs)"
! grep -s '^SKIPPED' "$logs/foreign" | sed 's/^/    /' || true
part agent "unit, agent (pytest)"
part programs "contract, programs, chart (pytest)"
end_to_end "not long"
totals
echo "  \`make test-long\` runs the long tests."
