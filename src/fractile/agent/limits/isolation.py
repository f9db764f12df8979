"""Whether a pod's limits are enforced: yes, unless its node or, where permitted, its own annotation says otherwise.

    node label        fractile.dev/isolation=off              every pod of the node; set by an administrator
    node label        cgpu.disable.isolation=true             the same, as the gpushare design spells it
    pod annotation    fractile.dev/isolation: "off"           this pod, but only where its node or its namespace has
    label             fractile.dev/isolation-optional=true    this one: users cannot lift their own limits otherwise

Failure rule: what cannot be read counts as last known; what was never read gives no verdict, and then a new container
is held to its limits and a running one keeps its state.
"""

import asyncio
import logging
import time
from collections.abc import Mapping

import msgspec

from fractile.errors import ApiError, Unreachable, WireError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.pacing import Clock
from fractile.model.units import NodeName
from fractile.wire.kubernetes.objects import Namespace, Node, Pod

ISOLATION = "fractile.dev/isolation"
OPTIONAL = "fractile.dev/isolation-optional"
CGPU = "cgpu.disable.isolation"
CGPU_ENV = "CGPU_DISABLE"

_OFF = "off"
_TRUE = "true"
FRESH = 30.0  # seconds: how late a changed label may be noticed
_AGAIN = 2.0
_PATIENCE = 3.0

log = logging.getLogger(__name__)

Labels = Mapping[str, str]


class IsolationVerdict(msgspec.Struct, frozen=True):
    """``reason`` is for people; with ``off`` false it says why a wish was not followed, or is empty."""

    off: bool = False
    reason: str = ""


def judge(pod: Pod, node: Labels, namespace: Labels) -> IsolationVerdict:
    """What the labels of its node and its namespace mean for the pod."""
    if node.get(ISOLATION) == _OFF:
        return IsolationVerdict(True, f"its node has the label {ISOLATION}={_OFF}")
    if node.get(CGPU) == _TRUE:
        return IsolationVerdict(True, f"its node has the label {CGPU}={_TRUE}")
    if not wishes(pod):
        return IsolationVerdict()
    for labels, whose in ((node, "node"), (namespace, "namespace")):
        if labels.get(OPTIONAL) == _TRUE:
            return IsolationVerdict(True, f"the pod has the annotation {ISOLATION}: {_OFF}, and its {whose} permits it")
    return IsolationVerdict(
        False,
        f"the annotation {ISOLATION}: {_OFF} has no effect: neither node nor namespace is labelled {OPTIONAL}={_TRUE}",
    )


def wishes(pod: Pod) -> bool:
    """Whether the pod asks not to be limited."""
    return (pod.metadata.annotations or {}).get(ISOLATION) == _OFF


class Isolation:
    """Reads the labels, at most once in ``fresh`` seconds."""

    def __init__(
        self, client: KubeClient, *, node: NodeName, fresh: float = FRESH, clock: Clock = time.monotonic
    ) -> None:
        self._client = client
        self._node = node
        self._fresh = fresh
        self._clock = clock
        self._known: dict[str, tuple[float, Labels | None]] = {}  # by path; None: never read

    async def verdict(self, pod: Pod) -> IsolationVerdict | None:
        """None when the labels are not known."""
        node = await self._labels(paths.node(self._node), Node)
        namespace: Labels | None = {}
        if wishes(pod):
            namespace = await self._labels(paths.namespace(pod.metadata.namespace), Namespace)
        return None if node is None or namespace is None else judge(pod, node, namespace)

    async def environment(self) -> dict[str, str]:
        """The variables that the gpushare design sets in containers of a node whose isolation is off."""
        node = await self._labels(paths.node(self._node), Node) or {}
        return {CGPU_ENV: _TRUE} if node.get(CGPU) == _TRUE else {}

    async def _labels(self, path: str, kind: type[Node] | type[Namespace]) -> Labels | None:
        at, labels = self._known.get(path, (float("-inf"), None))
        now = self._clock()
        if now - at < (self._fresh if labels is not None else _AGAIN):
            return labels
        try:
            async with asyncio.timeout(_PATIENCE):
                labels = (await self._client.get(path, kind)).metadata.labels or {}
        except (ApiError, Unreachable, WireError, TimeoutError) as e:
            log.warning("labels not read path=%s reason=%r", path, e)
        self._known[path] = self._clock(), labels
        return labels
