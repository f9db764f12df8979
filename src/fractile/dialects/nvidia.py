"""``nvidia.com/gpu``, ``gpumem``, ``gpumem-percentage``, ``gpucores``, ``priority``: parts of cards as HAMi names them.

Names and meanings: evidence/hami.md#names. ``gpu`` is the number of cards, and its device ids are slots of cards. The
other names are amounts on each card; they have no device ids and are left to the extender. Without an amount a card is
whole and unshared. HAMi's webhook adds ``gpu: 1`` where only an amount is given; kubelet would never call the plugin
for such a container, so it is refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from fractile.dialects.dialect import Advertised, ContainerResponse, Facts, ParsedRequest, ResourceKind
from fractile.dialects.shares import by_card, spread_evenly
from fractile.dialects.wishes import NAMED, Wishes, overlong, words
from fractile.model.card import Card
from fractile.model.placement import Placement, Slice
from fractile.model.refusal import Code, Refusal
from fractile.model.request import ANY, ContainerRequest, PodRequest, Request, Role, Selector
from fractile.model.units import WHOLE, CardUUID, MemoryUnit, MiB, Percent

GPU = "nvidia.com/gpu"
MEMORY = "nvidia.com/gpumem"  # MiB of each card
PERCENTAGE = "nvidia.com/gpumem-percentage"  # of each card's memory
CORES = "nvidia.com/gpucores"  # percent of each card's time
PRIORITY = "nvidia.com/priority"  # 0: served first; 1: after those, the default

USE_TYPE = "nvidia.com/use-gputype"  # parts of model names, case-insensitive, comma-separated
NOUSE_TYPE = "nvidia.com/nouse-gputype"
USE_UUID = "nvidia.com/use-gpuuuid"
NOUSE_UUID = "nvidia.com/nouse-gpuuuid"
CARD_POLICY = "hami.io/gpu-scheduler-policy"  # a list; the first known policy in it counts
NODE_POLICY = "hami.io/node-scheduler-policy"

NODE = "hami.io/vgpu-node"
TIME = "hami.io/vgpu-time"  # seconds since 1970
BIND_TIME = "hami.io/bind-time"  # the same
PHASE = "hami.io/bind-phase"  # "allocating" when bound, "success" when the containers have their cards
DEVICES = "hami.io/vgpu-devices-allocated"

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
MEMORY_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT_"  # followed by the card's index among the visible ones
CORES_LIMIT = "CUDA_DEVICE_SM_LIMIT"

SLOTS = 10  # of a card, unless the agents' flag says otherwise; HAMi's deviceSplitCount

_TYPE = "NVIDIA"  # HAMi's name for these cards in DEVICES
_READ = (USE_TYPE, NOUSE_TYPE, USE_UUID, NOUSE_UUID, CARD_POLICY, NODE_POLICY)
_CARD_POLICIES = {"binpack": "binpack", "spread": "spread", "topology-aware": "topology"}
_NODE_POLICIES = {"binpack": "binpack", "spread": "spread"}
POLICIES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {CARD_POLICY: _CARD_POLICIES, NODE_POLICY: _NODE_POLICIES}
)  # the allowed words of the two annotations
_NS = 10**9


class NvidiaDialect:
    """The dialect. ``slots``: how many containers one card serves through these names."""

    name = "nvidia"
    resources: Mapping[str, ResourceKind] = MappingProxyType(
        {GPU: ResourceKind.PRIMARY} | dict.fromkeys((MEMORY, PERCENTAGE, CORES, PRIORITY), ResourceKind.AMOUNT)
    )
    wishes: frozenset[str] = frozenset(_READ)

    def read(self, annotations: Mapping[str, str]) -> Wishes | Refusal:
        refusal = overlong(annotations, _READ)
        if refusal is not None:
            return refusal
        selector = _selector(annotations)
        if isinstance(selector, Refusal):
            return selector
        return Wishes(
            selector=selector,
            policy=_first(annotations.get(CARD_POLICY, ""), _CARD_POLICIES),
            node_policy=_first(annotations.get(NODE_POLICY, ""), _NODE_POLICIES),
        )

    def ask(self, amounts: Mapping[str, int], *, unit: MemoryUnit, wishes: Wishes) -> ParsedRequest | Refusal:
        count = amounts.get(GPU, 0)
        if not count:
            named = " and ".join(sorted(amounts))
            return _malformed(f"asks for {named} without {GPU}; write {GPU}: 1, or as many cards as it needs")
        request = _request(count, amounts)
        if isinstance(request, Refusal):
            return request
        return ParsedRequest(GPU, count, _with_wishes(request, wishes, amounts))

    def together(self, containers: Sequence[ContainerRequest]) -> Refusal | None:
        """Kubelet passes an init container's ids on in any order (evidence/kubelet.md#choice-of-ids). A later container
        that needs fewer ids than are left may get any of them, so it must need the same on each card as the init
        container."""
        left, before = 0, set[tuple[int, int, int, bool]]()
        for c in containers:
            alike = not before - {_each(c.request)}
            if left > max(c.request.count, 1) and not alike:
                return _malformed(
                    f"container {c.container} asks for {c.amount} {GPU} after an init container with {left}, and for "
                    "other amounts on each card: kubelet would choose the cards; let it ask for as many cards, or for "
                    "the same amounts"
                )
            if c.role is Role.INIT:
                left, before = max(left, c.request.count), before | {_each(c.request)}
            else:
                left = max(left - c.request.count, 0)
        return None

    def advertise(self, cards: Sequence[Card], unit: MemoryUnit, slots: int) -> tuple[Advertised, ...]:
        return (Advertised(GPU, {c.uuid: slots for c in cards}, distinct=True),)

    def ids_wanted(self, resource: str, asked: ContainerRequest, slices: Sequence[Slice]) -> dict[CardUUID, int]:
        return spread_evenly(asked.amount, slices)

    def slices_held(
        self,
        asked: ContainerRequest,
        held: Mapping[CardUUID, int],
        cards: Sequence[Card],
        given: Sequence[Slice] = (),
    ) -> tuple[Slice, ...]:
        return by_card(asked.request, held, cards)

    def torn(self, resource: str, held: Mapping[CardUUID, int]) -> bool:
        return False

    def answer(
        self, resource: str, held: Mapping[CardUUID, int], *, cards: Sequence[Card], unit: MemoryUnit, facts: Facts
    ) -> ContainerResponse:
        mine = [c for c in cards if c.uuid in held]
        return ContainerResponse({VISIBLE: ",".join(c.uuid for c in mine)} | dict(_limits(mine, dict(facts.amounts))))

    def annotate(
        self, request: PodRequest, placement: Placement, *, cards: Sequence[Card], unit: MemoryUnit, now_ns: int
    ) -> dict[str, str]:
        mine = _ours(request)
        if not mine:
            return {}
        now = str(now_ns // _NS)
        return {
            NODE: placement.node,
            TIME: now,
            BIND_TIME: now,
            PHASE: "allocating",
            DEVICES: _devices(mine, placement),
        }

    def assigned(self, request: PodRequest) -> dict[str, str]:
        return {PHASE: "success"} if _ours(request) else {}


def _ours(request: PodRequest) -> list[ContainerRequest]:
    return [c for c in request.containers if c.resource == GPU]


# ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _request(count: int, amounts: Mapping[str, int]) -> Request | Refusal:
    """The request by HAMi's rules: memory in MiB overrides a percentage; without either, all of the card's memory."""
    for name in (PERCENTAGE, CORES):
        if amounts.get(name, 0) > WHOLE:
            return _malformed(f"asks for {amounts[name]} {name}; it is a percentage, write a number from 1 to {WHOLE}")
    memory, percentage, cores = (amounts.get(name, 0) for name in (MEMORY, PERCENTAGE, CORES))
    everything = cores == WHOLE and percentage in (0, WHOLE)
    if not memory and (everything or not (percentage or cores)):
        return Request(count=count, cores=WHOLE, exclusive=True, slots=1)
    return Request(
        count=count,
        memory=MiB(memory),
        cores=Percent(cores),
        memory_percent=Percent(0 if memory else percentage or WHOLE),
        cores_limit=Percent(cores),
        slots=1,
    )


def _with_wishes(request: Request, wishes: Wishes, amounts: Mapping[str, int]) -> Request:
    return msgspec.structs.replace(
        request,
        priority=1 if amounts.get(PRIORITY, 1) == 0 else 0,
        selector=wishes.selector,
        policy=wishes.policy,
        node_policy=wishes.node_policy,
    )


def _each(request: Request) -> tuple[int, int, int, bool]:
    return request.memory, request.memory_percent, request.cores, request.exclusive


def _selector(annotations: Mapping[str, str]) -> Selector | Refusal:
    found: dict[str, tuple[str, ...]] = {}
    for name in (USE_TYPE, NOUSE_TYPE, USE_UUID, NOUSE_UUID):
        found[name] = tuple(words(annotations.get(name, "")))
        if len(found[name]) > NAMED:
            kind = "models" if name in (USE_TYPE, NOUSE_TYPE) else "cards"
            return _malformed(f"the annotation {name} names {len(found[name]):,} {kind}; the most is {NAMED}")
    selector = Selector(
        models=found[USE_TYPE],
        not_models=found[NOUSE_TYPE],
        cards=tuple(map(CardUUID, found[USE_UUID])),
        not_cards=tuple(map(CardUUID, found[NOUSE_UUID])),
    )
    return ANY if selector == ANY else selector


def _first(text: str, known: Mapping[str, str]) -> str:
    """The first known word; HAMi's other words (numa, mutex) have no effect on how cards are chosen here."""
    return next((known[word] for word in map(str.lower, words(text)) if word in known), "")


