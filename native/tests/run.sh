#!/bin/sh
# Runs every test in a simulated host of its own; ends with the sum. OUT and PYTHON come from the Makefile.
# ONLY='pool_test async_test' runs those alone (make check ONLY=...).
here=$(cd "$(dirname "$0")" && pwd)
OUT=$(cd "$OUT" && pwd)
SYMBOLS="$here/../symbols"
ASAN_OPTIONS=detect_leaks=0 # handles of destroyed objects stay, as programs do use them
limit=${SANITIZE:+300} # a sanitizer makes all a good deal slower
export OUT SYMBOLS ASAN_OPTIONS
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0 skipped=0

host() { # a fresh host with two cards
    SIMGPU_DIR="$work/$1"
    export SIMGPU_DIR
    mkdir -p "$SIMGPU_DIR"
    cp "$here/simgpu/cards.json" "$SIMGPU_DIR/cards.json"
}

count() { # from the last line of the test's output
    line=$(tail -n 1 "$work/log")
    p=$(expr "$line" : '\([0-9]*\) passed') || p=0
    s=$(expr "$line" : '.* \([0-9]*\) skipped') || s=0
    f=$(expr "$line" : '.* \([0-9]*\) failed') || f=0
    [ "$1" -eq 0 ] || [ "$f" -gt 0 ] || { echo "$2 ended with status $1"; f=1; }
    # Also one of a child, of which the test knows nothing.
    ! grep -qE 'Sanitizer|: runtime error: ' "$work/log" || { echo "$2: the sanitizer reported an error, above"; f=$((f + 1)); }
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

run() { # name, command ...
    name=$1
    shift
    host "$name"
    echo "== $name"
    began=$(date +%s)
    timeout "${limit:-120}" "$@" >"$work/log" 2>&1
    status=$?
    took=$(($(date +%s) - began))
    cat "$work/log"
    count $status "$name"
    [ $took -lt 5 ] || echo "     took $took s"
}

# A container of its own in the host: part of both cards. The library is preloaded by path; the driver is found as usual.
# Scripts preload it into the programs that they start.
LIBFRACTILE="$OUT/interposer/libfractile.so"
SLICE="$OUT/slice/fractile-slice"
DRIVER="$OUT/simgpu"
CARD_A=GPU-00000000-0000-4000-8000-000000000001 CARD_B=GPU-00000000-0000-4000-8000-000000000002
export LIBFRACTILE SLICE DRIVER CARD_A CARD_B

contained() { # name, command ...
    FRACTILE_DIR="$work/$1/fractile"
    export FRACTILE_DIR
    mkdir -p "$FRACTILE_DIR"
    [ ! -x "$SLICE" ] || "$SLICE" create "$FRACTILE_DIR" --card "$CARD_A=1GiB,context=256MiB" --card "$CARD_B=1GiB,context=100MiB" >/dev/null
    run "$@"
}

# A sanitizer's runtime wants to be first.
case $SANITIZE in
address) RUNTIME=$(cc -print-file-name=libasan.so) ;;
thread) RUNTIME=$(cc -print-file-name=libtsan.so) ;;
undefined) RUNTIME=$(cc -print-file-name=libubsan.so) ;;
*) RUNTIME= ;;
esac
export RUNTIME

skip() { # name, reason
    echo "== $1"
    echo "skip $1: $2"
    skipped=$((skipped + 1))
}

name() { echo "${1#"$OUT"/tests/}"; }

chosen() { # name of the file
    [ -z "$ONLY" ] && return 0
    for one in $ONLY; do [ "$(basename "$1")" = "$one" ] && return 0; done
    return 1
}

may_run() { # under this sanitizer
    chosen "$1" || return 1
    case $SANITIZE:$1 in
    address:interposer/dl_test | thread:interposer/dl_test) skip "$1" "the sanitizer stands before dlsym itself and forbids RTLD_DEEPBIND" ;;
    thread:interposer/launch_test) skip "$1" "too slow under the thread sanitizer: its times do not hold" ;;
    thread:arbiter/schedule_test) skip "$1" "one thread and minutes of arithmetic: nothing for the thread sanitizer to find" ;;
    *) return 0 ;;
    esac
    return 1
}

script() { # what a sanitizer lets an interpreter load
    chosen "$1" || return 1
    case $SANITIZE in
    address | thread) skip "$(basename "$1")" "an interpreter without the sanitizer cannot load what has it" && return 1 ;;
    undefined)
        case $1 in
        */load_elf_test.py | */load_way_test.py) skip "$(basename "$1")" "it looks at the library as it is shipped" && return 1 ;;
        esac
        [ -e "$1" ]
        ;;
    *) [ -e "$1" ] ;;
    esac
}

for test in "$OUT"/tests/clock/*_test "$OUT"/tests/arbiter/*_test "$OUT"/tests/simgpu/*_test; do ! may_run "$(name "$test")" || run "$(basename "$test")" "$test"; done
for test in "$here"/simgpu/*_test.py "$here"/arbiter/*_test.py; do ! script "$test" || run "$(basename "$test")" "$PYTHON" "$test"; done

for test in "$here"/fetch/*_test.py "$here"/make/*_test.py; do ! chosen "$test" || run "$(basename "$test")" "$PYTHON" "$test"; done
for test in "$here"/shares/*_test.py; do ! chosen "$test" || run "shares_$(basename "$test")" "$PYTHON" "$test"; done

for test in "$OUT"/tests/interposer/*_test; do
    [ -x "$test" ] && may_run "$(name "$test")" || continue
    case $test in
    *_unit_test) contained "$(basename "$test")" "$test" ;;
    *) contained "$(basename "$test")" env LD_LIBRARY_PATH="$DRIVER" LD_PRELOAD="$RUNTIME $LIBFRACTILE" "$test" ;;
    esac
done
# The stand-in for the CUDA runtime, as a program's library.
for test in "$OUT"/tests/runtime/*_test; do ! chosen "$test" || contained "$(basename "$test")" env LD_LIBRARY_PATH="$DRIVER" LD_PRELOAD="$RUNTIME $LIBFRACTILE" "$test"; done
! chosen layout_test.py || run layout_test.py env PYTHONPATH="$here/interposer" "$PYTHON" "$here/runtime/layout_test.py"

for test in "$here"/interposer/*_test.py; do ! script "$test" || contained "$(basename "$test")" "$PYTHON" "$test"; done

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
