"""Hints about fields of a pod that are accepted but do not have the effect that its author expects. Pure.

The webhook returns them as warnings when the pod is created; ``fractile why`` prints them for an existing pod.
"""

from collections.abc import Callable, Iterator

from fractile.dialects import nvidia
from fractile.dialects.dialect import Dialect, ResourceKind
from fractile.dialects.near import misspelt
from fractile.dialects.table import DIALECTS, owner
from fractile.dialects.wishes import words
from fractile.model.refusal import Refusal
from fractile.model.request import ContainerRequest, PodRequest
from fractile.model.words import quoted
from fractile.wire.kubernetes.objects import Pod

NODE_POLICY = "fractile.dev/node-policy"

PolicyKnown = Callable[[str], bool]


def any_policy(_: str) -> bool:
    """The check to use when the names of policies are unknown."""
    return True


def hints(pod: Pod, request: PodRequest | Refusal | None, known: PolicyKnown = any_policy) -> tuple[str, ...]:
    """One sentence for each hint. ``known``: whether a node policy of that name exists."""
    found = [*misspelt(pod)]
    if isinstance(request, PodRequest):
        annotations = pod.metadata.annotations or {}
        families = {o.name for c in request.containers if (o := owner(c.resource)) is not None}
        found += _of_other_families(annotations, families)
        found += _unknown_policies(annotations, families, known)
        found += [hint for c in request.containers for hint in _odd_amounts(c)]
    return tuple(found)


def _of_other_families(annotations: dict[str, str], families: set[str]) -> Iterator[str]:
    for dialect in DIALECTS:
        ignored = sorted(dialect.wishes & annotations.keys()) if dialect.name not in families else ()
        for key in ignored:
            by = _asked_by(dialect)
            yield f"the annotation {key} has no effect on this pod: only containers that request {by} follow it"


def _asked_by(dialect: Dialect) -> str:
    return " or ".join(name for name, kind in dialect.resources.items() if kind is ResourceKind.PRIMARY)


def _unknown_policies(annotations: dict[str, str], families: set[str], known: PolicyKnown) -> Iterator[str]:
    """Hints about unknown policies. HAMi's two are checked only if a container follows them: otherwise there is already
    a hint."""
    if "nvidia" in families:
        for key, policies in nvidia.POLICIES.items():
            if annotations.get(key) and not any(word.lower() in policies for word in words(annotations[key])):
                yield f"the annotation {key} is ignored: {quoted(annotations[key])} is not one of {', '.join(policies)}"
    policy = annotations.get(NODE_POLICY)
    if policy and not known(policy):
        yield (
            f"the annotation {NODE_POLICY} is ignored: there is no policy {quoted(policy)} "
            "(docs/operate/node-policies.md lists them)"
        )


def _odd_amounts(asked: ContainerRequest) -> Iterator[str]:
    amounts = dict(asked.amounts)
    priority = amounts.get(nvidia.PRIORITY, 0)
    if priority > 1:
        yield (
            f"container {asked.container[:63]} asks for {nvidia.PRIORITY}: {priority}, which counts as 1: 0 is served "
            "first, all other numbers after it"
        )
    if amounts.get(nvidia.MEMORY) == 0 and not amounts.get(nvidia.PERCENTAGE):
        yield (
            f"container {asked.container[:63]} asks for {nvidia.MEMORY}: 0, which means all of the card's memory, as "
            "without this resource"
        )
