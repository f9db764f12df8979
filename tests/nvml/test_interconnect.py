"""How cards are joined, read from NVML; machines are described by what NVML answers, link by link."""

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from fractile.model.card import Card
from fractile.model.interconnect import Interconnect
from fractile.model.units import CardUUID, MiB
from fractile.nvml.interconnect import Interconnects, read
from fractile.nvml.library import Handle, Library

SWITCH = "00000000:C0:00.0"
MESH = {  # the cube mesh of the DGX-1: the other ends of each card's six links
    0: (1, 2, 3, 3, 4, 4),
    1: (0, 2, 2, 3, 5, 5),
    2: (0, 1, 1, 3, 3, 6),
    3: (0, 0, 1, 2, 2, 7),
    4: (0, 0, 5, 6, 7, 7),
    5: (1, 1, 4, 6, 6, 7),
    6: (2, 4, 5, 5, 7, 7),
    7: (3, 4, 4, 5, 6, 6),
}


class Refused(Exception):
    """NVML_ERROR_*."""


class FakeNvml:
    """Answers as NVML does. ``ends``: for each card where its links end, a card or a bus id; None: it is down."""

    NVMLError = Refused
    NVMLLibraryMismatchError = Refused

    def __init__(
        self,
        ends: dict[int, tuple[int | str | None, ...]],
        *,
        level: Callable[[int, int], int] = lambda a, b: 50,
        p2p: bool = True,
        lost: tuple[int, ...] = (),
        silent: tuple[str, ...] = (),
        version: int = 3,
    ) -> None:
        self.ends = ends
        self.level = level
        self.p2p = p2p
        self.lost = lost
        self.silent = silent
        self.version = version
        self.reads = 0

    def __getattribute__(self, name: str) -> object:
        if name in object.__getattribute__(self, "silent"):
            return self._refuse
        return object.__getattribute__(self, name)

    def _refuse(self, *_: object) -> object:
        raise Refused(name := "not supported", name)

    def nvmlDeviceGetCount(self) -> int:
        self.reads += 1
        return len(self.ends)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle:
        if index in self.lost:
            raise Refused("GPU is lost")
        return ctypes.c_void_p(index + 1)

    def nvmlDeviceGetUUID(self, handle: Handle) -> str:
        return f"GPU-{number(handle)}"

    def nvmlDeviceGetPciInfo(self, handle: Handle) -> SimpleNamespace:
        return SimpleNamespace(busId=bus(number(handle)))

    def nvmlDeviceGetNvLinkState(self, device: Handle, link: int) -> int:
        ends = self.ends[number(device)]
        if link >= len(ends):
            raise Refused("invalid argument")
        return int(ends[link] is not None)

    def nvmlDeviceGetNvLinkVersion(self, device: Handle, link: int) -> int:
        self.nvmlDeviceGetNvLinkState(device, link)
        return self.version

    def nvmlDeviceGetNvLinkRemotePciInfo(self, device: Handle, link: int) -> SimpleNamespace:
        end = self.ends[number(device)][link]
        return SimpleNamespace(busId=(bus(end)[4:].lower() if isinstance(end, int) else str(end)).encode())

    def nvmlDeviceGetP2PStatus(self, device1: Handle, device2: Handle, p2pIndex: int) -> int:
        return 0 if self.p2p and p2pIndex == 2 else 5

    def nvmlDeviceGetTopologyCommonAncestor(self, device1: Handle, device2: Handle) -> int:
        return self.level(number(device1), number(device2))

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Handle) -> int:
        return 4

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: Handle) -> int:
        return 16

    def nvmlDeviceGetMemoryAffinity(self, handle: Handle, nodeSetSize: int, scope: int) -> list[int]:
        return [0, 2] if number(handle) else [2]


def bus(index: int) -> str:
    return f"00000000:{index + 7:02X}:00.0"


def number(handle: Handle) -> int:
    return (handle.value or 0) - 1


