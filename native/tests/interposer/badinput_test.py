"""Wrong files and full disks: a clear message or a clean refusal, no crash."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import suite
from card_program import CARD, OOM, OUT, PROGRAM, QUOTA, USUAL, WORK, environment, expect_refusal, made, run
from container import SCHEMA, C, Container, put, size

SLICE = OUT / "slice" / "fractile-slice"


def test_a_right_container_works() -> None:
    answer = run(made("right").directory)
    assert answer.status == 0 and answer.said == "", answer
    assert answer.told == {"init": 0, "context": 0, "alloc": 0, "free": 704, "total": 1024, "freed": 0}, answer


# ---- the limits page ----


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


def test_the_advice_to_a_person_mends_a_container_whatever_was_wrong_with_its_files() -> None:
    for name, spoil in (
        ("limits", lambda c: cut(c.limits, 100)),
        ("region", lambda c: cut(c.region, 50)),
        ("no limits", lambda c: c.limits.unlink()),
    ):
        container = made("advice")
        spoil(container)
        advice = re.search(r"by hand: fractile-slice ([^)]*)", run(container.directory).said)
        assert advice, name
        words = advice[1].replace("DIR", str(container.directory)).replace("UUID=AMOUNT", f"{CARD}={QUOTA}").split()
        subprocess.run([SLICE, *words], check=True, capture_output=True)
        assert run(container.directory).told["alloc"] == 0, name


def test_a_region_full_of_garbage_crashes_and_delays_no_process() -> None:
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


def test_a_page_of_garbage_numbers_crashes_no_process() -> None:
    for seed in range(12):
        container = made("numbers")
        chance, data = random.Random(seed), bytearray(container.limits.read_bytes())
        for field in ("memory", "context", "unaccounted"):
            value = chance.choice((0, 1, 511, 2**40, 2**62, 2**63, 2**64 - 1, chance.randrange(2**64)))
            put(data, "limits_card", container.limits_card(0), **{field: value})
        container.limits.write_bytes(data)
        answer = run(container.directory)
        assert answer.status == 0 and answer.told["context"] in (0, OOM), (seed, answer)


def test_a_process_that_overwrites_the_region_crashes_no_other() -> None:
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
        raise suite.Skip("no mount namespaces here")
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


if __name__ == "__main__":
    sys.exit(suite.run(globals()))