def _malformed(what: str) -> Refusal:
    return Refusal(Code.MALFORMED, what)


# ── variables and annotations ────────────────────────────────────────────────────────────────────────────────────────


def _limits(cards: Sequence[Card], amounts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """HAMi's variables, for people and programs that read them; the enforced limits are in the limits page."""
    for place, card in enumerate(cards):
        memory = amounts.get(MEMORY, 0) or card.memory * min(amounts.get(PERCENTAGE, 0), WHOLE) // WHOLE
        if memory:
            yield f"{MEMORY_LIMIT}{place}", f"{memory}m"
    if amounts.get(CORES, 0):
        yield CORES_LIMIT, str(amounts[CORES])


def _devices(containers: Sequence[ContainerRequest], placement: Placement) -> str:
    """HAMi's text: "UUID,TYPE,MiB,percent:" for each card, ";" after each container, init containers first. Containers
    after the last one with cards are left out."""
    last = {False: -1, True: -1}
    texts: dict[tuple[bool, int], str] = {}
    for c in containers:
        app = c.role is Role.APP
        slices = placement.slices_of(c.container)
        texts[app, c.index] = "".join(f"{s.card},{_TYPE},{s.memory},{s.cores}:" for s in slices)
        last[app] = max(last[app], c.index)
    return "".join(f"{texts.get((app, i), '')};" for app in (False, True) for i in range(last[app] + 1))
