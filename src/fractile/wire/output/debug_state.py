"""``/debug/state``: the current internal state of a program. Version fractile.dev/debug/v1.

Every field is always present. Memory is in MiB (2^20 bytes), parts of a card are in percent, times and ages in seconds;
``time`` is since 1970. Placements are as in the annotation (``wire.fractile.placement``). It contains no secrets: no
token, key, certificate, environment or text of a ConfigMap. docs/reference/debug-state.md explains the fields; the
golden files are tests/wire/golden/debug-control-plane.json and debug-agent.json.
"""

from typing import Literal

import msgspec

from fractile.errors import WireError

SCHEMA = "fractile.dev/debug/v1"
PATH = "/debug/state"


class _Struct(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the parts."""


class ProcessState(_Struct, frozen=True):
    """What the program itself uses. ``tasks``: the number of tasks of its event loop, by what they run."""

    version: str
    pid: int
    uptime: float
    threads: int
    descriptors: int | None
    resident_bytes: int | None
    tasks: dict[str, int]


class FeedState(_Struct, frozen=True):
    """One watch. ``version``: the resourceVersion to resume from, "" when a list is due; ``age``: of the last event or
    bookmark, None before the first."""

    path: str
    synced: bool
    objects: int
    version: str
    age: float | None


class LeadState(_Struct, frozen=True):
    """``lease`` "": the only replica. ``left``: seconds for which leadership is certain, None without a lease;
    ``term``: written into every Binding."""

    lease: str
    identity: str
    leading: bool
    ready: bool
    left: float | None = None
    term: str = ""


class CardStateReport(_Struct, frozen=True):
    uuid: str
    index: int
    model: str
    memory: int
    free_memory: int
    free_cores: int
    free_slots: int
    slices: int
    idle: bool


class NodeStateReport(_Struct, frozen=True):
    """The cards that take pods, then non-GPU devices."""

    node: str
    cards: tuple[CardStateReport, ...]
    others: tuple[CardStateReport, ...] = ()


class HoldState(_Struct, frozen=True):
    """One pod of the ledger. ``age``: since it was assumed or seen; ``doubted``: assumed for so long that its state is
    read from the API server."""

    uid: str
    namespace: str
    state: Literal["assumed", "bound"]
    age: float
    doubted: bool
    placement: msgspec.Raw


class ConflictState(_Struct, frozen=True):
    """A placement that exceeds its cards; it holds nothing."""

    uid: str
    placement: msgspec.Raw


class WaitingState(_Struct, frozen=True):
    """An unbound pod that asks for one of our resources; the oldest first. ``refusal``: why its request is invalid."""

    uid: str
    namespace: str
    name: str
    created: str
    priority: int
    nominated: str
    gated: bool
    refusal: str


class NominationState(_Struct, frozen=True):
    """A node to which waiting pods are nominated, by UID."""

    node: str
    pods: tuple[str, ...]


class LedgerState(_Struct, frozen=True):
    """``inconsistent``: cards whose running totals are not the sum of the holds, which is a bug."""

    generation: int
    nodes: tuple[NodeStateReport, ...]
    holds: tuple[HoldState, ...]
    conflicts: tuple[ConflictState, ...]
    inconsistent: tuple[str, ...]


class ControlPlaneState(_Struct, frozen=True):
    """The state of the control plane; only the leader has a ledger. ``expected``: hints about recently scored pods;
    ``victims_for``: pods whose victims are cached; ``options``: of the command line."""

    time: float
    process: ProcessState
    lead: LeadState
    feeds: tuple[FeedState, ...] = ()
    ledger: LedgerState | None = None
    waiting: tuple[WaitingState, ...] = ()
    nominations: tuple[NominationState, ...] = ()
    victims_for: int = 0
    expected: int = 0
    quota_namespaces: tuple[str, ...] = ()
    quota_problem: str = ""
    options: dict[str, str] = {}
    program: Literal["control-plane"] = "control-plane"
    schema: str = SCHEMA


class PluginState(_Struct, frozen=True):
    """One resource as reported to kubelet: the number of ids, and how many are healthy."""

    resource: str
    registered: bool
    ids: int
    healthy: int


class DeviceState(_Struct, frozen=True):
    """A card or another device, and the agent's verdict on its health."""

    uuid: str
    index: int
    model: str
    memory: int
    healthy: bool
    reason: str


class DirectoryState(_Struct, frozen=True):
    """One container's directory. Fields are empty until its limits are written. ``flags``: of the page of limits;
    ``cards``: bytes by UUID."""

    token: str
    pod_uid: str
    namespace: str
    pod: str
    container: str
    flags: int
    cards: dict[str, int]


class AgentState(_Struct, frozen=True):
    """``library``: the version that new containers get, "" when limits are not enforced. ``looks``: readings of usage;
    ``late``: those that took too long."""

    time: float
    node: str
    process: ProcessState
    feeds: tuple[FeedState, ...]
    library: str
    plugins: tuple[PluginState, ...]
    devices: tuple[DeviceState, ...]
    directories: tuple[DirectoryState, ...]
    pods: int
    program: Literal["agent"] = "agent"
    schema: str = SCHEMA


DebugState = ControlPlaneState | AgentState


def encode(state: DebugState) -> bytes:
    return msgspec.json.format(msgspec.json.encode(state))


class _Head(msgspec.Struct, frozen=True):
    schema: str = ""
    program: str = ""


def decode(data: str | bytes) -> DebugState:
    """The inverse of ``encode``; WireError for anything else."""
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.schema != SCHEMA:
            raise WireError(f"this is {head.schema[:80] or 'nothing'!r}, not {SCHEMA}")
        return msgspec.json.decode(data, type=AgentState if head.program == "agent" else ControlPlaneState)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as e:
        raise WireError(f"the state is invalid: {e}") from None
