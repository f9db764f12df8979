"""The output of ``fractile score -o json``. Within a version, fields are only added.

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
    """``shape`` is empty unless the strategy is the ratio; ``source``: ``file``, ``options`` or ``default``."""

    kind: str
    source: str
    resources: tuple[ResourceWeight, ...]
    shape: tuple[ShapeReport, ...]


class TermReport(msgspec.Struct, frozen=True):
    """One resource. ``requested``: what is held plus what the pod requests. ``score`` is 0..100 and part of the node's
    score only if ``counted``."""

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
    """The same as in Kubernetes' documentation: each score cut to 0..10."""

    sum: int
    weights: int
    score: int


class ScoredNode(msgspec.Struct, frozen=True):
    """``score`` is ``sum`` / ``weights``, rounded or cut. ``lacks``: resources of which too little is left for the pod;
    kube-scheduler then does not score the node."""

    node: str
    score: int
    sum: int
    weights: int
    lacks: tuple[str, ...]
    terms: tuple[TermReport, ...]
    scale_of_ten: ScaleOfTen | None


class PodReport(msgspec.Struct, frozen=True):
    """``best``: the fitting nodes with the highest score; among several, kube-scheduler picks one at random."""

    namespace: str
    pod: str
    strategy: StrategyReport
    nodes: tuple[ScoredNode, ...]
    best: tuple[str, ...]


class ScoreReport(msgspec.Struct, frozen=True):
    kubernetes: str  # the version whose arithmetic is used
    pods: tuple[PodReport, ...]
    schema: str = SCHEMA


def encode(report: ScoreReport) -> str:
    """The JSON text, indented, schema first."""
    body = {"schema": report.schema, **msgspec.to_builtins(report)}
    return msgspec.json.format(msgspec.json.encode(body), indent=2).decode()


def decode(text: str | bytes) -> ScoreReport:
    """The inverse of ``encode``. Raises msgspec's errors."""
    return msgspec.json.decode(text, type=ScoreReport)
