"""The kernel's lines about XIDs are read; what others write there, or have the kernel write, is not taken for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.errors import WireError
from fractile.wire.foreign.kernel_log import XidLine, place, xid_line

PLACE = (0, 5, 0)


@pytest.mark.parametrize(
    ("text", "pid"),
    [
        ("NVRM: Xid (PCI:0000:05:00): 31, pid=1234, name=python, Ch 00000010, intr 00000000. MMU Fault", 1234),
        ("NVRM: Xid (PCI:0000:05:00): 31, pid=1234, Ch 00000010", 1234),
        ("NVRM: Xid (PCI:0000:05:00.0): 31, pid=1234, name=pid=9, x", 1234),
        ("NVRM: Xid (PCI:00000000:05:00): 31, pid='<unknown>', name=<unknown>, Ch 00000010", None),
        ("NVRM: Xid (PCI:0000:05:00): 31, Ch 00000010, name=a, pid=77", None),
        ("NVRM: Xid (PCI:0000:05:00): 31", None),
    ],
    ids=["new", "without a name", "a name like a pid", "unknown", "a pid further behind", "nothing more"],
)
def test_the_drivers_lines_name_card_number_and_process(text: str, pid: int | None) -> None:
    assert xid_line(f"4,1339,5140900,-;{text}".encode()) == XidLine(PLACE, 31, pid)


@pytest.mark.parametrize(
    "record",
    [
        b"12,1339,5140900,-;NVRM: Xid (PCI:0000:05:00): 31, pid=1, name=x",
        b"30,1339,5140900,-;NVRM: Xid (PCI:0000:05:00): 31, pid=1, name=x",
        b"4,1339,5140900,-;a: NVRM: Xid (PCI:0000:05:00): 31, pid=1, name=x",
        b"6,1339,5140900,-;NVRM: Xid (PCI:[123]: segfault at 0 ip 0 sp 0 error 4",
        b"4,1339,5140900,-;NVRM: Xid (PCI:0000:05:00): 31000000, pid=1",
        b" NVRM: Xid (PCI:0000:05:00): 31, pid=1",
        b"NVRM: Xid (PCI:0000:05:00): 31, pid=1",
        b"4,1339;NVRM: Xid (PCI:0000:05:00): 31, pid=1",
        b"",
    ],
    ids=[
        "user",
        "daemon",
        "further behind",
        "a program of that name",
        "huge",
        "a property",
        "no head",
        "half",
        "empty",
    ],
)
def test_other_lines_say_nothing(record: bytes) -> None:
    assert xid_line(record) is None


@given(st.binary(max_size=200), st.booleans())
def test_no_bytes_break_the_reader(noise: bytes, headed: bool) -> None:
    found = xid_line(b"4,1,1,-;NVRM: Xid (PCI:" + noise if headed else noise)
    assert found is None or found.xid < 10**6


def test_a_card_is_at_the_same_place_for_nvml_and_the_kernel() -> None:
    assert place("00000000:05:00.0") == place("0000:05:00") == PLACE
    assert place("0001:AF:1f") == (1, 0xAF, 0x1F)
    with pytest.raises(WireError):
        place("05:00.0")
