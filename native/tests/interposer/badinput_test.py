"""Files that are wrong, disks that are full, programs that are rude: a clear line or a clean refusal, no crash."""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from container import MIB, SCHEMA, C, Container, get, put, size

OUT = Path(os.environ["OUT"])
SIM = OUT / "simgpu"
LIBRARY = OUT / "interposer" / "libfractile.so"
SLICE = OUT / "slice" / "fractile-slice"
WORK = Path(tempfile.mkdtemp(prefix="badinput-"))
CARD = "GPU-00000000-0000-4000-8000-000000000001"
CONTEXT = 256 * MIB
QUOTA = 1024 * MIB
OOM = 2


class Skipped(Exception):
    """This test cannot run here."""


# ---- a program that uses the card, and says what it was answered ----

PROGRAM = """
import ctypes, json, os, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
told = {}
def say(name, value):
    told[name] = value
def init():
    say("init", cuda.cuInit(0))
def context():
    say("context", cuda.cuCtxCreate_v2(ctypes.byref(ctypes.c_void_p()), 0, 0))
def alloc(name="alloc", size=64 << 20):
    pointer = ctypes.c_uint64()
    say(name, cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)))
    return pointer
def info():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    say("free", free.value >> 20), say("total", total.value >> 20)
def free(pointer):
    say("freed", cuda.cuMemFree_v2(pointer))
def finish():
    print(json.dumps(told), flush=True)
"""

USUAL = "init(); context(); p = alloc(); info(); p.value and free(p); finish()"


class Answer:
    def __init__(self, result: subprocess.CompletedProcess[str]) -> None:
        self.status, self.said = result.returncode, result.stderr
        self.told = json.loads(result.stdout.strip().splitlines()[-1]) if result.stdout.strip() else {}

    def __repr__(self) -> str:
        return f"status {self.status}, {self.told}, said {self.said!r}"


def environment(directory: Path, **more: str) -> dict[str, str]:
    return dict(os.environ, FRACTILE_DIR=str(directory), LD_LIBRARY_PATH=str(SIM), LD_PRELOAD=str(LIBRARY), **more)


def run(directory: Path, steps: str = USUAL, *, before: tuple[str, ...] = (), **more: str) -> Answer:
    command = [*before, sys.executable, "-c", PROGRAM + steps]
    env = environment(directory, **more)
    if before:  # only the program itself runs with the library
        preload = env.pop("LD_PRELOAD")
        command = [*before, "env", f"LD_PRELOAD={preload}", sys.executable, "-c", PROGRAM + steps]
    return Answer(subprocess.run(command, env=env, capture_output=True, text=True, timeout=30))


def expect_refusal(directory: Path, *words: str, steps: str = USUAL, before: tuple[str, ...] = ()) -> None:
    """Everything is refused as out of memory, the reason is said once, and the program ends as it wanted to."""
    answer = run(directory, steps, before=before)
    assert answer.status == 0, answer
    assert answer.told["init"] == 0 and answer.told["context"] == OOM, answer
    assert answer.told["alloc"] != 0, answer  # without a context the driver may say that first
    lines = [line for line in answer.said.splitlines() if line]
    assert len(lines) == 1 and lines[0].startswith("fractile: "), answer
    for word in words:
        assert word in lines[0], (word, answer)


def made(name: str, **more: int) -> Container:
    directory = WORK / name
    shutil.rmtree(directory, ignore_errors=True)
    return Container(directory, {CARD: QUOTA}, context=CONTEXT, **more)


def test_a_right_container_works() -> None:
    answer = run(made("right").directory)
    assert answer.status == 0 and answer.said == "", answer
    assert answer.told == {"init": 0, "context": 0, "alloc": 0, "free": 704, "total": 1024, "freed": 0}, answer


# ---- the page of limits ----


def cut(path: Path, length: int) -> None:
    path.write_bytes(path.read_bytes()[:length])


