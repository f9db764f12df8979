"""``aliyun.com/gpu-mem`` and ``aliyun.com/gpu-count``: memory sharing as the gpushare design of 2019 defined it.

Names and meanings: evidence/gpushare.md#names, evidence/gpushare.md#rules. A unit of gpu-mem is a MiB or a GiB, one for
the whole cluster. ``gpu-count`` asks for whole, unshared cards; both may be used on one node, by different containers.
Upstream puts a whole pod on one card; here containers of a pod may use different cards when no single card has room,
and ``ALIYUN_COM_GPU_MEM_IDX`` then lists them ("0,2").
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from fractile.dialects.dialect import Advertised, ContainerResponse, Facts, ParsedRequest, ResourceKind
from fractile.dialects.shares import parts_or_cards, spread_evenly
from fractile.dialects.wishes import NONE, Wishes
from fractile.model.card import Card
from fractile.model.placement import Placement, Slice
from fractile.model.refusal import Code, Refusal
from fractile.model.request import ContainerRequest, PodRequest, Request, peak_amount
from fractile.model.units import WHOLE, CardUUID, MemoryUnit, MiB

MEMORY = "aliyun.com/gpu-mem"
COUNT = "aliyun.com/gpu-count"

IDX = "ALIYUN_COM_GPU_MEM_IDX"  # index of the card on its node, as NVML counts
POD = "ALIYUN_COM_GPU_MEM_POD"  # the pod's total request, in units
CONTAINER = "ALIYUN_COM_GPU_MEM_CONTAINER"  # the container's request, in units
DEV = "ALIYUN_COM_GPU_MEM_DEV"  # the card's total memory, in units
ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"  # "false" when bound, "true" when the container has its card
ASSUME_TIME = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"  # nanoseconds since 1970
VISIBLE = "NVIDIA_VISIBLE_DEVICES"


class Aliyun:
    """The dialect; it has no state."""

    name = "aliyun"
    resources: Mapping[str, ResourceKind] = MappingProxyType(
        {MEMORY: ResourceKind.PRIMARY, COUNT: ResourceKind.PRIMARY}
    )
    wishes: frozenset[str] = frozenset()

    def read(self, annotations: Mapping[str, str]) -> Wishes | Refusal:
        return NONE

    def ask(self, amounts: Mapping[str, int], *, unit: MemoryUnit, wishes: Wishes) -> ParsedRequest | Refusal:
        if len(amounts) > 1:
            return Refusal(
                Code.MALFORMED,
                f"asks for both {MEMORY} and {COUNT}; ask for memory on one card or for whole cards",
            )
        if MEMORY in amounts:
            memory = amounts[MEMORY]
            return ParsedRequest(MEMORY, memory, Request(memory=MiB(memory * unit)))
        count = amounts[COUNT]
        return ParsedRequest(COUNT, count, Request(count=count, cores=WHOLE, exclusive=True))

    def together(self, containers: Sequence[ContainerRequest]) -> Refusal | None:
        return None

    def advertise(self, cards: Sequence[Card], unit: MemoryUnit, slots: int) -> tuple[Advertised, ...]:
        return (
            Advertised(MEMORY, {c.uuid: c.memory // unit for c in cards}),
            Advertised(COUNT, {c.uuid: 1 for c in cards}),
        )

    def ids_wanted(self, resource: str, asked: ContainerRequest, slices: Sequence[Slice]) -> dict[CardUUID, int]:
        return spread_evenly(asked.amount, slices)

    def slices_held(
        self,
        asked: ContainerRequest,
        held: Mapping[CardUUID, int],
        cards: Sequence[Card],
        given: Sequence[Slice] = (),
    ) -> tuple[Slice, ...]:
        return parts_or_cards(asked, held, cards)

    def torn(self, resource: str, held: Mapping[CardUUID, int]) -> bool:
        return resource == MEMORY and len(held) > 1

    def answer(
        self, resource: str, held: Mapping[CardUUID, int], *, cards: Sequence[Card], unit: MemoryUnit, facts: Facts
    ) -> ContainerResponse:
        mine = [c for c in cards if c.uuid in held]
        environment = {VISIBLE: ",".join(c.uuid for c in mine)}
        if resource == MEMORY:
            environment |= _place(mine, unit)
            environment |= {POD: str(facts.pod_amount), CONTAINER: str(sum(held.values()))}
        return ContainerResponse(environment)

    def annotate(
        self, request: PodRequest, placement: Placement, *, cards: Sequence[Card], unit: MemoryUnit, now_ns: int
    ) -> dict[str, str]:
        by_memory = [c for c in request.containers if c.resource == MEMORY]
        if not by_memory:
            return {}
        used = {s.card for c in by_memory for s in placement.slices_of(c.container)}
        return _place([c for c in cards if c.uuid in used], unit) | {
            POD: str(peak_amount(by_memory)),
            ASSUME_TIME: str(now_ns),
            ASSIGNED: "false",
        }

    def assigned(self, request: PodRequest) -> dict[str, str]:
        return {ASSIGNED: "true"} if any(c.resource == MEMORY for c in request.containers) else {}


def _place(cards: Sequence[Card], unit: MemoryUnit) -> dict[str, str]:
    return {
        IDX: ",".join(str(c.index) for c in cards),
        DEV: ",".join(str(c.memory // unit) for c in cards),
    }
