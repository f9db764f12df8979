"""``fractile score``: how the nodes of a file score for its pods, term by term. Offline."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from fractile.cli.options.scheduler_options import complete_version
from fractile.errors import FractileError, SetupError, WireError
from fractile.wire.kubernetes import scheduler_config, scoring
from fractile.wire.kubernetes.scoring import Strategy, StrategyKind

if TYPE_CHECKING:
    from fractile.wire.files.score_file import ScoreFile
    from fractile.wire.kubernetes.pod_requests import CountedPod
    from fractile.wire.output.score_report import ScoreReport

_MOST_BYTES = 256 * 2**20
_LAST_OLD = 21
_STDIN = "-"


def _complete_pod(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The pods of the file that are scored; none for standard input, which can be read only once."""
    from fractile.wire.files import score_file

    source = ctx.params.get("source")
    if source in (None, _STDIN):
        return []
    try:
        file = score_file.decode(_read(source), source=source)
    except (FractileError, OSError, click.ClickException):
        return []
    return [CompletionItem(pod.metadata.name) for pod in _waiting(file) if pod.metadata.name.startswith(incomplete)]


@click.command("score")
@click.option(
    "-f",
    "--file",
    "source",
    required=True,
    type=click.Path(dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="Manifests, YAML or JSON; - for the standard input.",
)
@click.option(
    "--strategy", type=click.Choice([str(kind) for kind in StrategyKind]), help="Strategy, instead of the file's."
)
@click.option("--resources", metavar="NAME=WEIGHT,...", help="Resources, instead of the file's; weights 1 to 100.")
@click.option("--shape", metavar="PERCENT:SCORE,...", help="Shape of requested-to-capacity-ratio, scores 0 to 10.")
@click.option(
    "--kubernetes",
    default="1.36",
    show_default=True,
    metavar="VERSION",
    shell_complete=complete_version,
    help="Version whose arithmetic to use; 1.20 and 1.21 differ from the later ones.",
)
@click.option(
    "--pod",
    "name",
    default="",
    metavar="NAME",
    shell_complete=_complete_pod,
    help="Only this pod; default: all pods without a node.",
)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def command(
    source: str,
    strategy: str | None,
    resources: str | None,
    shape: str | None,
    kubernetes: str,
    name: str,
    output: str,
) -> None:
    """Show how kube-scheduler scores each node's resources for a pod, term by term.

    \b
    fractile score -f examples/score.yaml
    fractile score -f examples/score.yaml --kubernetes 1.20 -o json
    fractile score -f nodes.yaml --strategy most-allocated --resources nvidia.com/gpu=5,cpu,memory
    kubectl get nodes,pods -A -o yaml | fractile score -f -

    The file holds nodes, the pods on them, and the pods to score, which have no node. It may also hold kube-scheduler's
    configuration, of which the profile for the pod's schedulerName is used. The fields of the JSON are those of
    docs/reference/score.md.
    """
    # Imported late: numpy and YAML take a quarter of a second, which --help should not wait for.
    from fractile.cli.text import score
    from fractile.wire.files import score_file
    from fractile.wire.output import score_report

    minor = _parsed(kubernetes, "--kubernetes")
    file = score_file.decode(_read(source), source="the input" if source == _STDIN else source)
    options = _Options(strategy, resources, shape)
    report = _report(file, _pods(file, name), options, minor)
    click.echo(score_report.encode(report) if output == "json" else score.table(report), nl=output == "json")


class _Options:
    """The options that override the file."""

    def __init__(self, strategy: str | None, resources: str | None, shape: str | None) -> None:
        self.given = any(option is not None for option in (strategy, resources, shape))
        try:
            self._kind = StrategyKind(strategy) if strategy else None
            self._resources = scoring.parse_resources(resources) if resources is not None else None
            self._shape = scoring.parse_shape(shape) if shape is not None else None
        except WireError as e:
            raise click.UsageError(str(e)) from None

    def over(self, strategy: Strategy) -> Strategy:
        """The strategy, overridden by the options given."""
        return Strategy(
            self._kind or strategy.kind, self._resources or strategy.resources, self._shape or strategy.shape
        )


def _report(file: "ScoreFile", pods: "list[CountedPod]", options: _Options, minor: int) -> "ScoreReport":
    from fractile.policy.nodes.kubernetes import Rounding
    from fractile.policy.nodes.scored import scored
    from fractile.wire.output.score_report import PodReport, ScoreReport

    rounding = Rounding.OLD if minor <= _LAST_OLD else Rounding.NEW
    found: list[PodReport] = []
    for pod in pods:
        said = file.strategy(pod.spec.scheduler_name)
        source = "options" if options.given else "default" if said is None else "file"
        strategy = options.over(said or scoring.DEFAULT)
        found.append(scored(pod, file.nodes, file.pods, strategy=strategy, source=source, rounding=rounding))
    return ScoreReport(f"1.{minor}", tuple(found))


def _waiting(file: "ScoreFile") -> "list[CountedPod]":
    return [pod for pod in file.pods if not pod.spec.node_name and pod.status.phase in ("", "Pending")]


def _pods(file: "ScoreFile", name: str) -> "list[CountedPod]":
    waiting = _waiting(file)
    if not file.nodes:
        raise SetupError(f"{file.source} has no Node, so there is nothing to score")
    if not name:
        if not waiting:
            raise SetupError(f"{file.source} has no Pod without spec.nodeName, so there is nothing to place")
        return waiting
    found = [pod for pod in waiting if pod.metadata.name == name]
    if not found:
        known = ", ".join(pod.metadata.name for pod in waiting[:20]) or "none"
        raise SetupError(f"{file.source} has no Pod {name!r} without spec.nodeName; there are: {known}")
    return found


def _read(source: str) -> bytes:
    try:
        with sys.stdin.buffer if source == _STDIN else Path(source).open("rb") as file:
            found = file.read(_MOST_BYTES + 1)
    except OSError as e:
        raise SetupError(f"{source} cannot be read: {e.strerror}") from None
    if len(found) > _MOST_BYTES:
        raise SetupError(f"{source} is larger than {_MOST_BYTES >> 20} MiB")
    return found


def _parsed(text: str, option: str) -> int:
    try:
        return scheduler_config.minor_of(text)
    except WireError as e:
        raise click.BadParameter(str(e), param_hint=option) from None