def replaced(path: Path, how: Callable[[Path], object]) -> None:
    path.unlink()
    how(path)


LIMITS: dict[str, tuple[Callable[[Container], object], str]] = {
    "missing": (lambda c: c.limits.unlink(), "is not there"),
    "empty": (lambda c: cut(c.limits, 0), "cut short"),
    "a few bytes": (lambda c: cut(c.limits, 100), "cut short"),
    "short of one byte": (lambda c: cut(c.limits, size("limits") - 1), "cut short"),
    "a directory": (lambda c: replaced(c.limits, Path.mkdir), "limits"),
    "a pipe": (lambda c: replaced(c.limits, os.mkfifo), "limits"),
    "a link to itself": (lambda c: replaced(c.limits, lambda p: p.symlink_to(p)), "limits"),
    "text": (lambda c: c.limits.write_text("memory=1024\n" * 2000), "no page of limits"),
    "zeros": (lambda c: c.limits.write_bytes(bytes(size("limits"))), "no page of limits"),
    "older": (lambda c: c.write(c.limits, "limits", version=SCHEMA.version - 1), "older"),
    "newer": (lambda c: c.write(c.limits, "limits", version=SCHEMA.version + 1), "newer"),
    "of another size": (lambda c: c.write(c.limits, "limits", size=4096), "damaged"),
    "without its end": (lambda c: c.write(c.limits, "limits", end=0), "damaged"),
    "with too many cards": (lambda c: c.write(c.limits, "limits", card_count=C["max_cards"] + 1), "too many cards"),
    "with a card without a name": (lambda c: c.write(c.limits, "limits", card_count=2), "no name"),
    "never finished": (lambda c: c.write(c.limits, "limits", sequence=1), "finished"),
    "of another region": (lambda c: c.write(c.limits, "limits", region_generation=8), "does not belong"),
}


def test_a_wrong_page_of_limits_is_named_and_everything_refused() -> None:
    for name, (spoil, word) in LIMITS.items():
        container = made("limits")
        spoil(container)
        try:
            expect_refusal(container.directory, word)
        except AssertionError as error:
            raise AssertionError(f"limits {name}: {error}") from error


def test_a_page_that_is_put_right_is_taken_without_a_restart() -> None:
    container = made("mended")
    good = container.limits.read_bytes()
    container.write(container.limits, "limits", version=SCHEMA.version + 1)
    mend = f"open({str(container.limits)!r}, 'r+b').write({good[:12]!r}); time.sleep(0.3); "
    steps = "init(); context(); say('first', told['context']); " + mend
    answer = run(container.directory, steps + USUAL)
    assert answer.told["first"] == OOM and answer.told["context"] == 0 and answer.told["alloc"] == 0, answer


def test_a_writer_that_dies_in_the_middle_of_a_change_leaves_the_last_good_quota() -> None:
    container = made("dead-writer")
    steps = (
        "init(); context(); open(%r, 'r+b').write(%r); started = time.time(); "
        "p = alloc(); info(); free(p); say('took', time.time() - started); finish()"
    )
    data = bytearray(container.limits.read_bytes())
    put(data, "limits", sequence=1)
    put(data, "limits_card", container.limits_card(0), memory=0)
    answer = run(container.directory, steps % (str(container.limits), bytes(data)))
    assert (answer.told["alloc"], answer.told["total"]) == (0, 1024) and answer.told["took"] < 1, answer


def test_no_directory_and_a_strange_one_are_told() -> None:
    expect_refusal(WORK / "nowhere", "is not there")
    answer = run(Path("relative/path"))
    assert answer.status == 0 and answer.told["context"] == OOM and "absolute" in answer.said, answer
    answer = run(Path("/" + "x" * 3000))
    assert answer.status == 0 and answer.told["context"] == OOM, answer


# ---- the region ----


