"""How many cards a namespace may hold, of which models and in which pools of nodes (docs/operate/quota.md).

Cards are counted in percent of one card, so that parts add up exactly.
"""

from functools import lru_cache
from typing import Final

import msgspec

from fractile.model.request import PodRequest
from fractile.model.units import ContainerName

POOL_LABELS: Final = ("fractile.dev/pool", "gaia.tencent.com/gpu-pool", "tkestack.io/gpu-pool")
MODEL_LABELS: Final = ("gaia.tencent.com/gpu-model", "tkestack.io/gpu-model")
"""Labels of a node, ours and gpu-admission's; the first that is there counts."""

EVERY: Final = "*"  # the name of a limit on cards of all models


class NodePlace(msgspec.Struct, frozen=True):
    """What a node's labels say: the pool it is in, and a name for the model of its cards; "" where they say nothing."""

    pool: str = ""
    model: str = ""


NOWHERE = NodePlace()


class QuotaLimit(msgspec.Struct, frozen=True):
    """``percent`` of a card that may be held of the models that ``name`` names."""

    name: str
    percent: int


class NamespaceQuota(msgspec.Struct, frozen=True):
    """What one namespace may use. No pools named (None): every node; no limits (None): cards of every model, any number
    of them. A model that no limit names is not given when there are limits."""

    pools: tuple[str, ...] | None = None
    limits: tuple[QuotaLimit, ...] | None = None


class Quota(msgspec.Struct, frozen=True):
    """The quotas of a cluster by namespace. ``others``: whether namespaces that are not named may use cards.

    ``problem``: why nobody knows what the quotas are; then nobody is given a card.
    """

    namespaces: dict[str, NamespaceQuota] = {}
    others: bool = True
    problem: str = ""

    @property
    def limits_nobody(self) -> bool:
        return not self.namespaces and self.others and not self.problem


UNLIMITED = Quota()


class QuotaOwner(msgspec.Struct, frozen=True, gc=False):
    """Who a hold is counted for: the namespace, and the class by which each container asked that asked by one."""

    namespace: str = ""
    classes: tuple[tuple[ContainerName, str], ...] = ()


NOBODY = QuotaOwner()


def owner_of(request: PodRequest) -> QuotaOwner:
    """Who the pod's hold is counted for; equal owners are one object, since there are tens of thousands of pods."""
    classes = tuple((c.container, c.request.device_class) for c in request.gpus if c.request.device_class)
    return _owner(request.namespace, classes)


@lru_cache(maxsize=4096)
def _owner(namespace: str, classes: tuple[tuple[ContainerName, str], ...]) -> QuotaOwner:
    return QuotaOwner(namespace, classes)
