"""kube-scheduler's extender protocol, v1 (evidence/kube-scheduler.md#extender-protocol).

The Go structs have no JSON tags: outer keys are capitalised, absent values are null, older versions wrote lower case,
and Go ignores case on input. We answer capitalised and accept any case. With a status other than 200 kube-scheduler
drops the body, so every answer, errors included, is a 200. Errors and reasons become format strings of Go's ``Errorf``
and ``Eventf``, so they must not contain percent signs (for reasons, ``model.refusal`` removes them).
"""

from collections.abc import Sequence, Sized
from typing import Any

import msgspec

from fractile.errors import WireError
from fractile.model.words import unformatted
from fractile.wire.kubernetes.objects import ObjectMeta, Pod, PodSpec

MOST_NODES = 20_000  # that a request may name; Kubernetes is designed for 5,000

_NULL = msgspec.Raw(b"null")


def _nothing() -> msgspec.Raw:
    return _NULL


class _Node(msgspec.Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


class NodeList(msgspec.Struct, frozen=True):
    """The nodes of a kube-scheduler with ``nodeCacheCapable: false``; the objects are returned unchanged."""

    items: list[msgspec.Raw] | None = None


class AskedSpec(PodSpec, frozen=True):
    """A PodSpec with the raw fields that may hold preferences."""

    affinity: msgspec.Raw = msgspec.field(default_factory=_nothing)
    topology_spread_constraints: msgspec.Raw = msgspec.field(default_factory=_nothing)


class AskedPod(Pod, frozen=True):
    spec: AskedSpec = msgspec.field(default_factory=AskedSpec)


class ExtenderArgs(msgspec.Struct, frozen=True):
    """The body of filter and prioritize."""

    pod: AskedPod | None = msgspec.field(default=None, name="Pod")
    node_names: list[str] | None = msgspec.field(default=None, name="NodeNames")
    nodes: NodeList | None = msgspec.field(default=None, name="Nodes")


class BindingArgs(msgspec.Struct, frozen=True):
    """The body of bind."""

    pod_name: str = msgspec.field(default="", name="PodName")
    pod_namespace: str = msgspec.field(default="", name="PodNamespace")
    pod_uid: str = msgspec.field(default="", name="PodUID")
    node: str = msgspec.field(default="", name="Node")


class FilterResult(msgspec.Struct, frozen=True):
    """The answer of filter. ``nodes`` is set only when the request carried node objects."""

    node_names: list[str] | None = msgspec.field(default=None, name="NodeNames")
    failed: dict[str, str] = msgspec.field(default_factory=dict[str, str], name="FailedNodes")
    unresolvable: dict[str, str] = msgspec.field(default_factory=dict[str, str], name="FailedAndUnresolvableNodes")
    error: str = msgspec.field(default="", name="Error")
    nodes: NodeList | None = msgspec.field(default=None, name="Nodes")

    def __post_init__(self) -> None:
        if "%" in self.error:
            msgspec.structs.force_setattr(self, "error", unformatted(self.error))


class HostPriority(msgspec.Struct, frozen=True, gc=False):
    """One node's score, 0 .. 10."""

    host: str = msgspec.field(name="Host")
    score: int = msgspec.field(name="Score")


class BindingResult(msgspec.Struct, frozen=True):
    """The answer of bind: an empty error means bound."""

    error: str = msgspec.field(default="", name="Error")

    def __post_init__(self) -> None:
        if "%" in self.error:
            msgspec.structs.force_setattr(self, "error", unformatted(self.error))


class MetaPod(msgspec.Struct, frozen=True):
    uid: str = msgspec.field(default="", name="UID")


class MetaVictims(msgspec.Struct, frozen=True):
    """Pods to be evicted from a node, by UID, the most important first."""

    pods: list[MetaPod] | None = msgspec.field(default=None, name="Pods")
    violations: int = msgspec.field(default=0, name="NumPDBViolations")


class _Victims(msgspec.Struct, frozen=True):
    """The same with whole pods, from a kube-scheduler with ``nodeCacheCapable: false``."""

    pods: list[Pod] | None = msgspec.field(default=None, name="Pods")
    violations: int = msgspec.field(default=0, name="NumPDBViolations")


class PreemptionArgs(msgspec.Struct, frozen=True):
    """The body of preempt: for each node what kube-scheduler would evict there."""

    pod: Pod | None = msgspec.field(default=None, name="Pod")
    victims: dict[str, _Victims | None] | None = msgspec.field(default=None, name="NodeNameToVictims")
    meta_victims: dict[str, MetaVictims | None] | None = msgspec.field(default=None, name="NodeNameToMetaVictims")

    def proposed(self) -> dict[str, MetaVictims]:
        """The victims by node, in whichever form the request has."""
        if self.meta_victims:
            return {node: victims or MetaVictims() for node, victims in self.meta_victims.items()}
        return {
            node: MetaVictims([MetaPod(p.metadata.uid) for p in victims.pods or ()], victims.violations)
            if victims
            else MetaVictims()
            for node, victims in (self.victims or {}).items()
        }


class PreemptionResult(msgspec.Struct, frozen=True):
    """The answer of preempt, always with UIDs; on nodes that are left out, preemption does not help."""

    nodes: dict[str, MetaVictims] = msgspec.field(default_factory=dict[str, MetaVictims], name="NodeNameToMetaVictims")


_args = msgspec.json.Decoder(ExtenderArgs)
_preemption = msgspec.json.Decoder(PreemptionArgs)
_binding = msgspec.json.Decoder(BindingArgs)
_node = msgspec.json.Decoder(_Node)
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encoder = msgspec.json.Encoder()

_CANONICAL = {
    key.lower(): key
    for key in (
        "Pod", "Nodes", "NodeNames", "PodName", "PodNamespace", "PodUID", "Node",
        "NodeNameToVictims", "NodeNameToMetaVictims",
    )
}  # fmt: skip


def decode_args(body: bytes) -> ExtenderArgs:
    """The arguments of filter and prioritize; WireError when they name no pod. Missing nodes become an empty list."""
    args = _decode(_args, body)
    if args.pod is None or (args.node_names is None and args.nodes is None):
        args = _decode(_args, _canonical(body))
    if args.pod is None:
        raise WireError("the request holds no Pod")
    return args


def check_names(names: Sized) -> None:
    """Raise WireError for more nodes than any cluster has."""
    if len(names) > MOST_NODES:
        raise WireError(f"the request names more than {MOST_NODES} nodes")


def decode_binding(body: bytes) -> BindingArgs:
    """The arguments of bind; WireError when one is missing."""
    args = _decode(_binding, body)
    if not _is_complete(args):
        args = _decode(_binding, _canonical(body))
    if not _is_complete(args):
        raise WireError("the request must name PodName, PodNamespace, PodUID and Node")
    return args


def decode_preemption(body: bytes) -> PreemptionArgs:
    """The arguments of preempt; WireError when they name no pod. Missing victims become an empty proposal."""
    args = _decode(_preemption, body)
    if args.pod is None or (args.victims is None and args.meta_victims is None):
        args = _decode(_preemption, _canonical(body))
    if args.pod is None:
        raise WireError("the request holds no Pod")
    return args


def _is_complete(args: BindingArgs) -> bool:
    return bool(args.pod_name and args.pod_namespace and args.pod_uid and args.node)


def names_of(args: ExtenderArgs) -> list[str]:
    """The nodes asked about, whichever form the request has."""
    if args.node_names is not None:
        return args.node_names
    return [node_name(raw) for raw in (args.nodes.items if args.nodes else None) or ()]


def node_name(raw: msgspec.Raw) -> str:
    return _decode(_node, raw).metadata.name


def prefers(pod: AskedPod) -> bool:
    """Whether the pod itself prefers some nodes to others. A label named like such a field counts too: harmless."""
    spec = pod.spec
    spread = bytes(spec.topology_spread_constraints)
    return b"preferredDuringScheduling" in bytes(spec.affinity) or b"ScheduleAnyway" in spread


def encode(answer: FilterResult | BindingResult | PreemptionResult | list[HostPriority]) -> bytes:
    return _encoder.encode(answer)


def encode_scores(names: Sequence[str], scores: Sequence[int]) -> bytes:
    """The answer of prioritize."""
    return _encoder.encode(list(map(HostPriority, names, scores)))


def encode_error(message: str) -> bytes:
    """An answer that kube-scheduler reads as an error of filter and of bind alike."""
    return _encoder.encode(BindingResult(message))


def _canonical(body: bytes) -> bytes:
    """The same JSON object with its outer keys in the case of the Go structs."""
    fields = _decode(_object, body)
    return _encoder.encode({_CANONICAL.get(key.lower(), key): value for key, value in fields.items()})


def _decode(decoder: msgspec.json.Decoder[Any], body: bytes | msgspec.Raw) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as e:
        raise WireError(f"the request is not what kube-scheduler sends: {e}") from None
