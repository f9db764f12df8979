"""``tencent.com/vcuda-core`` and ``tencent.com/vcuda-memory``: parts of cards as gpu-manager defined them.

Names and meanings: evidence/gpu-manager.md#names. 100 of vcuda-core are one card. Below 100, vcuda-core is a percentage
of one card's time and vcuda-memory counts blocks of 256 MiB of its memory; a container must ask for both. A multiple of
100 means whole cards, whatever memory is asked for. The ids of vcuda-core name the cards; those of vcuda-memory are
only counted. ``LD_LIBRARY_PATH`` is not set, since it would replace the image's own. Cards are named by NVML's index
where gpu-manager uses the minor number; the two differ only on machines whose driver has lost cards.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from fractile.dialects.dialect import Advertised, ContainerResponse, Facts, ParsedRequest, ResourceKind
from fractile.dialects.shares import parts_or_cards, spread_evenly
from fractile.dialects.wishes import Wishes
from fractile.model.card import Card
from fractile.model.placement import Placement, Slice
from fractile.model.refusal import Code, Refusal
from fractile.model.request import ContainerRequest, PodRequest, Request, Role
from fractile.model.units import WHOLE, CardUUID, MemoryUnit, MiB, Percent

CORE = "tencent.com/vcuda-core"
MEMORY = "tencent.com/vcuda-memory"

LIMIT = "tencent.com/vcuda-core-limit"  # of the pod: percent that its containers never exceed; at least their share
TIME = "tencent.com/predicate-time"  # nanoseconds since 1970
NODE = "tencent.com/predicate-node"
INDEX = "tencent.com/predicate-gpu-idx-"  # followed by the container's index in the pod: its cards
ASSIGNED = "tencent.com/gpu-assigned"  # "false" when bound, "true" when the containers have their cards
DEVICE = "tencent.com/vcuda-device"  # for the runtime: the device files
VISIBLE = "NVIDIA_VISIBLE_DEVICES"

CARD = 100  # of CORE
BLOCK = 256  # MiB; one of MEMORY
_MIB = 2**20


class Tencent:
    """The dialect; it has no state."""

    name = "tencent"
    resources: Mapping[str, ResourceKind] = MappingProxyType({CORE: ResourceKind.PRIMARY, MEMORY: ResourceKind.COUNTED})
    wishes: frozenset[str] = frozenset({LIMIT})

    def read(self, annotations: Mapping[str, str]) -> Wishes | Refusal:
        return Wishes(limit=annotations.get(LIMIT))

    def ask(self, amounts: Mapping[str, int], *, unit: MemoryUnit, wishes: Wishes) -> ParsedRequest | Refusal:
        core, blocks = amounts.get(CORE, 0), amounts.get(MEMORY, 0)
        if core >= CARD:
            if core % CARD:
                return _malformed(
                    f"asks for {core} {CORE}; above {CARD}, only multiples of {CARD} are allowed: whole cards"
                )
            return ParsedRequest(CORE, core, Request(count=core // CARD, cores=WHOLE, exclusive=True))
        if not (core and blocks):
            return _malformed(f"asks for {core} {CORE} and {blocks} {MEMORY}; a part of a card needs both")
        limit = _limit(wishes.limit, core)
        if isinstance(limit, Refusal):
            return limit
        return ParsedRequest(CORE, core, Request(memory=MiB(blocks * BLOCK), cores=Percent(core), cores_limit=limit))

    def together(self, containers: Sequence[ContainerRequest]) -> Refusal | None:
        """Kubelet passes an init container's ids on in any order (evidence/kubelet.md#choice-of-ids). If they are from
        several cards, a later container that needs fewer ids than are left would get parts of several cards."""
        cards = left = 0
        for c in containers:
            if cards > 1 and c.amount < left:
                return Refusal(
                    Code.MALFORMED,
                    f"container {c.container} asks for {c.amount} {CORE} after an init container that asks for {left}: "
                    f"kubelet would give it parts of {cards} cards; let the init container ask for no more than this "
                    "container",
                )
            if c.role is Role.INIT:
                cards, left = max(cards, c.request.count), max(left, c.amount)
            else:
                left = max(left - c.amount, 0)
                cards = cards if left else 0
        return None

    def advertise(self, cards: Sequence[Card], unit: MemoryUnit, slots: int) -> tuple[Advertised, ...]:
        return (
            Advertised(CORE, {c.uuid: CARD for c in cards}),
            Advertised(MEMORY, {c.uuid: c.memory // BLOCK for c in cards}),
        )

    def ids_wanted(self, resource: str, asked: ContainerRequest, slices: Sequence[Slice]) -> dict[CardUUID, int]:
        return spread_evenly(asked.amount_of(resource), slices)

    def slices_held(
        self,
        asked: ContainerRequest,
        held: Mapping[CardUUID, int],
        cards: Sequence[Card],
        given: Sequence[Slice] = (),
    ) -> tuple[Slice, ...]:
        return parts_or_cards(asked, held, cards)

    def torn(self, resource: str, held: Mapping[CardUUID, int]) -> bool:
        amounts = held.values()
        return len(held) > 1 if sum(amounts) < CARD else any(amount % CARD for amount in amounts)

    def answer(
        self, resource: str, held: Mapping[CardUUID, int], *, cards: Sequence[Card], unit: MemoryUnit, facts: Facts
    ) -> ContainerResponse:
        mine = [c for c in cards if c.uuid in held]
        blocks = dict(facts.amounts).get(MEMORY, 0)
        return ContainerResponse(
            {VISIBLE: ",".join(c.uuid for c in mine)},
            {
                CORE: str(sum(held.values())),
                MEMORY: str(blocks * BLOCK * _MIB),
                DEVICE: ",".join(f"/dev/nvidia{c.index}" for c in mine),
            },
        )

    def annotate(
        self, request: PodRequest, placement: Placement, *, cards: Sequence[Card], unit: MemoryUnit, now_ns: int
    ) -> dict[str, str]:
        mine = _ours(request)
        if not mine:
            return {}
        index = {c.uuid: c.index for c in cards}
        places = {
            f"{INDEX}{c.index}": ",".join(
                str(i) for i in sorted(index[s.card] for s in placement.slices_of(c.container) if s.card in index)
            )
            for c in mine
            if c.role is Role.APP  # gpu-manager numbers app containers only
        }
        return {TIME: str(now_ns), NODE: placement.node, ASSIGNED: "false", **places}

    def assigned(self, request: PodRequest) -> dict[str, str]:
        return {ASSIGNED: "true"} if _ours(request) else {}


def _ours(request: PodRequest) -> list[ContainerRequest]:
    return [c for c in request.containers if c.resource == CORE]


def _limit(text: str | None, core: int) -> Percent | Refusal:
    """The most that the container may use; without the annotation, its own share."""
    if text is None:
        return Percent(core)
    if not (len(text) <= 3 and text.isascii() and text.isdigit() and core <= int(text) <= CARD):
        return _malformed(f"asks for {core} {CORE}, and {LIMIT} is {text[:20]!r}; write a number from {core} to {CARD}")
    return Percent(int(text))


def _malformed(what: str) -> Refusal:
    return Refusal(Code.MALFORMED, what)