REGIONS: dict[str, tuple[Callable[[Container], object], str]] = {
    "missing": (lambda c: c.region.unlink(), "is not there"),
    "without its directory": (lambda c: shutil.rmtree(c.region.parent), "is not there"),
    "empty": (lambda c: cut(c.region, 0), "cut short"),
    "a few bytes": (lambda c: cut(c.region, 50), "cut short"),
    "short of one byte": (lambda c: cut(c.region, len(c.region.read_bytes()) - 1), "size does not fit"),
    "long by a page": (lambda c: c.region.write_bytes(c.region.read_bytes() + bytes(4096)), "size does not fit"),
    "a directory": (lambda c: replaced(c.region, Path.mkdir), "region"),
    "a pipe": (lambda c: replaced(c.region, os.mkfifo), "cut short"),
    "a device": (lambda c: replaced(c.region, lambda p: p.symlink_to("/dev/zero")), "cut short"),
    "a link to itself": (lambda c: replaced(c.region, lambda p: p.symlink_to(p)), "cannot be opened"),
    "zeros": (lambda c: c.region.write_bytes(bytes(len(c.region.read_bytes()))), "is no region"),
    "older": (lambda c: c.write(c.region, "region", version=SCHEMA.version - 1), "older"),
    "newer": (lambda c: c.write(c.region, "region", version=SCHEMA.version + 1), "newer"),
    "with another header": (lambda c: c.write(c.region, "region", header_size=64), "laid out differently"),
    "with other accounts": (lambda c: c.write(c.region, "region", account_size=32), "laid out differently"),
    "without places": (lambda c: c.write(c.region, "region", slot_count=0), "impossible"),
    "with too many places": (lambda c: c.write(c.region, "region", slot_count=0xFFFFFFFF), "impossible"),
    "with too many objects": (lambda c: c.write(c.region, "region", object_count=0xFFFFFFFF), "impossible"),
    "with too many cards": (lambda c: c.write(c.region, "region", card_count=0x10000001), "impossible"),
    "with more places than it holds": (lambda c: c.write(c.region, "region", slot_count=1000), "size does not fit"),
    "of another size": (lambda c: c.write(c.region, "region", size=4096), "size does not fit"),
    "of other limits": (lambda c: c.write(c.region, "region", generation=9), "does not belong"),
}


def test_a_wrong_region_is_named_and_everything_refused() -> None:
    for name, (spoil, word) in REGIONS.items():
        container = made("region")
        spoil(container)
        try:
            expect_refusal(container.directory, word)
        except AssertionError as error:
            raise AssertionError(f"region {name}: {error}") from error


def test_a_region_of_another_number_of_cards_is_refused() -> None:
    container = made("cards")
    two = Container(WORK / "two", {CARD: QUOTA, "GPU-2": QUOTA})
    container.region.write_bytes(two.region.read_bytes())
    expect_refusal(container.directory, "another number of cards")


def test_a_region_full_of_garbage_crashes_nobody_and_holds_nobody_up() -> None:
    for seed in range(20):
        container = made("garbage")
        chance, data = random.Random(seed), bytearray(container.region.read_bytes())
        begin = size("region") if seed % 2 else size("region") - 64
        for at in range(begin, len(data), chance.choice((1, 8, 64))):
            data[at] = chance.choice((0, 0xFF, chance.randrange(256)))
        container.region.write_bytes(data)
        started = time.monotonic()
        answer = run(container.directory)
        assert answer.status == 0 and answer.told["context"] in (0, OOM), (seed, answer)
        assert answer.told["alloc"] in (0, OOM, 201) and answer.told.get("freed", 0) == 0, (seed, answer)
        assert time.monotonic() - started < 10, (seed, "took too long")


def test_a_page_of_garbage_numbers_crashes_nobody() -> None:
    for seed in range(12):
        container = made("numbers")
        chance, data = random.Random(seed), bytearray(container.limits.read_bytes())
        for field in ("memory", "context", "unaccounted"):
            value = chance.choice((0, 1, 511, 2**40, 2**62, 2**63, 2**64 - 1, chance.randrange(2**64)))
            put(data, "limits_card", container.limits_card(0), **{field: value})
        container.limits.write_bytes(data)
        answer = run(container.directory)
        assert answer.status == 0 and answer.told["context"] in (0, OOM), (seed, answer)


