"""The nodes on which a pod may run according to its manifest: node selector, required node affinity, taints, cordons;
and label selectors. The rules are Kubernetes' (``k8s.io/component-helpers/scheduling/corev1``)."""

from collections.abc import Mapping, Sequence

import msgspec

from fractile.model.properties import Properties as Labels
from fractile.wire.kubernetes.manifests import Expression, LabelSelector, NodeTerm, PlannedPodSpec, Taint, Toleration

__all__ = ["ANYWHERE", "Labels", "Where", "selects", "where_of"]

_BLOCKING = frozenset({"NoSchedule", "NoExecute"})
_CORDON = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


class NodeExpression(msgspec.Struct, frozen=True):
    """One expression; ``field``: on the node's name, not on its labels."""

    key: str
    operator: str
    values: tuple[str, ...] = ()
    field: bool = False


class Where(msgspec.Struct, frozen=True):
    """Labels that must be equal, terms of which one must hold (no terms: all nodes), and tolerated taints."""

    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[tuple[NodeExpression, ...], ...] = ()
    tolerations: tuple[Toleration, ...] = ()

    @property
    def chooses(self) -> bool:
        """Whether it restricts nodes by labels or name."""
        return bool(self.selector or self.terms)

    def admits(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether labels and name of a node are accepted."""
        if any(labels.get(key) != value for key, value in self.selector):
            return False
        return not self.terms or any(all(_holds(r, name, labels) for r in term) for term in self.terms)

    def untolerated(self, taints: Sequence[Taint], *, cordoned: bool) -> Taint | None:
        """The first taint that keeps the pod away; a cordon is one too."""
        found = [t for t in taints if t.effect in _BLOCKING]
        found += [_CORDON] if cordoned else []
        return next((t for t in found if not any(_tolerates(o, t) for o in self.tolerations)), None)


ANYWHERE = Where()


def where_of(spec: PlannedPodSpec) -> Where:
    """The conditions in a pod's manifest."""
    affinity = spec.affinity.node_affinity if spec.affinity else None
    required = affinity.required if affinity else None
    return Where(
        tuple(sorted((spec.node_selector or {}).items())),
        tuple(_term(t) for t in (required.node_selector_terms or ())) if required else (),
        tuple(spec.tolerations or ()),
    )


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Whether a label selector selects an object; a missing selector selects none, an empty one all."""
    if selector is None:
        return False
    if any(labels.get(k) != v for k, v in (selector.match_labels or {}).items()):
        return False
    return all(_holds(_rule(e), "", labels) for e in selector.match_expressions or ())


def _term(term: NodeTerm) -> tuple[NodeExpression, ...]:
    """The expressions of a term; an empty term selects no node."""
    rules = [_rule(e) for e in term.match_expressions or ()]
    rules += [_rule(e, field=True) for e in term.match_fields or ()]
    return tuple(rules) or (NodeExpression("", "Never"),)


def _rule(e: Expression, *, field: bool = False) -> NodeExpression:
    return NodeExpression(e.key, e.operator, tuple(e.values or ()), field)


def _holds(rule: NodeExpression, name: str, labels: Mapping[str, str]) -> bool:
    found = (name if rule.key == "metadata.name" else None) if rule.field else labels.get(rule.key)
    match rule.operator:
        case "In":
            return found is not None and found in rule.values
        case "NotIn":
            return found not in rule.values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case "Gt" | "Lt":
            return _ordered(rule, found)
        case _:
            return False


def _ordered(rule: NodeExpression, found: str | None) -> bool:
    try:
        have, than = int(found or ""), int(rule.values[0])
    except (ValueError, IndexError):
        return False
    return have > than if rule.operator == "Gt" else have < than


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.value == taint.value
