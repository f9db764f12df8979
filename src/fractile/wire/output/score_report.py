"""What ``fractile score -o json`` prints. Fields are only ever added while the version stays.

Amounts are whole numbers: thousandths of CPUs, bytes, devices. docs/reference/score.md explains each field.
"""

import msgspec

SCHEMA = "fractile.dev/score/v1"


class ResourceWeight(msgspec.Struct, frozen=True):
    name: str
    weight: int


class ShapeReport(msgspec.Struct, frozen=True):
    utilization: int
    score: int


class StrategyReport(msgspec.Struct, frozen=True):
    """``shape`` is empty unless it is the ratio; ``source``: ``file``, ``options`` or ``default``."""

    kind: str
    source: str
    resources: tuple[ResourceWeight, ...]
    shape: tuple[ShapeReport, ...]


class TermReport(msgspec.Struct, frozen=True):
    """One resource. ``requested``: what is held and what the pod asks for together. ``score`` is 0..100 and part of the
    node's only when ``counted``."""

    resource: str
    held: int
    pod: int
    requested: int
    capacity: int
    utilization: int
    score: int
    weight: int
    counted: bool


class ScaleOfTen(msgspec.Struct, frozen=True):
    """The same as Kubernetes' documentation reckons it: each score cut to 0..10."""

    sum: int
    weights: int
    score: int


class ScoredNode(msgspec.Struct, frozen=True):
    """``score`` is ``sum`` over ``weights``, rounded or cut. ``lacks``: resources that the pod does not fit for; then
    kube-scheduler does not score the node."""

    node: str
    score: int
    sum: int
    weights: int
    lacks: tuple[str, ...]
    terms: tuple[TermReport, ...]
    scale_of_ten: ScaleOfTen | None


class PodReport(msgspec.Struct, frozen=True):
    """``best``: the nodes with the highest score of those that fit; of several kube-scheduler draws one by lot."""

    namespace: str
    pod: str
    strategy: StrategyReport
    nodes: tuple[ScoredNode, ...]
    best: tuple[str, ...]


class ScoreReport(msgspec.Struct, frozen=True):
    kubernetes: str  # the version whose arithmetic it is
    pods: tuple[PodReport, ...]
    schema: str = SCHEMA


def encode(report: ScoreReport) -> str:
    """Indented, schema first."""
    body = {"schema": report.schema, **msgspec.to_builtins(report)}
    return msgspec.json.format(msgspec.json.encode(body), indent=2).decode()


def decode(text: str | bytes) -> ScoreReport:
    """For those who read it back. Raises msgspec's errors."""
    return msgspec.json.decode(text, type=ScoreReport)
