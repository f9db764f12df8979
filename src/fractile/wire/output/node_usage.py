"""Usage of nodes: of one in the agent's answer to ``GET /v1/usage``, of all in `fractile top -o json`. Version 1.

Amounts are in bytes, seconds and percent of one card. Unknown fields are null: the driver's figures without NVML,
waiting times without an arbiter, and the container's own figures if its region is unreadable. Programs must accept
fields that they do not know.
"""

from typing import Literal

import msgspec

from fractile.errors import WireError

VERSION = 1
DEFAULT_PORT = 5678  # of the agent, the same as gpu-manager's

Kind = Literal["no-slice", "no-library", "not-in-ledger", "over-ledger", "over-quota", "not-a-pod"]
KINDS: tuple[Kind, ...] = ("no-slice", "no-library", "not-in-ledger", "over-ledger", "over-quota", "not-a-pod")


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of the parts."""


class CardUsage(_Part, frozen=True, kw_only=True):
    """One card: the driver's figures, and what is promised to running containers."""

    uuid: str
    index: int
    model: str
    memory_bytes: int
    pci_bus_id: str = ""
    healthy: bool = True
    used_bytes: int | None = None  # by NVML: all processes and the driver's reserve
    utilization_percent: int | None = None
    processes: int | None = None
    promised_bytes: int = 0
    promised_cores: int = 0
    containers: int = 0


class SliceUsage(_Part, frozen=True, kw_only=True):
    """One container on one card."""

    uuid: str
    index: int | None  # None when the card does not answer
    limit_bytes: int
    cores: int
    cores_limit: int
    used_bytes: int | None = None  # by the container's own ledger
    peak_bytes: int | None = None
    refusals: int | None = None
    driver_bytes: int | None = None  # by NVML, sum of its processes
    utilization_percent: int | None = None  # by NVML, sum of its processes
    share_percent: float | None = None  # of the card's time, held in the last seconds, by the arbiter
    held_seconds: float | None = None  # since the agent started, by the arbiter, like the next two
    waited_seconds: float | None = None
    throttled_seconds: float | None = None
    gpu_seconds: float = 0.0  # since the agent started, by the container's own measurement, like the next
    launches: int = 0
    pids: tuple[int, ...] = ()  # of the host

    @property
    def held_bytes(self) -> int | None:
        """What its processes hold: by the driver if known, else by the ledger."""
        return self.used_bytes if self.driver_bytes is None else self.driver_bytes


class ContainerUsage(_Part, frozen=True, kw_only=True):
    pod_uid: str
    namespace: str
    pod: str
    container: str
    enforced: bool
    processes: int  # live processes in its region
    cards: tuple[SliceUsage, ...]
    problem: str = ""  # why its region cannot be read


class Outside(_Part, frozen=True, kw_only=True):
    """Use of a card that no ledger covers. ``pid`` is 0 for all processes of a container together. ``unseen``: the path
    at which the process does not see its container's file. ``evicted_in_seconds``: the earliest time until the pod is
    evicted, if the use lasts; null if no eviction is known. ``spared``: why the pod stays, the rest of a sentence whose
    subject is the pod."""

    kind: Kind
    card: str
    since: float  # seconds since 1970
    pid: int = 0
    command: str = ""
    bytes: int | None = None  # according to the driver
    accounted_bytes: int | None = None
    pod_uid: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""
    unseen: str = ""
    evicted_in_seconds: float | None = None
    spared: str = ""


class DepartedUsage(_Part, frozen=True, kw_only=True):
    """What a container of a deleted pod was allocated of one card, while its processes still run."""

    card: str
    limit_bytes: int
    cores: int
    pod_uid: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""


class NodeUsage(_Part, frozen=True, kw_only=True):
    """The usage of one node at one time, in seconds since 1970. ``audited``: the driver's processes were compared."""

    node: str
    time: float
    cards: tuple[CardUsage, ...] = ()
    containers: tuple[ContainerUsage, ...] = ()
    outside: tuple[Outside, ...] = ()
    audited: bool = False
    arbiter: bool = False
    departed: tuple[DepartedUsage, ...] = ()
    version: int = VERSION


_decoder = msgspec.json.Decoder(NodeUsage)


def encode(usage: NodeUsage) -> bytes:
    return msgspec.json.encode(usage)


def decode(data: bytes) -> NodeUsage:
    """The inverse of ``encode``; WireError on anything else."""
    try:
        usage = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as e:
        raise WireError(f"the agent's answer is invalid: {e}") from None
    if usage.version != VERSION:
        raise WireError(
            f"the agent answers with version {usage.version} of its usage; this program supports version {VERSION}"
        )
    return usage


class Unanswered(_Part, frozen=True, kw_only=True):
    """A node whose agent did not report its usage, and why."""

    node: str
    reason: str


class ClusterUsage(_Part, frozen=True, kw_only=True):
    """The output of `fractile top -o json`: the nodes, sorted by name."""

    nodes: tuple[NodeUsage, ...] = ()
    unanswered: tuple[Unanswered, ...] = ()
    version: int = VERSION


def encode_cluster(usage: ClusterUsage) -> str:
    return msgspec.json.format(msgspec.json.encode(usage)).decode()


def decode_cluster(text: str | bytes) -> ClusterUsage:
    """The inverse of ``encode_cluster``, for programs and tests. Raises msgspec's errors."""
    return msgspec.json.decode(text, type=ClusterUsage)
