"""Which labels an expression of PromQL has left, held to the metrics that Fractile's programs really show.

Stricter than Prometheus, to which a label that is not there is merely empty: a wrong name gives an alert that never
comes. What an expression does that is not known here is an error.
"""

from collections.abc import Iterable

import promql_parser as p

from fractile.metrics import control_plane, families
from fractile.metrics.exposition import Family

Labels = frozenset[str]
NONE: Labels = frozenset()
_BOUND = frozenset({"le"})


def _shown(family: Family) -> dict[str, Labels]:
    """The names of its series and their labels."""
    labels = frozenset(family.labels)
    if family.kind != "histogram":
        return {family.sample: labels}
    return {
        f"{family.sample}_bucket": labels | _BOUND,
        f"{family.sample}_sum": labels,
        f"{family.sample}_count": labels,
    }


METRICS: dict[str, Labels] = {
    name: labels
    for module in (control_plane, families)
    for family in vars(module).values()
    if isinstance(family, Family)
    for name, labels in _shown(family).items()
} | {"kube_node_info": frozenset({"node"})}  # of kube-state-metrics, which need not be there
_LABELLESS = {"time", "vector", "scalar", "absent"}
_KEEPING = {"rate", "increase", "irate", "delta", "max_over_time", "min_over_time", "avg_over_time", "clamp_min"}
_CHOOSING = {"topk", "bottomk"}


class Wrong(Exception):
    """The expression names what is not there."""


def labels_of(text: str) -> Labels:
    """The labels of its result; Wrong, and ValueError for what is no PromQL."""
    return _labels(p.parse(text))


def _labels(expr: p.Expr) -> Labels:
    match expr:
        case p.VectorSelector():
            return _selected(expr)
        case p.MatrixSelector():
            return _selected(expr.vector_selector)
        case p.NumberLiteral() | p.StringLiteral():
            return NONE
        case p.ParenExpr() | p.UnaryExpr():
            return _labels(expr.expr)
        case p.Call():
            return _called(expr)
        case p.AggregateExpr():
            return _aggregated(expr)
        case p.BinaryExpr():
            return _joined(expr)
        case _:
            raise Wrong(f"{type(expr).__name__} is not known to this test")


def _selected(selector: p.VectorSelector) -> Labels:
    if selector.name is None or selector.name not in METRICS:
        raise Wrong(f"no program of Fractile shows {selector.name}")
    labels = METRICS[selector.name]
    _among((m.name for m in selector.matchers.matchers), labels, selector.name)
    return labels


def _called(call: p.Call) -> Labels:
    inner = [_labels(arg) for arg in call.args]
    if call.func.name in _LABELLESS:
        return NONE
    if call.func.name == "histogram_quantile":
        _among(_BOUND, inner[1], str(call))
        return inner[1] - _BOUND
    if call.func.name not in _KEEPING:
        raise Wrong(f"{call.func.name}() is not known to this test")
    return inner[0]


def _aggregated(expr: p.AggregateExpr) -> Labels:
    inner = _labels(expr.expr)
    if expr.modifier is None:
        return inner if str(expr.op) in _CHOOSING else NONE
    named = frozenset(expr.modifier.labels)
    _among(named, inner, str(expr))
    return named if expr.modifier.type == p.AggModifierType.By else inner - named


def _joined(expr: p.BinaryExpr) -> Labels:
    left, right = _labels(expr.lhs), _labels(expr.rhs)
    if _is_scalar(expr.lhs) or _is_scalar(expr.rhs):
        return left | right
    if str(expr.op) == "or":
        return left & right
    matching = expr.modifier.matching if expr.modifier else None
    if matching is None:
        if left != right:
            raise Wrong(f"{expr}: both sides have to have the same labels, not {sorted(left)} and {sorted(right)}")
        return left
    if matching.type != p.LabelModifierType.Include:
        raise Wrong(f"{expr}: ignoring() is not known to this test")
    _among(matching.labels, left & right, str(expr))
    if str(expr.op) in ("and", "unless"):
        return left
    return _grouped(expr, left, right, frozenset(matching.labels))


def _grouped(expr: p.BinaryExpr, left: Labels, right: Labels, on: Labels) -> Labels:
    assert expr.modifier is not None
    if expr.modifier.card != p.VectorMatchCardinality.ManyToOne:
        return on
    extra = frozenset(expr.modifier.group_labels or ())
    _among(extra, right, str(expr))
    return left | extra


def _is_scalar(expr: p.Expr) -> bool:
    if isinstance(expr, p.ParenExpr):
        return _is_scalar(expr.expr)
    return isinstance(expr, p.NumberLiteral) or (isinstance(expr, p.Call) and expr.func.name in ("time", "scalar"))


def _among(named: Iterable[str], there: Labels, where: str) -> None:
    missing = sorted(set(named) - there)
    if missing:
        raise Wrong(f"{where} has no label {', '.join(missing)}; it has {', '.join(sorted(there)) or 'none'}")
