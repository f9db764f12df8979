"""A ScoreReport as plain text: the terms and their sum for every pod and node."""

from fractile.cli.text.amounts import amount
from fractile.cli.text.table import Column, plain
from fractile.wire.output.score_report import PodReport, ScoredNode, ScoreReport, TermReport

_CUT = ("most-allocated", "least-allocated")
_TEN = 10
_TERMS = (
    Column("RESOURCE"),
    Column("HELD", number=True),
    Column("POD", number=True),
    Column("REQUESTED", number=True),
    Column("CAPACITY", number=True),
    Column("UTILIZATION", number=True),
    Column("SCORE", number=True),
    Column("WEIGHT", number=True),
    Column("SCORE x WEIGHT", number=True),
)
_SOURCES = {"file": "of the file", "options": "of the command line", "default": "kube-scheduler's default"}


def table(report: ScoreReport) -> str:
    """The whole report, pod by pod."""
    return "\n".join(_pod(pod, report.kubernetes) for pod in report.pods)


def _pod(pod: PodReport, version: str) -> str:
    strategy = pod.strategy
    weights = ", ".join(f"{r.name}={r.weight}" for r in strategy.resources)
    shape = f", shape {','.join(f'{p.utilization}:{p.score}' for p in strategy.shape)}" if strategy.shape else ""
    head = (
        f"pod {pod.namespace}/{pod.pod}: {strategy.kind} ({_SOURCES[strategy.source]}), {weights}{shape}, as "
        f"Kubernetes {version} computes it\n"
    )
    nodes = "".join(f"\n{_node(node, strategy.kind)}" for node in pod.nodes)
    return head + nodes + f"\n{_best(pod)}\n"


def _node(node: ScoredNode, kind: str) -> str:
    lacks = f"; the pod does not fit, for lack of {', '.join(node.lacks)}: it would not be scored" if node.lacks else ""
    head = f"{node.node}: {node.score} of 100{lacks}\n"
    return head + plain(_TERMS, [_term(t) for t in node.terms]) + _sum(node, kind)


def _term(term: TermReport) -> list[str]:
    product = str(term.score * term.weight) if term.counted else "not counted"
    amounts = [amount(term.resource, n) for n in (term.held, term.pod, term.requested, term.capacity)]
    return [term.resource, *amounts, f"{term.utilization}%", str(term.score), str(term.weight), product]


def _sum(node: ScoredNode, kind: str) -> str:
    counted = [t for t in node.terms if t.counted]
    if not counted:
        return "  no resource counts: 0\n"
    how = "cut to" if kind in _CUT else "rounded to"
    exact = _quotient(" + ".join(f"{t.score}x{t.weight}" for t in counted), counted, node.sum)
    text = f"  {exact}, {how} {node.score}\n"
    if node.scale_of_ten is not None:
        tenths = _quotient(" + ".join(f"{t.score // _TEN}x{t.weight}" for t in counted), counted, node.scale_of_ten.sum)
        text += f"  of 10, as Kubernetes' documentation computes it: {tenths}, rounded to {node.scale_of_ten.score}\n"
    return text


def _quotient(products: str, counted: list[TermReport], total: int) -> str:
    weights = " + ".join(str(t.weight) for t in counted)
    divisor = sum(t.weight for t in counted)
    return f"({products}) / ({weights}) = {total} / {divisor} = {_one_digit(total, divisor)}"


def _one_digit(total: int, divisor: int) -> str:
    tenths = (2 * _TEN * total + divisor) // (2 * divisor)
    return f"{tenths // _TEN}.{tenths % _TEN}"


def _best(pod: PodReport) -> str:
    if not pod.best:
        return "no node has room for the pod"
    if len(pod.best) == 1:
        return f"{pod.best[0]} wins"
    return f"{', '.join(pod.best)} are equal; kube-scheduler picks one at random"
