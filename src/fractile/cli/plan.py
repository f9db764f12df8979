"""``fractile plan``: what fits, why the rest waits, how many nodes to add, which pods could move. Changes nothing."""

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from fractile.cli.options import api_server
from fractile.cli.simulate import one_policy, seeds_of

if TYPE_CHECKING:
    from fractile.sim.planner.planner import Question
    from fractile.sim.snapshot.cluster_snapshot import Machine

_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,4})?)%?", re.ASCII)

Tell = Callable[[str], None]


def _policies(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from fractile.policy.nodes.policies.table import POLICIES  # late: imports numpy

    return [CompletionItem(name) for name in POLICIES if name.startswith(incomplete)]


@click.command("plan")
@click.option(
    "--nodes",
    default="live",
    show_default=True,
    type=click.Path(),
    metavar="CSV|YAML|live",
    help="Nodes: one a line, manifests, or those of a cluster with what runs there.",
)
@click.option(
    "--pods",
    type=click.Path(),
    metavar="CSV|YAML|live",
    help="Pods to come; default: those that wait in the cluster.",
)
@click.option(
    "--policy",
    default="fgd-plus",
    show_default=True,
    metavar="P",
    shell_complete=_policies,
    help="See docs/develop/simulate.md.",
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="SHAPE",
    help="Nodes that may be added: a node's name, a model of GPU, or cpu=64,memory=256Gi,gpus=8,model=A100"
    "[,card_memory=80Gi]. May be repeated; default: the most common node of the cluster.",
)
@click.option(
    "--target",
    default="100%",
    show_default=True,
    metavar="PERCENT",
    help="Share of the pods, and of the GPUs that they ask for, that must find a place.",
)
@click.option(
    "--seeds",
    default="42..44",
    show_default=True,
    metavar="A..B",
    help="Seeds of the orders of pods in which the added nodes must suffice.",
)
@click.option("--defragment", is_flag=True, help="Propose moves of running pods that make room. Nothing is moved.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="json: the fields of docs/reference/plan.md.",
)
@api_server.cluster_options
def command(
    nodes: str,
    pods: str | None,
    policy: str,
    shapes: tuple[str, ...],
    target: str,
    seeds: str,
    defragment: bool,
    output: str,
    kubeconfig: Path | None,
    context: str,
    name: str,
) -> None:
    """Show what fits now, why each pod waits, which single change would make it fit, how many nodes to add, and which
    nodes could be emptied.

    \b
    fractile plan                                     the cluster, and the pods that wait there
    fractile plan --pods new.yaml                     whether these would fit
    fractile plan --nodes n.csv --pods p.csv --shape cpu=96,memory=384Gi,gpus=8,model=T4 --target 95%
    fractile plan --defragment                        moves that make room, in stages

    live is the cluster of --kubeconfig, --context or --name, else that of $KUBECONFIG. The cluster is only read. Files
    whose names end in .yaml, .yml or .json hold manifests, others are CSV: docs/reference/plan.md.
    """
    # Imported late: numpy takes a tenth of a second, which --help should not wait for.
    from fractile.cli.text import plan as plan_text
    from fractile.reports import plan_input
    from fractile.sim.planner.planner import plan
    from fractile.sim.planner.shapes import shape_of, shapes_in
    from fractile.sim.snapshot.rows import node_rows_of
    from fractile.wire.output import plan as wire

    wanted, percent = seeds_of(seeds), _percent(target)
    chosen = one_policy(policy)
    written = [shape_of(s, ()) for s in shapes if "=" in s]
    with _progress() as tell:
        tell("reading")
        snapshot = plan_input.for_plan(
            nodes,
            pods,
            lambda: api_server.credentials(kubeconfig, context, name),
            node_rows_of([m for _, m in written]),
        )
        offered = [shape_of(s, snapshot.machines) for s in shapes] or shapes_in(snapshot.machines)
        question = _question(chosen, offered, wanted, percent, defragment=defragment)
        report = plan(snapshot, question, tell)
    click.echo(wire.encode(report) if output == "json" else plan_text.text(report), nl=output == "json")


def _question(
    policy: str, shapes: "Sequence[tuple[str, Machine]]", seeds: Sequence[int], target: float, *, defragment: bool
) -> "Question":
    from fractile.policy.nodes.policies.table import find
    from fractile.sim.planner.planner import Question

    found = find(policy)
    assert found is not None  # checked by one_policy
    return Question(policy, found, tuple(shapes), tuple(seeds), target, defragment=defragment)


def _percent(text: str) -> float:
    match = _PERCENT.fullmatch(text)
    if match is None or not 0 < float(match[1]) <= 100:
        raise click.BadParameter(f"{text!r} is not a percentage such as 95%", param_hint="--target")
    return float(match[1])


@contextmanager
def _progress() -> Generator[Tell]:
    """Show the current step on the error stream, if that is a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done: None
        return
    with console.status("Reading") as status:
        counts: dict[str, int] = {}

        def tell(done: str) -> None:
            counts[done] = counts.get(done, 0) + 1
            status.update(f"Planning: {done} ({counts[done]})")

        yield tell
