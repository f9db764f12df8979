"""How the cards of this machine are joined, queried from NVML once for all of them.

NVLink is counted link by link: each active one names the device at its other end. If that is another card, the link
belongs to that pair. If it is not one of the cards (an NVSwitch, or a driver that does not report it), the link serves
every other card that has such links too and for which NVML reports NVLink as working. Failure rule: what the driver
does not report is unknown ("?", 0 or -1); a card is never left out because of it.
"""

from collections.abc import Mapping

import msgspec

from fractile.model.card import Card
from fractile.model.interconnect import SELF, UNKNOWN, Interconnect, groups
from fractile.model.units import CardUUID
from fractile.nvml.library import Handle, Library, perhaps, text

_LINKS = 36  # NVML_NVLINK_MAX_LINKS of the newest binding; a card with fewer returns an error for the others
_ON = 1  # NVML_FEATURE_ENABLED
_P2P_NVLINK, _P2P_OK = 2, 0  # NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK
_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}  # nvmlGpuTopologyLevel_t; 0: one board
_GENERATIONS = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}  # NVML_NVLINK_VERSION_*
_NUMA_WORDS, _NODE_SCOPE = 16, 0  # 64 NUMA nodes each; NVML_AFFINITY_SCOPE_NODE
_BUS = 12  # the last characters of a bus id, "0000:07:00.0": its domain has 4 or 8 digits


class _Side(msgspec.Struct, frozen=True):
    """One card: how many of its links end at which other card, and how many at no card."""

    handle: Handle
    to: dict[int, int]
    elsewhere: int


class Interconnects:
    """Remembers what was read until a new card appears, or ``forget``."""

    def __init__(self, nvml: Library) -> None:
        self._nvml = nvml
        self._known: dict[CardUUID, tuple[int, Interconnect]] = {}
        self._groups: dict[int, int] = {}

    def forget(self) -> None:
        self._known = {}

    def group(self, card: Card) -> int | None:
        """The group of cards that it reaches over NVLink, as last read."""
        return self._groups.get(card.index)

    def joined(self, card: Card) -> Card:
        """The card with its ``interconnect``."""
        index, found = self._known.get(card.uuid, (-1, None))
        if index != card.index:
            self._read()
            _, found = self._known.get(card.uuid, (-1, None))
        return msgspec.structs.replace(card, interconnect=found)

    def _read(self) -> None:
        nvml = self._nvml
        handles: dict[int, Handle] = {}
        uuids: dict[int, CardUUID] = {}
        for index in range(perhaps(nvml, nvml.nvmlDeviceGetCount) or 0):
            handle = perhaps(nvml, lambda i=index: nvml.nvmlDeviceGetHandleByIndex(i))
            uuid = None if handle is None else perhaps(nvml, lambda h=handle: nvml.nvmlDeviceGetUUID(h))
            if handle is not None and uuid is not None:
                handles[index], uuids[index] = handle, CardUUID(text(uuid))
        rows = read(nvml, handles)
        self._known = {uuids[index]: (index, found) for index, found in rows.items()}
        self._groups = groups(rows)


def read(nvml: Library, handles: Mapping[int, Handle]) -> dict[int, Interconnect]:
    """How each card is joined to the others, by index."""
    places = {_place(nvml, handle): index for index, handle in handles.items()}
    sides = {index: _side(nvml, handle, places) for index, handle in handles.items()}
    size = 1 + max(handles, default=-1)
    return {
        index: Interconnect(
            peers=" ".join(_word(nvml, sides, index, other) for other in range(size)),
            nvlink=_generation(nvml, handle),
            pcie=perhaps(nvml, lambda h=handle: nvml.nvmlDeviceGetMaxPcieLinkGeneration(h)) or 0,
            lanes=perhaps(nvml, lambda h=handle: nvml.nvmlDeviceGetMaxPcieLinkWidth(h)) or 0,
            numa=_numa(nvml, handle),
        )
        for index, handle in handles.items()
    }


def _side(nvml: Library, handle: Handle, places: Mapping[str, int]) -> _Side:
    to: dict[int, int] = {}
    elsewhere = 0
    for link in range(_LINKS):
        if perhaps(nvml, lambda n=link: nvml.nvmlDeviceGetNvLinkState(handle, n)) != _ON:
            continue
        remote = perhaps(nvml, lambda n=link: nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, n))
        other = None if remote is None else places.get(text(remote.busId)[-_BUS:].casefold())
        if other is None:
            elsewhere += 1
        else:
            to[other] = to.get(other, 0) + 1
    return _Side(handle, to, elsewhere)


def _word(nvml: Library, sides: Mapping[int, _Side], index: int, other: int) -> str:
    if index == other:
        return SELF
    if other not in sides:
        return UNKNOWN
    a, b = sides[index], sides[other]
    direct = min(a.to.get(other, 0), b.to.get(index, 0))
    shared = min(a.elsewhere, b.elsewhere)
    if not direct and shared:
        status = perhaps(nvml, lambda: nvml.nvmlDeviceGetP2PStatus(a.handle, b.handle, _P2P_NVLINK))
        direct = shared if status == _P2P_OK else 0
    if direct:
        return f"NV{direct}"
    level = perhaps(nvml, lambda: nvml.nvmlDeviceGetTopologyCommonAncestor(a.handle, b.handle))
    return UNKNOWN if level is None else _LEVELS.get(level, UNKNOWN)


def _generation(nvml: Library, handle: Handle) -> int:
    for link in range(_LINKS):
        version = perhaps(nvml, lambda n=link: nvml.nvmlDeviceGetNvLinkVersion(handle, n))
        if version:
            return _GENERATIONS.get(version, max(_GENERATIONS.values()))
    return 0


def _numa(nvml: Library, handle: Handle) -> int:
    """The lowest NUMA node of the card's memory affinity."""
    words = perhaps(nvml, lambda: nvml.nvmlDeviceGetMemoryAffinity(handle, _NUMA_WORDS, _NODE_SCOPE)) or ()
    return next((64 * n + (w & -w).bit_length() - 1 for n, w in enumerate(words) if w), -1)


def _place(nvml: Library, handle: Handle) -> str:
    info = perhaps(nvml, lambda: nvml.nvmlDeviceGetPciInfo(handle))
    return "" if info is None else text(info.busId)[-_BUS:].casefold()
