#!/bin/sh
# Makes a host of one card and a container with a part of it for the benchmarks, and runs them; OUT comes from the Makefile.
work=$(mktemp -d)
arbiter=
trap '[ -z "$arbiter" ] || kill "$arbiter"; rm -rf "$work"' EXIT
SIMGPU_DIR=$work FRACTILE_DIR=$work/fractile LD_LIBRARY_PATH=$OUT/simgpu
export SIMGPU_DIR FRACTILE_DIR LD_LIBRARY_PATH
card=GPU-00000000-0000-4000-8000-00000000be0c
echo "[{\"uuid\": \"$card\", \"index\": 0, \"model\": \"NVIDIA A100-SXM4-40GB\", \"memoryMiB\": 40960, \"contextMiB\": 256}]" >"$work/cards.json"
"$OUT/slice/fractile-slice" create "$FRACTILE_DIR" --card $card=39GiB,context=256MiB >/dev/null || exit 1
"$OUT/bench/calls" "$OUT/simgpu/libcuda.so.1" "$OUT/interposer/libfractile.so" && one=0 || one=$?

"$OUT/slice/fractile-slice" create "$work/limited" --card $card=32GiB,context=256MiB,cores=50 >/dev/null || exit 1
"$OUT/arbiter/fractile-arbiter" --control "$work/control" "$work/limited" &
arbiter=$!
while [ ! -S "$work/limited/arbiter.sock" ]; do sleep 0.01; kill -0 "$arbiter" || exit 1; done
FRACTILE_DIR=$work/limited "$OUT/bench/calls" "$OUT/simgpu/libcuda.so.1" "$OUT/interposer/libfractile.so" limited && three=0 || three=$?

LD_LIBRARY_PATH=$OUT/bench/null "$OUT/bench/starts" "$OUT/bench/program" "$OUT/bench/idle" "$OUT/interposer/libfractile.so" && two=0 || two=$?
if [ "$one" = 0 ] && [ "$two" = 0 ] && [ "$three" = 0 ]; then
    echo "bench: every figure is within its bar" >&2
else
    echo "bench: figures above their bars, see the lines above that begin with 'bench: missed'; load $(cut -d' ' -f1 /proc/loadavg). The bars are for a machine that does nothing else" >&2
    exit 1
fi
