"""Merge stages into as few as possible, so that independent moves are made in parallel."""

from collections.abc import Sequence

from fractile.sim.planner.moves import MoveBudgets, MoveStage
from fractile.sim.planner.stock import PlannerStock, PodHold
from fractile.sim.snapshot.cluster_snapshot import Demand


def merged(stages: Sequence[MoveStage], stock: PlannerStock, budgets: MoveBudgets) -> list[MoveStage]:
    """The merged stages. ``stock``: the cluster before the first stage; on return, after the last. A stage joins the
    previous one if its targets are free while all sources of both are still held, and the budgets allow both."""
    found: list[MoveStage] = []
    for stage in stages:
        both = MoveStage((*found[-1].steps, *stage.steps), (*found[-1].admits, *stage.admits)) if found else None
        if found and both is not None:
            _undo(found[-1], stock)
            if budgets.bears(s.task for s in both.steps) and carry_out(both, stock):
                found[-1] = both
                continue
            again = carry_out(found[-1], stock)
            assert again  # it was possible a moment ago
        possible = carry_out(stage, stock)
        assert possible  # as it was planned
        found.append(stage)
    return found


def carry_out(stage: MoveStage, stock: PlannerStock) -> bool:
    """Take the targets, release the sources, admit the pods; False, with nothing changed, if one has no room."""
    held: list[PodHold] = []
    for step in stage.steps:
        if not has_room(stock, step.task.demand, step.target):
            return _back(stock, held)
        held.append(stock.hold(step.target))
    for step in stage.steps:
        stock.release(step.source)
    for placed in stage.admits:
        if not has_room(stock, placed.task.demand, placed.held):
            for step in stage.steps:
                stock.hold(step.source)
            return _back(stock, held)
        held.append(stock.hold(placed.held))
    return True


def has_room(stock: PlannerStock, demand: Demand, held: PodHold) -> bool:
    """Whether exactly that place is free."""
    room = stock.fits(demand, held.row)
    return all(room[t.device] for t in held.taken) if held.taken else bool(room.any())


def _back(stock: PlannerStock, held: Sequence[PodHold]) -> bool:
    for one in reversed(held):
        stock.release(one)
    return False


def _undo(stage: MoveStage, stock: PlannerStock) -> None:
    for placed in stage.admits:
        stock.release(placed.held)
    for step in stage.steps:
        stock.hold(step.source)
        stock.release(step.target)
