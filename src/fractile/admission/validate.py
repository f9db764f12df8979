"""Decide whether a pod may be stored, with a sentence when it may not. Pure; later steps check the same and more.

A pod that can never work or would bypass the limits is refused. For one that cannot work *today* there is only a
warning, since a class may be created, or a larger card bought, later.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from fractile.admission.capacity import ClusterFit
from fractile.admission.hints import PolicyKnown, any_policy, hints
from fractile.dialects.table import NAMES, parse_pod
from fractile.model.refusal import Code, Refusal
from fractile.model.request import PodRequest
from fractile.model.units import MemoryUnit
from fractile.wire.fractile import placement
from fractile.wire.fractile.isolation import STATE
from fractile.wire.fractile.resource_class import DEVICE_SLOT
from fractile.wire.kubernetes.admission import GuardedPod
from fractile.wire.kubernetes.objects import Pod

OWN_GROUPS = frozenset({"fractile:control-plane", "fractile:agents", "system:serviceaccounts:fractile-system"})
OURS = (placement.ANNOTATION, placement.CHOICE_ANNOTATION, STATE)  # written by Fractile alone
MIRROR = "kubernetes.io/config.mirror"  # on the mirror of a static pod, which runs whatever we answer
NODES = "system:nodes"  # the group of kubelets, which alone create mirror pods


class Privileged(StrEnum):
    """How to treat privileged containers that ask for GPUs, since they see all cards of their node."""

    REFUSE = "refuse"
    WARN = "warn"
    ALLOW = "allow"


class AdmissionVerdict(msgspec.Struct, frozen=True):
    """``refusal`` is one sentence, "" when the pod may pass."""

    refusal: str = ""
    warnings: tuple[str, ...] = ()


def judge(
    pod: Pod,
    guarded: GuardedPod,
    *,
    cluster: ClusterFit | None,
    unit: MemoryUnit,
    groups: Collection[str] = (),
    dialects: frozenset[str] = NAMES,
    privileged: Privileged = Privileged.REFUSE,
    names_node: bool = False,
    known_policy: PolicyKnown = any_policy,
) -> AdmissionVerdict:
    """The verdict on a pod. ``groups``: those of the pod's creator; ``cluster`` is None while it is unknown;
    ``names_node``: an administrator lets the pod name its node; ``known_policy``: whether a node policy of that name
    exists."""
    annotations = pod.metadata.annotations or {}
    if refusal := _forged(annotations, groups):
        return AdmissionVerdict(refusal)
    request = parse_pod(pod, unit, dialects)
    told = hints(pod, request, known_policy)
    if isinstance(request, Refusal):
        return AdmissionVerdict("; ".join((request.message, *told[:1])))
    if request is None:
        return AdmissionVerdict(warnings=told)
    if not names_node and (refusal := _bypass(pod, static=MIRROR in annotations and NODES in groups)):
        return AdmissionVerdict(refusal)
    seen_through = _privileged(request, guarded, privileged)
    if seen_through and privileged is Privileged.REFUSE:
        return AdmissionVerdict(seen_through)
    unseeing = blind(request, guarded.blind())
    resolved = request if cluster is None else cluster.resolve(request)
    if isinstance(resolved, Refusal):
        if resolved.code is Code.MALFORMED:
            return AdmissionVerdict(resolved.message)
        return AdmissionVerdict(
            warnings=tuple(filter(None, (f"{resolved.message}; the pod waits", seen_through, unseeing, *told)))
        )
    impossible = "" if cluster is None else cluster.never(resolved)
    return AdmissionVerdict(warnings=tuple(filter(None, (impossible, seen_through, unseeing, *told))))


def _forged(annotations: Iterable[str], groups: Iterable[str]) -> str:
    named = [key for key in OURS if key in annotations]
    if not named or not OWN_GROUPS.isdisjoint(groups):
        return ""
    what = f"the annotation {named[0]} is" if len(named) == 1 else f"the annotations {_and(named)} are"
    return f"{what} written by Fractile alone, when it places the pod; remove {'it' if len(named) == 1 else 'them'}"


def _bypass(pod: Pod, *, static: bool) -> str:
    if not pod.spec.node_name or static:
        return ""
    return (
        f"the pod asks for GPUs and sets spec.nodeName to {pod.spec.node_name[:63]}, so no scheduler would choose its "
        "cards; remove spec.nodeName and use a node selector on kubernetes.io/hostname"
    )


def _privileged(request: PodRequest, guarded: GuardedPod, what: Privileged) -> str:
    if what is Privileged.ALLOW:
        return ""
    seeing = guarded.privileged()
    names = [name for name in _with_gpus(request) if name in seeing]
    if not names:
        return ""
    return (
        f"container {names[0][:63]} asks for GPUs and is privileged, so it would see all cards of its node without "
        "limits; remove securityContext.privileged"
    )


def blind(request: PodRequest, said: Mapping[str, str]) -> str:
    """The warning about a container that is charged for a GPU but sees none. It is not an error: it may test a program
    without a card. ``said``: the containers that ask for no card, and how."""
    found = next((name for name in _with_gpus(request) if name in said), None)
    if found is None:
        return ""
    return (
        f"container {found[:63]} asks for GPUs and sets NVIDIA_VISIBLE_DEVICES to {said[found]}, so it will see no "
        "GPU; remove the variable: Fractile sets it to the GPUs that the container gets"
    )


def _with_gpus(request: PodRequest) -> list[str]:
    """The names of the containers that ask for cards, not only for other devices."""
    return [c.container for c in request.containers if c.resource != DEVICE_SLOT]


def _and(names: Sequence[str]) -> str:
    return " and ".join(names)
