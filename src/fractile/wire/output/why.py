"""``fractile why -o json``: why one pod waits, or where it runs and what it holds. Version fractile.dev/why/v1.

Every field is always present. Memory is in MiB (2^20 bytes), parts of a card are in percent, times are seconds. Each
field is explained in docs/use/why.md; the golden file is tests/wire/golden/why.json.
"""

from typing import Literal

import msgspec

from fractile.errors import WireError
from fractile.wire.output.inspect import WaitingContainer
from fractile.wire.output.plan import PodChange

SCHEMA = "fractile.dev/why/v1"

State = Literal["pending", "starting", "running", "leaving", "finished"]


class _Struct(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the parts."""


class Scheduling(_Struct, frozen=True):
    """The state of scheduling. ``seen``: kube-scheduler has tried the pod; ``message``: its last message. ``gates``:
    names of scheduling gates that must be removed. ``nominated``: the node where room is being made for the pod."""

    scheduler: str
    seen: bool
    message: str = ""
    gates: tuple[str, ...] = ()
    nominated: str = ""


class QuotaLimitReport(_Struct, frozen=True):
    """One limit of the namespace's quota, in percent of a card."""

    model: str
    limit_percent: int
    held_percent: int


class ResourceLimit(_Struct, frozen=True):
    """One of Kubernetes' own ResourceQuotas on a resource of Fractile."""

    name: str
    resource: str
    hard: str
    used: str


class QuotaState(_Struct, frozen=True):
    """The namespace's quota. ``state`` as in ``fractile quota``; ``refusal``: why it allows this pod nothing at all."""

    state: str
    limits: tuple[QuotaLimitReport, ...] = ()
    pools: tuple[str, ...] = ()
    resources: tuple[ResourceLimit, ...] = ()
    refusal: str = ""


class ClassState(_Struct, frozen=True):
    """A class that the pod requests. ``message``: what is wrong with it."""

    name: str
    exists: bool
    devices: int = 0
    units: int = 0
    free_units: int = 0
    message: str = ""


class RefusingNodes(_Struct, frozen=True):
    """Nodes that refuse the pod for the same reasons. ``waiting_helps``: they could take it if other pods left."""

    nodes: tuple[str, ...]
    reasons: tuple[str, ...]
    waiting_helps: bool


class Use(_Struct, frozen=True):
    """What one container uses of one card, according to its node's agent; null: unknown."""

    used_mib: int | None
    peak_mib: int | None
    busy_percent: float | None
    refusals: int | None


class Holding(_Struct, frozen=True):
    """A part of a card that one container of the pod was allocated. ``use`` is null if the agent did not report it."""

    container: str
    role: str
    card: str
    index: int | None
    model: str
    memory_mib: int
    cores_percent: int
    shares: int = 0
    use: Use | None = None


class PodEvent(_Struct, frozen=True):
    """An event about the pod, the newest first. ``age``: since it last occurred."""

    age: float
    count: int
    type: str
    reason: str
    source: str
    message: str


class Why(_Struct, frozen=True):
    """The whole report. ``verdict``: a one-sentence summary; ``age``: of the pod. For a placed pod, ``fits``,
    ``groups`` and ``changes`` are empty; for any other, ``holds`` is. Each change was tried alone."""

    namespace: str
    pod: str
    uid: str
    state: State
    verdict: str
    age: float
    node: str
    families: tuple[str, ...]
    asks: tuple[WaitingContainer, ...]
    scheduling: Scheduling
    quota: QuotaState
    classes: tuple[ClassState, ...] = ()
    fits: tuple[str, ...] = ()
    groups: tuple[RefusingNodes, ...] = ()
    changes: tuple[PodChange, ...] = ()
    holds: tuple[Holding, ...] = ()
    containers: tuple[str, ...] = ()
    events: tuple[PodEvent, ...] = ()
    notes: tuple[str, ...] = ()
    schema: str = SCHEMA


_decoder = msgspec.json.Decoder(Why)


def encode(report: Why) -> str:
    """The JSON text, indented, schema first, without a final newline."""
    body = {"schema": report.schema, **msgspec.to_builtins(report)}
    return msgspec.json.format(msgspec.json.encode(body), indent=2).decode()


def decode(text: str | bytes) -> Why:
    """Decode the report; WireError on anything but this version."""
    try:
        found = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as e:
        raise WireError(f"this is not a report of fractile why: {e}") from None
    if found.schema != SCHEMA:
        raise WireError(f"this is {found.schema}; expected {SCHEMA}")
    return found
