"""Who is behind an XID: by the kernel log, which may be late, torn, flooded, lost or full of lies."""

import asyncio
import os
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from fractile.agent.devices import xid_attribution as module
from fractile.agent.devices.xid_attribution import XidAttribution
from fractile.model.units import PodUID

A, B = "00000000:05:00.0", "00000000:06:00.0"
OWNERS = {11: PodUID("one"), 22: PodUID("two")}


def line(pid: int | str, *, bus: str = "0000:05:00", xid: int = 31, priority: int = 4) -> bytes:
    return f"{priority},7,99,-;NVRM: Xid (PCI:{bus}): {xid}, pid={pid}, name=x, Ch 1\n SUBSYSTEM=pci\n".encode()


class Log:
    """A pipe in place of /dev/kmsg, and the time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.out, self._in = os.pipe()
        os.set_blocking(self.out, False)
        self.failures: list[OSError] = []

    def write(self, data: bytes) -> None:
        os.write(self._in, data)

    def end(self) -> None:
        os.close(self._in)
        self._in = -1

    def read(self, descriptor: int, size: int) -> bytes:
        if self.failures:
            raise self.failures.pop()
        return os.read(descriptor, size)

    def close(self) -> None:
        if self._in >= 0:
            self.end()


@pytest.fixture
def kernel() -> Generator[Log]:
    log = Log()
    yield log
    log.close()


def following(log: Log) -> XidAttribution:
    made = XidAttribution(OWNERS.get, clock=lambda: log.now, read=log.read)
    made.follow(log.out)
    return made


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0.005)


async def test_each_line_answers_for_one_event_of_its_card_and_number_in_order(kernel: Log) -> None:
    who = following(kernel)
    for pid, bus, xid in (
        (11, "0000:05:00", 31),
        (22, "0000:05:00", 31),
        (22, "0000:06:00", 31),
        (11, "0000:05:00", 13),
    ):
        kernel.write(line(pid, bus=bus, xid=xid))
    await settle()
    assert [who.take(A, 31) for _ in range(3)] == ["one", "two", None]
    assert (who.take(B, 31), who.take(B, 13), who.take(A, 13)) == ("two", None, "one")
    who.close()


async def test_a_line_without_a_known_process_still_answers_for_its_event(kernel: Log) -> None:
    who = following(kernel)
    for pid in ("'<unknown>'", 33, 22):
        kernel.write(line(pid))
    await settle()
    assert [who.take(A, 31) for _ in range(3)] == [None, None, "two"]
    who.close()


async def test_what_programs_write_there_is_not_believed(kernel: Log) -> None:
    who = following(kernel)
    kernel.write(line(11, priority=12))
    kernel.write(b"\xff\x00;,,,;\n" * 20 + line(22))
    await settle()
    assert [who.take(A, 31) for _ in range(2)] == ["two", None]
    who.close()


async def test_an_old_line_is_not_taken_for_a_new_event(kernel: Log) -> None:
    who = following(kernel)
    kernel.write(line(11))
    await settle()
    kernel.now += module._KEPT + 1  # pyright: ignore[reportPrivateUsage]
    assert who.take(A, 31) is None
    who.close()


async def test_an_overrun_costs_what_was_lost_and_no_more(kernel: Log) -> None:
    who = following(kernel)
    kernel.failures.append(BrokenPipeError())
    kernel.write(line(11))
    await settle()
    assert who.take(A, 31) == "one"
    who.close()


@pytest.mark.parametrize("how", ["end", "error"])
async def test_a_log_that_ends_or_fails_is_given_up(kernel: Log, how: str) -> None:
    who = following(kernel)
    if how == "end":
        kernel.end()
    else:
        kernel.failures.append(OSError(5, "gone"))
        kernel.write(b"x\n")
    await until(lambda: not who.following)
    assert who.take(A, 31) is None
    who.close()


async def test_a_flood_leaves_the_others_their_turn_and_is_remembered_in_part(kernel: Log) -> None:
    asked: list[int] = []

    def one_record(descriptor: int, size: int) -> bytes:
        asked.append(size)
        return line(11)

    who = XidAttribution(OWNERS.get, clock=lambda: kernel.now, read=one_record)
    who.follow(kernel.out)
    kernel.write(b"x")
    await asyncio.sleep(0.05)
    assert len(asked) == module._AT_ONCE  # pyright: ignore[reportPrivateUsage]
    await until(lambda: len(asked) > 300)
    taken = 0
    while who.take(A, 31):
        taken += 1
    assert taken == module._MOST  # pyright: ignore[reportPrivateUsage]
    who.close()


async def test_no_log_and_a_plain_file_are_said_and_are_no_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for path in (tmp_path / "none", tmp_path / "plain"):
        (tmp_path / "plain").write_bytes(line(11))
        who = XidAttribution(OWNERS.get)
        who.open(path)
        assert not who.following
        who.close()
    assert caplog.text.count("kernel log not read") == 2


async def test_only_what_comes_from_now_on_counts(tmp_path: Path) -> None:
    who = XidAttribution(OWNERS.get)
    kmsg = Path("/dev/kmsg")
    if not os.access(kmsg, os.R_OK):
        pytest.skip("/dev/kmsg cannot be read here")
    who.open(kmsg)
    assert who.following
    await settle()
    who.close()
    assert not who.following


def test_a_bus_id_that_is_none_is_nobodys() -> None:
    assert XidAttribution(OWNERS.get).take("", 31) is None
