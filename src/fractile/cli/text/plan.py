"""A Plan as text: a sentence and a table for each question."""

from collections.abc import Sequence

from fractile.cli.text.table import Column, plain
from fractile.model.words import printable
from fractile.wire.output.plan import (
    Consolidation,
    Defragmentation,
    Growth,
    Plan,
    PlanStage,
    PodChange,
    PodResources,
    Reason,
    WaitingGroup,
)

WORDS = {
    "taint": "tainted or cordoned",
    "label": "other labels",
    "no_gpu": "too few GPUs",
    "model": "another model of GPU",
    "size": "GPUs too small",
    "gpu": "too little free on GPUs",
    "cpu": "too few CPUs free",
    "memory": "too little memory free",
    "places": "no room for another pod",
}
_NAMED = 3  # pods with equal requests in one line
_GROUPS = 20  # different requests; JSON lists all
_NODES = 20  # likewise


def text(plan: Plan) -> str:
    """The answers to all questions."""
    parts = [_now(plan), *_waiting(plan.waiting)]
    if plan.growth is not None:
        parts.append(_growth(plan.growth, plan.target))
    if plan.consolidation is not None:
        parts.append(_consolidation(plan.consolidation))
    if plan.defragmentation is not None:
        parts.append(_moves(plan.defragmentation))
    parts += ["".join(f"note: {printable(note)}\n" for note in plan.notes)] if plan.notes else []
    return "\n".join(parts)


def _now(plan: Plan) -> str:
    now = plan.now
    head = f"{plan.nodes} nodes, {plan.gpus} GPUs, {plan.running} pods run there.\n"
    if not now.pods:
        return f"{head}No pod waits.\n"
    return f"{head}{now.placed} of {now.pods} pods fit now, with {now.gpus_placed:g} of {now.gpus:g} GPUs.\n"


# ── what waits ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _waiting(waiting: Sequence[WaitingGroup]) -> list[str]:
    shown = ["".join(_group(group)) for group in waiting[:_GROUPS]]
    more = len(waiting) - _GROUPS
    return (
        [*shown, f"and {_many(more, 'other request')} that {'fits' if more == 1 else 'fit'} nowhere: -o json\n"]
        if more > 0
        else shown
    )


def _group(group: WaitingGroup) -> list[str]:
    return [
        f"{_keys(group.pods)}: {_asks(group.asks)}\n",
        *(f"  {_reason(reason)}\n" for reason in group.reasons[:6]),
        *([f"  and {_many(len(group.reasons) - 6, 'combination')} more\n"] if len(group.reasons) > 6 else []),
        *(f"  would fit: {_change(change)}\n" for change in group.changes),
        *(["  no single change that was tried would make it fit\n"] if not group.changes else []),
    ]


def _keys(pods: Sequence[str]) -> str:
    more = len(pods) - _NAMED
    return printable(", ".join(pods[:_NAMED])) + (f" and {more} more like these" if more > 0 else "")


def _asks(asks: PodResources) -> str:
    gpus = f"; {asks.each}" if asks.each else ""
    return printable(f"{asks.cpu_milli / 1000:g} CPUs and {asks.memory_mib} MiB of the node's memory{gpus}")


def _reason(reason: Reason) -> str:
    return f"{_many(reason.nodes, 'node')}: {', '.join(WORDS[lack] for lack in reason.lacks)}"


def _change(change: PodChange) -> str:
    where = f" (on {change.node})" if change.node and change.change != "one-more-node" else ""
    return printable(change.sentence + where)


# ── more nodes, fewer nodes ──────────────────────────────────────────────────────────────────────────────────────────


def _growth(growth: Sequence[Growth], target: float) -> str:
    columns = (
        Column("SHAPE"),
        Column("NODES TO ADD", number=True),
        Column("GPUS", number=True),
        Column("ACCEPTED", number=True),
        Column("WITHOUT", number=True),
        Column("REMARK"),
    )
    rows = [_shape(g) for g in growth]
    return (
        f"To accept {target:g} % of the pods and of their GPUs, in every order that was tried:\n{plain(columns, rows)}"
    )


def _shape(g: Growth) -> list[str]:
    nodes = "none suffice" if g.nodes is None else str(g.nodes)
    gpus = "" if g.gpus is None else str(g.gpus)
    return [g.shape.name, nodes, gpus, f"{g.acceptance:.1f} %", f"{g.before:.1f} %", g.why_not]


def _consolidation(found: Consolidation) -> str:
    empty = f"Empty nodes with GPUs: {found.empty}. "
    if not found.emptied:
        return f"{empty}None of the others could be emptied.\n"
    rows = [[e.node, str(e.gpus), str(e.pods)] for e in found.emptied[:_NODES]]
    table = plain((Column("NODE"), Column("GPUS", number=True), Column("PODS TO MOVE", number=True)), rows)
    head = (
        f"{empty}Could be emptied, if their pods moved to others in use: {len(found.emptied)}, with {found.gpus} GPUs."
    )
    more = len(found.emptied) - _NODES
    return f"{head}\n{table}" + (f"and {_many(more, 'node')} more: -o json\n" if more > 0 else "")


# ── moves ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _moves(found: Defragmentation) -> str:
    waiting = found.goal == "waiting"
    whom = "pods that wait" if waiting else "one more of each kind of pod that runs"
    if not found.pods and not found.still_waiting:
        return f"No moves are needed: there is room for {'all ' if waiting else ''}{whom}.\n"
    if not found.pods:
        return f"No moves were found that make room for {whom}.\n"
    like = "pods that wait" if waiting else "pods like those that run"
    head = (
        f"{_many(found.moves, 'move')} in {_many(len(found.stages), 'stage')}. Room for {like}: {found.pods}, with "
        f"{found.gpus:g} GPUs. In use now: {found.allocation_before:.1f} % of all GPUs, then: "
        f"{found.allocation_after:.1f} %.\n"
    )
    columns = (Column("STAGE", number=True), Column("POD"), Column("FROM"), Column("TO"), Column("CARDS"))
    return head + plain(columns, [row for stage in found.stages for row in _stage(stage)])


def _stage(stage: PlanStage) -> list[list[str]]:
    number = str(stage.number)
    moves = [[number, m.pod, m.source, m.target, _cards(m.cards)] for m in stage.moves]
    return moves + [[number, p.pod, "(comes in)", p.node, _cards(p.cards)] for p in stage.admits]


def _cards(cards: Sequence[int]) -> str:
    return ",".join(map(str, cards))


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