def found(fake: FakeNvml) -> dict[int, Interconnect]:
    nvml = cast(Library, fake)
    handles = {n: fake.nvmlDeviceGetHandleByIndex(n) for n in fake.ends if n not in fake.lost}
    return read(nvml, handles)


def test_links_between_cards_are_counted_pair_by_pair() -> None:
    rows = [side.peers for side in found(FakeNvml(dict(MESH), p2p=False)).values()]
    assert rows[0] == "X NV1 NV1 NV2 NV2 SYS SYS SYS"
    assert rows[7] == "SYS SYS SYS NV1 NV2 NV1 NV2 X"


def test_links_to_a_switch_serve_every_card_behind_it() -> None:
    rows = [s.peers for s in found(FakeNvml(dict.fromkeys(range(3), (SWITCH,) * 18), version=6)).values()]
    assert rows == ["X NV18 NV18", "NV18 X NV18", "NV18 NV18 X"]


def test_a_link_that_is_down_is_not_counted() -> None:
    fake = FakeNvml({0: (SWITCH, SWITCH, None), 1: (SWITCH,) * 3, 2: (None,) * 3})
    assert [s.peers for s in found(fake).values()] == ["X NV2 SYS", "NV2 X SYS", "SYS SYS X"]


def test_a_driver_that_does_not_tell_the_other_end_is_asked_whether_nvlink_works() -> None:
    fake = FakeNvml({0: (1, 1), 1: (0, 0)}, silent=("nvmlDeviceGetNvLinkRemotePciInfo",))
    assert found(fake)[0].peers == "X NV2"
    fake.p2p = False
    assert found(fake)[0].peers == "X SYS"


@pytest.mark.parametrize(
    ("level", "word"), [(0, "PIX"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS"), (60, "?")]
)
def test_levels_of_pcie_have_the_names_that_nvidia_smi_gives_them(level: int, word: str) -> None:
    assert found(FakeNvml({0: (), 1: ()}, level=lambda a, b: level))[0].peers == f"X {word}"


def test_generations_lanes_and_the_numa_node_are_told() -> None:
    fake = FakeNvml({0: (1,), 1: (0,)}, version=6)
    assert found(fake) == {
        0: Interconnect("X NV1", nvlink=4, pcie=4, lanes=16, numa=1),
        1: Interconnect("NV1 X", nvlink=4, pcie=4, lanes=16, numa=65),
    }


def test_what_an_old_driver_does_not_know_stays_unknown() -> None:
    everything = tuple(n for n in dir(FakeNvml) if n.startswith("nvmlDevice") and n[10:] not in ("GetCount", "GetUUID"))
    kept = ("nvmlDeviceGetHandleByIndex",)
    fake = FakeNvml({0: (1,), 1: (0,)}, silent=tuple(n for n in everything if n not in kept))
    assert found(fake)[0] == Interconnect("X ?")


def card(index: int) -> Card:
    return Card(CardUUID(f"GPU-{index}"), index, "A100", MiB(1))


def test_cards_are_read_once_and_again_when_one_comes_back() -> None:
    fake = FakeNvml({0: (1,), 1: (0,), 2: ()}, lost=(1,))
    known = Interconnects(cast(Library, fake))
    assert known.joined(card(0)).interconnect == Interconnect("X ? SYS", nvlink=2, pcie=4, lanes=16, numa=1)
    assert known.joined(card(2)).interconnect is not None
    assert fake.reads == 1
    fake.lost = ()
    assert known.joined(card(1)).interconnect is not None
    joined = known.joined(card(0)).interconnect
    assert joined is not None
    assert joined.peers == "X NV1 SYS"
    assert fake.reads == 2


def test_a_card_that_is_lost_does_not_change_what_is_known_of_the_others() -> None:
    fake = FakeNvml({0: (1,), 1: (0,)})
    known = Interconnects(cast(Library, fake))
    before = known.joined(card(0))
    fake.lost = (1,)
    assert known.joined(card(0)) == before
    assert fake.reads == 1
    known.forget()
    assert known.joined(card(0)) != before
