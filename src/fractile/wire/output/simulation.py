"""The output of ``fractile simulate -o json``. Within a version, fields are only added.

Figures without a value (a load that was never reached, a figure of the other mode) are null.
"""

import msgspec

SCHEMA = "fractile.dev/simulation/v1"


class RunFigures(msgspec.Struct, frozen=True):
    """One run, or the mean or deviation over runs. Allocation and fragments are in percent of the cluster's GPUs."""

    allocation_at_100: float | None = None  # when as many GPUs as the cluster has had been requested
    allocation_at_130: float | None = None
    allocation: float | None = None  # mean over time, with departures
    acceptance: float | None = None  # of the GPUs requested, with departures
    fragmented: float | None = None  # the sum of the five below
    lack_gpu: float | None = None
    lack_cpu: float | None = None
    wrong_model: float | None = None
    sharing_remainder: float | None = None
    no_gpu_asked: float | None = None
    sharing_floor: float | None = None  # what sharing pods leave over on full GPUs, however they are combined
    pods: float | None = None
    failed_pods: float | None = None
    failed_gpus: float | None = None
    decisions_per_second: float | None = None
    offered: float | None = None  # what would be allocated, with departures, if no pod were refused
    pooled: float | None = None  # the same if all GPUs were one pool, however sharing pods are combined


class SeedReport(msgspec.Struct, frozen=True):
    seed: int
    figures: RunFigures


class PolicyReport(msgspec.Struct, frozen=True):
    """One policy. ``stdev`` has values for two or more seeds."""

    policy: str
    mean: RunFigures
    stdev: RunFigures
    seeds: tuple[SeedReport, ...]


class Paired(msgspec.Struct, frozen=True):
    """One policy minus another, seed by seed, in points of ``figure``; ``better``: seeds in which it was higher."""

    policy: str
    than: str
    figure: str
    mean: float
    stdev: float | None
    better: int
    seeds: int


class Simulation(msgspec.Struct, frozen=True):
    """The whole report. ``gpus`` and ``nodes``: of the cluster. ``orders``: "own" or "published", null if there is no
    such choice. ``sample``: "adaptive" or percent of the nodes that a policy was shown; null: all."""

    mode: str
    nodes: int
    gpus: int
    tune: float | None
    load: float | None
    policies: tuple[PolicyReport, ...]
    paired: tuple[Paired, ...]
    orders: str | None = None
    sample: str | None = None
    schema: str = SCHEMA


def encode(report: Simulation) -> str:
    """The JSON text, indented, schema first, numbers with four decimals."""
    body = {"schema": report.schema, **msgspec.to_builtins(_rounded(report))}
    return msgspec.json.format(msgspec.json.encode(body), indent=2).decode()


def decode(text: str | bytes) -> Simulation:
    """The inverse of ``encode``. Raises msgspec's errors."""
    return msgspec.json.decode(text, type=Simulation)


def _rounded(report: Simulation) -> Simulation:
    return msgspec.structs.replace(
        report,
        policies=tuple(
            PolicyReport(
                p.policy,
                _short(p.mean),
                _short(p.stdev),
                tuple(SeedReport(s.seed, _short(s.figures)) for s in p.seeds),
            )
            for p in report.policies
        ),
        paired=tuple(
            msgspec.structs.replace(p, mean=round(p.mean, 4), stdev=None if p.stdev is None else round(p.stdev, 4))
            for p in report.paired
        ),
    )


def _short(figures: RunFigures) -> RunFigures:
    return RunFigures(**{k: None if v is None else round(v, 4) for k, v in msgspec.structs.asdict(figures).items()})
