#!/bin/sh
# Runs every test in a separate simulated host, and prints the totals at the end. OUT and PYTHON come from the Makefile.
# ONLY='pool_test async_test' runs only those (make check ONLY=...). WHICH=quick leaves out the long tests, WHICH=long runs only these.
# Most tests of the library wait more than they compute, so they run in parallel, as do tests under the virtual clock; those that measure shares
# of real time do not.
here=$(cd "$(dirname "$0")" && pwd)
OUT=$(cd "$OUT" && pwd)
SYMBOLS="$here/../symbols"
ASAN_OPTIONS=detect_leaks=0 # handles of destroyed objects stay, as programs do use them
limit=${SANITIZE:+300} # a sanitizer makes all a good deal slower
export OUT SYMBOLS ASAN_OPTIONS

count() { # status and name of a test: its sum, from the last line of its output
    line=$(tail -n 1 "$log")
    p=$(expr "$line" : '\([0-9]*\) passed') || p=0
    s=$(expr "$line" : '.* \([0-9]*\) skipped') || s=0
    f=$(expr "$line" : '.* \([0-9]*\) failed') || f=0
    [ "$1" -eq 0 ] || [ "$f" -gt 0 ] || { echo "$2 ended with status $1" >>"$log"; f=1; }
    # Including a report of a child, of which the test does not know.
    ! grep -qE 'Sanitizer|: runtime error: ' "$log" || { echo "$2: the sanitizer reported an error, above" >>"$log"; f=$((f + 1)); }
    echo "$p $f $s" >>"$work/sums"
}

run() { # name, command ...
    name=$1
    shift
    SIMGPU_DIR="$work/$kind/$name" # a fresh host with two cards
    export SIMGPU_DIR
    mkdir -p "$SIMGPU_DIR"
    cp "$here/simgpu/cards.json" "$SIMGPU_DIR/cards.json"
    log="$work/$kind.$name.log"
    echo "== $name" >"$log"
    began=$(date +%s)
    timeout "${limit:-120}" "$@" >>"$log" 2>&1
    status=$?
    took=$(($(date +%s) - began))
    count $status "$name"
    [ $took -lt 5 ] || echo "     took $took s" >>"$log"
    flock "$work/sums" cat "$log" # in one piece
}

# A separate container in the host, with a part of both cards. The library is preloaded by path; the driver is found as usual.
# Scripts preload the library into the programs that they start.
LIBFRACTILE="$OUT/interposer/libfractile.so"
SLICE="$OUT/slice/fractile-slice"
DRIVER="$OUT/simgpu"
CARD_A=GPU-00000000-0000-4000-8000-000000000001 CARD_B=GPU-00000000-0000-4000-8000-000000000002
export LIBFRACTILE SLICE DRIVER CARD_A CARD_B

contained() { # name, command ...
    FRACTILE_DIR="$work/$kind/$1/fractile"
    export FRACTILE_DIR
    mkdir -p "$FRACTILE_DIR"
    [ ! -x "$SLICE" ] || "$SLICE" create "$FRACTILE_DIR" --card "$CARD_A=1GiB,context=256MiB" --card "$CARD_B=1GiB,context=100MiB" >/dev/null
    run "$@"
}

# A sanitizer's runtime has to be loaded first.
case $SANITIZE in
address) RUNTIME=$(cc -print-file-name=libasan.so) ;;
thread) RUNTIME=$(cc -print-file-name=libtsan.so) ;;
undefined) RUNTIME=$(cc -print-file-name=libubsan.so) ;;
*) RUNTIME= ;;
esac
export RUNTIME

