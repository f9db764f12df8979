"""An Inspection as plain text, for pipes and for ``-o wide``; and the sentences that both views share."""

from collections.abc import Iterator

from fractile.cli.text.table import Column, plain
from fractile.model.words import printable
from fractile.wire.fractile import departed
from fractile.wire.output.inspect import (
    Amounts,
    CardHolder,
    CardReport,
    Inspection,
    NodeReport,
    Problem,
    WaitingContainer,
    WaitingPodReport,
)

_CARDS = (
    Column("NODE"),
    Column("CARD", number=True),
    Column("MODEL"),
    Column("ALLOCATED/TOTAL MiB", number=True),
    Column("USED", number=True),
    Column("CORES", number=True),
    Column("PODS"),
)
_CORES = 5
_CONTAINERS = (
    Column("NODE"),
    Column("CARD", number=True),
    Column("NAMESPACE"),
    Column("POD"),
    Column("CONTAINER"),
    Column("ROLE"),
    Column("MEMORY MiB", number=True),
    Column("CORES", number=True),
    Column("PHASE"),
    Column("UUID"),
)


def table(report: Inspection) -> str:
    """One line per card and one per node, then the cluster's sum. CORES is shown only if a pod was promised some."""
    columns, rows = _CARDS, [row for node in report.nodes for row in (*_card_rows(node), _node_row(node))]
    if not promises_cores(report):
        columns, rows = (*columns[:_CORES], *columns[_CORES + 1 :]), [(*r[:_CORES], *r[_CORES + 1 :]) for r in rows]
    return plain(columns, rows) + "\n" + closing(report)


def promises_cores(report: Inspection) -> bool:
    """Whether any pod holds a part of a card's time, neither none nor all of it."""
    return any(0 < pod.cores_percent < 100 for node in report.nodes for card in node.cards for pod in card.pods)


def wide(report: Inspection) -> str:
    """One line per container and card, and one per unused card."""
    rows = [row for node in report.nodes for card in node.cards for row in _container_rows(node, card)]
    return plain(_CONTAINERS, rows) + "\n" + closing(report)


def closing(report: Inspection) -> str:
    """The cluster's sum, the waiting pods, and the problems."""
    lines = (total_line(report), *waiting_lines(report), *problem_lines(report))
    return "".join(f"{printable(line)}\n" for line in lines)


def total_line(report: Inspection) -> str:
    t = report.totals
    nodes = _count(len(report.nodes), "node")
    return f"{nodes}, {_count(t.cards, 'card')}: {memory(t)} MiB allocated ({percent(t)}), {t.free_mib} MiB free"


def waiting_lines(report: Inspection) -> Iterator[str]:
    if not report.waiting:
        return
    yield ""
    yield f"{_count(len(report.waiting), 'pod')} waiting; {_largest_free(report)}{_cores_free(report)}:"
    width = max(len(_key(pod)) for pod in report.waiting)
    for pod in report.waiting:
        yield f"  {_key(pod).ljust(width)}  {asks(pod)}"


def problem_lines(report: Inspection) -> Iterator[str]:
    if not report.problems:
        return
    yield ""
    yield f"{_count(len(report.problems), 'problem')}:"
    for problem in report.problems:
        yield f"  {_subject(problem)}: {problem.reason}"


def asks(pod: WaitingPodReport) -> str:
    """What a waiting pod asks for: "8138 MiB", "2 whole cards", or why its request is invalid."""
    return pod.refusal or " + ".join(map(one_ask, pod.requests))


def percent(amounts: Amounts | CardReport) -> str:
    """The percentage, rounded, but 0 % only for nothing and 100 % only for everything."""
    part, whole = amounts.allocated_mib, amounts.memory_mib
    if whole <= 0 or part <= 0:
        return "0 %"
    exact = 100 * part / whole
    return f"{min(99, max(1, round(exact))) if part < whole else round(exact)} %"


def memory(amounts: Amounts | CardReport) -> str:
    return f"{amounts.allocated_mib}/{amounts.memory_mib}"


def model(card: CardReport) -> str:
    return card.model if card.healthy else f"{card.model} (unhealthy)"


def named(pod: CardHolder) -> str:
    """The pod's name; marked if the pod is gone but its processes still run."""
    return departed.label(pod.namespace, pod.name) if pod.phase == departed.PHASE else f"{pod.namespace}/{pod.name}"


def _card_rows(node: NodeReport) -> Iterator[tuple[str, ...]]:
    for card in node.cards:
        pods = ",".join(f"{named(p)}:{p.memory_mib}" for p in card.pods)
        cores = f"{card.allocated_cores_percent}%"
        yield node.name, str(card.index), model(card), memory(card), _one_word(percent(card)), cores, pods


def _node_row(node: NodeReport) -> tuple[str, ...]:
    t = node.totals
    return node.name, "all", _count(t.cards, "card"), memory(t), _one_word(percent(t)), "", ""


def _container_rows(node: NodeReport, card: CardReport) -> Iterator[tuple[str, ...]]:
    if not card.pods:
        yield node.name, str(card.index), "", "", "", "", "", "", "", card.uuid
    for pod in card.pods:
        for c in pod.containers:
            amounts = str(c.memory_mib), f"{c.cores_percent}%"
            yield node.name, str(card.index), pod.namespace, pod.name, c.name, c.role, *amounts, pod.phase, card.uuid


def _one_word(share: str) -> str:
    return share.replace(" ", "")


def one_ask(asked: WaitingContainer) -> str:
    """What one container asks for, in words."""
    if asked.device_class:
        amount = f"{asked.count} of class {asked.device_class.replace(',', ' or ')}"
    else:
        amount = f"{asked.count} whole card{'s' * (asked.count != 1)}" if asked.exclusive else _part(asked)
    return amount if asked.role == "app" else f"{amount} ({asked.role})"


def _part(asked: WaitingContainer) -> str:
    memory = f"{asked.memory_percent} % of the memory" if asked.memory_percent else f"{asked.memory_mib} MiB"
    cores = f", {asked.cores_percent} % of the cores" if asked.cores_percent else ""
    return f"{memory}{cores}" + (f" of each of {asked.count} cards" if asked.count > 1 else "")


def _largest_free(report: Inspection) -> str:
    cards = ((card.free_mib, node.name, card.index) for node in report.nodes for card in node.cards)
    free, node, index = max(cards, key=lambda c: c[0])
    return f"most free on one card: {free} MiB ({node}, card {index})" if free else "no card has memory free"


def _cores_free(report: Inspection) -> str:
    """The most free cores on one card, if a waiting pod asks for a share of compute time; else empty."""
    if not any(asked.cores_percent and not asked.exclusive for pod in report.waiting for asked in pod.requests):
        return ""
    cards = ((_promisable(card), node.name, card.index) for node in report.nodes for card in node.cards if card.healthy)
    free, node, index = max(cards, key=lambda c: c[0], default=(0, "", 0))
    return f"; most cores free on one: {free} % ({node}, card {index})" if free > 0 else "; no card has cores free"


def _promisable(card: CardReport) -> int:
    """The percentage of the card's time that is free; one percent is reserved for containers without a share."""
    coreless = any(not c.cores_percent for pod in card.pods for c in pod.containers)
    return 100 - card.allocated_cores_percent - coreless


def _subject(problem: Problem) -> str:
    if problem.kind != "Pod":
        return f"{problem.kind} {problem.name}"
    return f"{problem.namespace}/{problem.name} on {problem.node}"


def _key(pod: WaitingPodReport) -> str:
    return f"{pod.namespace}/{pod.name}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