def test_somebody_who_scribbles_over_the_region_crashes_nobody() -> None:
    container = made("scribbled")
    steps = """
init(); context()
end = time.time() + 1.5
results = set()
while time.time() < end:
    p = alloc(size=1 << 20)
    results.add(told["alloc"])
    if p.value: results.add(1000 + cuda.cuMemFree_v2(p))
    info()
say("results", sorted(results))
finish()
"""
    command = [sys.executable, "-c", PROGRAM + steps]
    child = subprocess.Popen(
        command, env=environment(container.directory), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    chance, length = random.Random(5), container.region.stat().st_size
    with container.region.open("r+b", buffering=0) as file:
        while child.poll() is None:
            file.seek(chance.randrange(length))
            file.write(bytes([chance.randrange(256)]))
            time.sleep(0.0002)
    out, said = child.communicate(timeout=30)
    assert child.returncode == 0, (child.returncode, said)
    assert set(json.loads(out.splitlines()[-1])["results"]) <= {0, OOM, 201, 1000}, out


# ---- disks ----


def in_its_own_mounts(script: str, directory: Path) -> tuple[str, ...]:
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        raise Skipped("no mount namespaces here")
    return ("unshare", "-m", "sh", "-c", script + ' && exec "$@"', "sh")


def test_a_region_on_a_full_disk_is_told_and_never_a_bus_error() -> None:
    container = made("full")
    length = container.region.stat().st_size
    keep = WORK / "header"
    keep.write_bytes(container.region.read_bytes()[: size("region")])
    shared = container.region.parent
    script = (
        f"mount -t tmpfs -o size=16k none {shared} && cp {keep} {shared}/region && truncate -s {length} {shared}/region"
        f" && {{ head -c 100000 /dev/zero >{shared}/filler 2>/dev/null; true; }}"
    )
    expect_refusal(container.directory, "not wholly on the disk", before=in_its_own_mounts(script, container.directory))


def test_a_region_cannot_be_made_on_a_full_disk() -> None:
    directory = WORK / "no-room"
    directory.mkdir()
    before = in_its_own_mounts(f"mount -t tmpfs -o size=64k none {directory}", directory)
    create = f"{SLICE} create {directory}/c --card {CARD}=512MiB; echo status $?; ls {directory}/c/shared 2>/dev/null"
    result = subprocess.run([*before, "sh", "-c", create], capture_output=True, text=True)
    assert "status 0" not in result.stdout and result.stderr.strip(), result
    assert "region\n" not in result.stdout, "half a region was left"


def test_a_read_only_file_system_is_told() -> None:
    container = made("read-only")
    script = (
        f"mount --bind {container.directory} {container.directory} && mount -o remount,bind,ro {container.directory}"
    )
    expect_refusal(container.directory, "read-only", before=in_its_own_mounts(script, container.directory))


# ---- descriptors ----

CLOSE = "os.closerange(3, 1024); "


def test_a_program_that_closes_all_descriptors_is_counted_as_before() -> None:
    for place in range(4):
        container = made("closed")
        parts = ["init(); ", "context(); ", "p = alloc(); ", "q = alloc('second'); info(); "]
        parts.insert(place, CLOSE)
        answer = run(container.directory, "".join(parts) + CLOSE + "free(p); info(); finish()")
        assert answer.status == 0 and answer.said == "", (place, answer)
        expected = {"init": 0, "context": 0, "alloc": 0, "second": 0, "free": 704, "total": 1024, "freed": 0}
        assert answer.told == expected, (place, answer)


def test_a_program_that_closed_all_descriptors_is_not_taken_for_dead() -> None:
    container = made("alive")
    steps = "init(); context(); p = alloc(); os.closerange(3, 1024); finish(); sys.stdin.read()"
    command = [sys.executable, "-c", PROGRAM + steps]
    holder = subprocess.Popen(
        command, env=environment(container.directory), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout and holder.stdin and json.loads(holder.stdout.readline())["alloc"] == 0
    time.sleep(0.2)
    second = run(container.directory, "init(); context(); p = alloc(); q = alloc('much', 500 << 20); info(); finish()")
    assert (second.told["alloc"], second.told["much"], second.told["free"]) == (0, OOM, 1024 - 2 * (256 + 64)), second
    holder.kill()
    holder.communicate()
    time.sleep(0.1)
    assert run(container.directory, "init(); context(); info(); finish()").told["free"] == 1024 - 256


def test_a_program_without_a_free_descriptor_is_refused_and_served_when_there_is_one() -> None:
    container = made("none-left")
    steps = """
import resource
init()
resource.setrlimit(resource.RLIMIT_NOFILE, (600, 600))
kept = []
try:
    while True: kept.append(os.open("/dev/null", os.O_RDONLY))
except OSError: pass
context()
say("without", told["context"])
for fd in kept: os.close(fd)
time.sleep(0.3)
context(); p = alloc(); finish()
"""
    answer = run(container.directory, steps)
    assert (answer.told["without"], answer.told["context"], answer.told["alloc"]) == (OOM, 0, 0), answer
    assert "no descriptor is left" in answer.said, answer


# ---- forks ----

FORKS = r"""
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
int cuInit(unsigned);
int cuCtxCreate_v2(void **, unsigned, int);
int cuMemAlloc_v2(unsigned long long *, size_t);
static int use(void)
{
    void *context;
    unsigned long long p;
    int r = cuInit(0);
    if (!r) r = cuCtxCreate_v2(&context, 0, 0);
    return r ? r : cuMemAlloc_v2(&p, 64 << 20);
}
static int child_said = -1, before;
__attribute__((constructor)) static void early(void)
{
    int status = -1;
    if (getenv("DO_NOT_FORK")) return;
    if (getenv("USE_BEFORE")) before = use();
    pid_t child = fork();
    if (child == 0) _exit(use());
    waitpid(child, &status, 0);
    child_said = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}
int main(void)
{
    int after = use();
    printf("{\"before\": %d, \"child\": %d, \"after\": %d}\n", before, child_said, after);
    return 0;
}
"""


def forks() -> str:
    source, program = WORK / "forks.c", WORK / "forks-program"
    source.write_text(FORKS)
    subprocess.run(["cc", "-o", str(program), str(source), f"-L{SIM}", "-lcuda"], check=True, env={"PATH": os.defpath})
    return str(program)


def test_a_program_that_forks_in_a_constructor_is_counted_in_both() -> None:
    program = forks()
    for more in ({}, {"USE_BEFORE": "1"}):
        container = made("forks")
        result = subprocess.run(
            [program], env=environment(container.directory, **more), capture_output=True, text=True, timeout=30
        )
        assert result.returncode == 0 and result.stderr == "", result
        told = json.loads(result.stdout)
        assert told["after"] == 0 and told["before"] == 0, told
        # A child of a process that used the driver already may be told by the driver that it cannot.
        assert told["child"] == 0 or (more and told["child"] < 1000), told
        time.sleep(0.1)
        assert run(container.directory, "init(); context(); info(); finish()").told["free"] == 1024 - 256


def test_a_region_that_this_user_may_not_open_is_told() -> None:
    other = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    if shutil.which("setpriv") is None or subprocess.run([*other, "true"], capture_output=True).returncode:
        raise Skipped("no other user here")
    program, container = forks(), made("forbidden")
    container.region.chmod(0o600)
    libraries, host = WORK / "reachable", WORK / "host"  # another user may not reach the build
    for directory in (libraries, host):
        directory.mkdir()
    WORK.chmod(0o755)
    host.chmod(0o777)
    shutil.copy(Path(os.environ["SIMGPU_DIR"]) / "cards.json", host)
    for library in (LIBRARY, SIM / "libcuda.so.1"):
        shutil.copy(library, libraries)
    command = [*other, "env", f"LD_PRELOAD={libraries / LIBRARY.name}", f"LD_LIBRARY_PATH={libraries}", program]
    more = {"FRACTILE_DIR": str(container.directory), "SIMGPU_DIR": str(host), "DO_NOT_FORK": "1"}
    result = subprocess.run(command, env=dict(os.environ, **more), capture_output=True, text=True, timeout=30)
    assert result.returncode == 0 and json.loads(result.stdout)["after"] == OOM, result
    assert "region may not be opened by this user" in result.stderr and result.stderr.count("\n") == 1, result


# ---- limits that are right and strange ----


def with_memory(name: str, memory: int, context: int = CONTEXT) -> Container:
    container = made(name)
    container.write(container.limits, "limits_card", container.limits_card(0), memory=memory, context=context)
    return container


def test_a_quota_of_zero_refuses_everything_quietly() -> None:
    answer = run(with_memory("zero", 0).directory)
    assert answer.status == 0 and answer.told["context"] == OOM and answer.told["alloc"] in (OOM, 201), answer
    answer = run(with_memory("zero", 0, context=0).directory)
    assert answer.status == 0 and answer.told["context"] == OOM, answer


def test_a_quota_below_a_context_refuses_the_context() -> None:
    answer = run(with_memory("small", CONTEXT - 512).directory)
    assert answer.status == 0 and answer.told["context"] == OOM, answer
    answer = run(with_memory("just", CONTEXT).directory, "init(); context(); p = alloc(); info(); finish()")
    assert (answer.told["context"], answer.told["alloc"], answer.told["free"]) == (0, OOM, 0), answer


def test_a_quota_above_the_card_is_the_card() -> None:
    container = with_memory("large", 1 << 40)
    answer = run(container.directory, "init(); context(); p = alloc('most', 3840 << 20); q = alloc(); info(); finish()")
    assert (answer.told["total"], answer.told["most"], answer.told["alloc"], answer.told["free"]) == (
        4096,
        0,
        OOM,
        0,
    ), answer


def test_a_container_without_a_card_or_with_one_that_is_not_here_gets_nothing() -> None:
    for cards in ({}, {"GPU-00000000-0000-4000-8000-00000000dead": QUOTA}):
        directory = WORK / "foreign"
        shutil.rmtree(directory, ignore_errors=True)
        answer = run(Container(directory, cards).directory)
        assert answer.status == 0, answer
        assert answer.told["init"] != 0 or answer.told["context"] != 0, answer


def test_more_processes_than_places_are_refused_and_told() -> None:
    container = made("places", slots=1)
    steps = "init(); context(); finish(); sys.stdin.read()"
    command = [sys.executable, "-c", PROGRAM + steps]
    holder = subprocess.Popen(
        command, env=environment(container.directory), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout and json.loads(holder.stdout.readline())["context"] == 0
    expect_refusal(container.directory, "places")
    holder.kill()
    holder.communicate()
    assert run(container.directory).told["context"] == 0
    assert get(container.region.read_bytes(), "slot", "state", container.slot(0)) in (0, 2)


def main() -> int:
    failed = skipped = 0
    tests = [(name, test) for name, test in globals().items() if name.startswith("test_")]
    for name, test in tests:
        try:
            test()
            print(f"ok   {name}", flush=True)
        except Skipped as reason:
            skipped += 1
            print(f"skip {name}: {reason}", flush=True)
        except Exception as error:
            failed += 1
            print(f"FAIL {name}: {error!r}", flush=True)
    shutil.rmtree(WORK, ignore_errors=True)
    print(f"{len(tests) - failed - skipped} passed, {skipped} skipped, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