one() { # path of a test
    name=$(basename "$1")
    kind=$(basename "$(dirname "$1")")
    case $1 in
    */shares/*.py) run "shares_$name" "$PYTHON" "$1" ;;
    */runtime/*.py) run "$name" env PYTHONPATH="$here/interposer" "$PYTHON" "$1" ;;
    */interposer/*.py) contained "$name" "$PYTHON" "$1" ;;
    *.py) run "$name" "$PYTHON" "$1" ;;
    */interposer/*_unit_test) contained "$name" "$1" ;;
    */interposer/* | */runtime/*) contained "$name" env LD_LIBRARY_PATH="$DRIVER" LD_PRELOAD="$RUNTIME $LIBFRACTILE" "$1" ;;
    *) run "$name" "$1" ;;
    esac
}

if [ -n "$1" ]; then # from below
    one "$1"
    exit
fi

work=$(mktemp -d)
export work
trap 'rm -rf "$work"' EXIT
: >"$work/sums"
: >"$work/beside"

skip() { # path, reason
    echo "== $(basename "$1")"
    echo "skip $(basename "$1"): $2"
    echo "0 0 1" >>"$work/sums"
    return 1
}

chosen() { # name of the file
    [ -z "$ONLY" ] && return 0
    for one in $ONLY; do [ "$(basename "$1")" = "$one" ] && return 0; done
    return 1
}

may_run() { # under this sanitizer
    [ -e "$1" ] && chosen "$1" && wanted "$1" || return 1
    case $SANITIZE:$1 in
    address:*/interposer/dl_test | thread:*/interposer/dl_test) skip "$1" "the sanitizer stands before dlsym itself and forbids RTLD_DEEPBIND" ;;
    thread:*/interposer/launch_test) skip "$1" "too slow under the thread sanitizer: its times do not hold" ;;
    thread:*/arbiter/schedule_test) skip "$1" "one thread and minutes of arithmetic: nothing for the thread sanitizer to find" ;;
    address:*/simgpu/*.py | address:*/arbiter/*.py | address:*/interposer/*.py | thread:*/simgpu/*.py | thread:*/arbiter/*.py | thread:*/interposer/*.py)
        skip "$1" "an interpreter without the sanitizer cannot load what has it"
        ;;
    undefined:*/load_elf_test.py | undefined:*/load_way_test.py) skip "$1" "it looks at the library as it is shipped" ;;
    esac
}

long() { # takes more than ten seconds on two cores; shares/quick_test.py, stress_test.py and stress_policies_test.py are quick all the same
    case $1 in
    */arbiter/enemy_test.py | */arbiter/stuck_test.py | */arbiter/apart_test.py | */arbiter/ring_test.py | */arbiter/hostile_test.py) ;;
    */shares/gpu_test.py | */silent_thread_test | */launch_test | */blocked_streams_test | */ptx_compiler_test.py | */stress_wild_test.py | */badinput_test.py) ;;
    *) return 1 ;;
    esac
}

wanted() { # by WHICH
    case $WHICH in
    quick) ! long "$1" ;;
    long) long "$1" ;;
    esac
}

parallel() { # waits much, or runs under the virtual clock, and measures no shares of real time
    case $1 in
    */arbiter/stuck_test.py | */arbiter/hidden_test.py | */arbiter/waiting_graphs_test.py | */arbiter/terms_test.py | */arbiter/ring_test.py | */arbiter/schedule_test) ;;
    */blocked_streams_test | */copies_test | */launch_test | */silent_thread_test | */turn_ahead_test | */share_time_test.py | */rude_test.py) return 1 ;;
    */interposer/* | */runtime/*) ;;
    *) return 1 ;;
    esac
}

# runtime: the stand-in for the CUDA runtime, linked by a program.
for test in "$OUT"/tests/clock/*_test "$OUT"/tests/arbiter/*_test "$OUT"/tests/simgpu/*_test \
    "$here"/simgpu/*_test.py "$here"/arbiter/*_test.py "$here"/fetch/*_test.py "$here"/make/*_test.py "$here"/shares/*_test.py \
    "$OUT"/tests/interposer/*_test "$OUT"/tests/runtime/*_test "$here"/runtime/layout_test.py "$here"/interposer/*_test.py; do
    may_run "$test" || continue
    if parallel "$test"; then echo "$test" >>"$work/beside"; else one "$test"; fi
done
tr '\n' '\0' <"$work/beside" | xargs -0 -r -n 1 -P "$(nproc)" sh "$here/run.sh"

awk '{ p += $1; f += $2; s += $3 } END { print p + 0 " passed, " f + 0 " failed, " s + 0 " skipped"; exit f > 0 }' "$work/sums"
