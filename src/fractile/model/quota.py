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
"""Labels of a node, ours and gpu-admission's; the first one present counts."""

EVERY: Final = "*"  # the name of a limit on cards of all models


class NodePlace(msgspec.Struct, frozen=True):
    """A node's pool and the model name of its cards, from its labels; "" where there is no label."""

    pool: str = ""
    model: str = ""


NOWHERE = NodePlace()


class QuotaLimit(msgspec.Struct, frozen=True):
    """``percent`` of a card: the most that may be held of the models that ``name`` matches."""

    name: str
    percent: int


class NamespaceQuota(msgspec.Struct, frozen=True):
    """What one namespace may use. ``pools`` None: every node. ``limits`` None: any number of cards of every model. If
    there are limits, a model that none of these names may not be used."""

    pools: tuple[str, ...] | None = None
    limits: tuple[QuotaLimit, ...] | None = None


class Quota(msgspec.Struct, frozen=True):
    """The quotas of a cluster by namespace. ``others``: whether namespaces that are not named may use cards.

    ``problem``: why the quotas are unknown; then no namespace gets a card.
    """

    namespaces: dict[str, NamespaceQuota] = {}
    others: bool = True
    problem: str = ""

    @property
    def limits_nobody(self) -> bool:
        return not self.namespaces and self.others and not self.problem


UNLIMITED = Quota()


class QuotaOwner(msgspec.Struct, frozen=True, gc=False):
    """The namespace that a hold counts for, and the class of each container that asked by class."""

    namespace: str = ""
    classes: tuple[tuple[ContainerName, str], ...] = ()


NOBODY = QuotaOwner()


def owner_of(request: PodRequest) -> QuotaOwner:
    """The owner that the pod's hold counts for; equal owners are one object, since there are very many pods."""
    classes = tuple((c.container, c.request.device_class) for c in request.gpus if c.request.device_class)
    return _owner(request.namespace, classes)


@lru_cache(maxsize=4096)
def _owner(namespace: str, classes: tuple[tuple[ContainerName, str], ...]) -> QuotaOwner:
    return QuotaOwner(namespace, classes)
