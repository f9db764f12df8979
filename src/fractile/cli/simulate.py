"""``fractile simulate``: runs policies on recorded pods and nodes, offline, with comparable figures."""

import os
import re
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from fractile.cli.options import api_server
from fractile.errors import SetupError

if TYPE_CHECKING:
    from fractile.sim.runs import Experiment
    from fractile.sim.snapshot.trace import NodeRow, PodRow

_SEEDS = re.compile(r"([0-9]{1,9})(?:\.\.([0-9]{1,9}))?", re.ASCII)
_MOST_SEEDS = 10_000

Progress = Callable[[int, int], None]


@click.command("simulate")
@click.option(
    "--nodes",
    required=True,
    type=click.Path(),
    metavar="CSV|YAML|live",
    help="Nodes: one a line, manifests, or those of a cluster.",
)
@click.option(
    "--pods",
    required=True,
    type=click.Path(),
    metavar="CSV|YAML|live",
    help="Pods: one a line, manifests, or all of the cluster.",
)
@click.option(
    "--policy", default="fgd-plus", show_default=True, metavar="P[,P...]", help="See docs/develop/simulate.md."
)
@click.option("--seeds", default="42..51", show_default=True, metavar="A..B", help="One run of each policy per seed.")
@click.option(
    "--tune",
    default=1.3,
    show_default=True,
    type=click.FloatRange(0, 100),
    help="GPUs asked for in all, as a multiple of the cluster's GPUs; 0: the pods as they are.",
)
@click.option(
    "--mode",
    type=click.Choice(["fill", "steady"]),
    default="fill",
    show_default=True,
    help="fill: pods stay. steady: they come and go.",
)
@click.option(
    "--load",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0.01, 10),
    help="steady: GPUs asked for at any time, as a multiple of the cluster's GPUs.",
)
@click.option(
    "--sample",
    metavar="adaptive|PERCENT",
    help="Show a policy only as many nodes as kube-scheduler would (percentageOfNodesToScore); default: all.",
)
@click.option(
    "--orders",
    type=click.Choice(["own", "published"]),
    default="own",
    show_default=True,
    help="fill: the order of pods and nodes for a seed; published: that of the FGD paper's runs with this seed.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 1024),
    default=lambda: len(os.sched_getaffinity(0)),
    show_default="all cores",
    help="Processes.",
)
@click.option(
    "--report",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Also write tables, plots and a page to a new folder; needs the wheel's extra report.",
)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@api_server.cluster_options
def command(
    nodes: str,
    pods: str,
    policy: str,
    seeds: str,
    tune: float,
    mode: str,
    load: float,
    sample: str | None,
    orders: str,
    jobs: int,
    folder: Path | None,
    output: str,
    kubeconfig: Path | None,
    context: str,
    name: str,
) -> None:
    """Place recorded pods on recorded nodes under one policy or several, and show how well the GPUs were used.

    The same seed gives the same figures on every machine. Columns of the files, policies and figures:
    docs/develop/simulate.md. A file whose name ends in .yaml, .yml or .json holds manifests (docs/reference/plan.md);
    live is the cluster of --kubeconfig, --context or --name, which is only read.
    """
    # Imported late: numpy takes a tenth of a second, which --help should not wait for.
    from fractile.cli.text import simulate
    from fractile.policy.nodes.policies.table import POLICIES, find
    from fractile.reports import plan_input
    from fractile.sim.processes import outcomes
    from fractile.sim.report import folder as folders
    from fractile.sim.report.cost import cost_of
    from fractile.sim.runs import Run
    from fractile.sim.summary import summary
    from fractile.wire.output import simulation

    policies = _policies(policy, POLICIES, lambda name: find(name) is not None)
    numbers = seeds_of(seeds)
    if orders != "own" and mode != "fill":
        raise click.BadParameter(
            "the published runs fill the cluster, so it goes with --mode fill", param_hint="--orders"
        )
    if folder is not None:
        folders.check(folder)
    rows = plan_input.for_simulation(nodes, pods, lambda: api_server.credentials(kubeconfig, context, name))
    experiment = _experiment(rows, nodes=nodes, pods=pods, mode=mode, tune=tune, load=load)
    experiment = msgspec.structs.replace(experiment, sample=_sample(sample), order=orders)
    with _bar() as progress:
        runs = [Run(p, seed) for p in policies for seed in numbers]
        found = outcomes(experiment, runs, jobs=jobs, progress=progress)
    report = summary(experiment, policies, numbers, {run: outcome.figures for run, outcome in found.items()})
    if folder is not None:
        folders.write(folder, report, found, runs, cost_of(experiment, policies[:1]))
    click.echo(simulation.encode(report) if output == "json" else simulate.table(report), nl=output == "json")


def _experiment(
    rows: "tuple[Sequence[NodeRow], Sequence[PodRow]]", *, nodes: str, pods: str, mode: str, tune: float, load: float
) -> "Experiment":
    from fractile.sim import kernel
    from fractile.sim.runs import Experiment

    cluster, wanted = tuple(rows[0]), tuple(rows[1])
    if not any(n.gpus for n in cluster):
        raise SetupError(f"{nodes} has no node with GPUs, so there is nothing to compare")
    if not any(p.ask.gpus for p in wanted):
        raise SetupError(f"{pods} has no pod that asks for a GPU, so there is nothing to compare")
    return Experiment(cluster, wanted, mode, tune, load, compiled=kernel.available())


def _sample(text: str | None) -> int | None:
    from fractile.sim.sample import percent_of

    percent = None if text is None else percent_of(text)
    if text is not None and percent is None:
        raise click.BadParameter(f"{text!r} is neither adaptive nor 1 to 100", param_hint="--sample")
    return percent


def _policies(text: str, table: Collection[str], known: Callable[[str], bool]) -> list[str]:
    names = list(dict.fromkeys(n.strip() for n in text.split(",") if n.strip()))
    unknown = [n for n in names if not known(n)]
    if unknown or not names:
        raise click.BadParameter(f"{(unknown or [text])[0]!r} is not one of {', '.join(table)}", param_hint="--policy")
    return names


def one_policy(text: str) -> str:
    """The policy's name; a usage error if the table does not have it."""
    from fractile.policy.nodes.policies.table import POLICIES, find

    return _policies(text.replace(",", " "), POLICIES, lambda name: find(name) is not None)[0]


def seeds_of(text: str) -> list[int]:
    """``42..51`` or ``42``; a usage error for anything else."""
    match = _SEEDS.fullmatch(text)
    if match is None:
        raise click.BadParameter(f"{text!r} is neither a number nor a range like 42..51", param_hint="--seeds")
    first, last = int(match[1]), int(match[2] or match[1])
    if not 0 <= last - first < _MOST_SEEDS:
        raise click.BadParameter(f"{text!r} is not a range of 1 to {_MOST_SEEDS} seeds", param_hint="--seeds")
    return list(range(first, last + 1))


@contextmanager
def _bar() -> Generator[Progress]:
    """A progress bar on the error stream, if that is a terminal, so that the report can be piped."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, total: None
        return
    with Bar(console=console, transient=True) as bar:
        task = bar.add_task("Runs", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
