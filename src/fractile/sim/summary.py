"""Means, deviations and differences of runs. Differences are by seed: policies of one seed get the same pods."""

import statistics
from collections.abc import Mapping, Sequence

import msgspec

from fractile.sim.runs import Experiment, Run
from fractile.sim.sample import text_of
from fractile.wire.output.simulation import Paired, PolicyReport, RunFigures, SeedReport, Simulation

HEADLINE = {"fill": "allocation_at_100", "steady": "allocation"}


def summary(
    experiment: Experiment, policies: Sequence[str], seeds: Sequence[int], found: Mapping[Run, RunFigures]
) -> Simulation:
    """The report, with policies in the order given; each is compared with those before it."""
    figure = HEADLINE[experiment.mode]
    reports = tuple(_policy(p, seeds, found) for p in policies)
    pairs = [(a, b) for i, a in enumerate(reports) for b in reports[:i]]
    filling = experiment.mode == "fill"
    return Simulation(
        mode=experiment.mode,
        nodes=len(experiment.nodes),
        gpus=experiment.gpus,
        tune=experiment.tune if filling else None,
        load=None if filling else experiment.load,
        policies=reports,
        paired=tuple(p for p in (_paired(a, b, figure) for a, b in pairs) if p is not None),
        orders=experiment.order if filling else None,
        sample=None if experiment.sample is None else text_of(experiment.sample),
    )


def _policy(policy: str, seeds: Sequence[int], found: Mapping[Run, RunFigures]) -> PolicyReport:
    each = tuple(SeedReport(seed, found[Run(policy, seed)]) for seed in seeds)
    columns: dict[str, list[float | None]] = {
        name: [getattr(s.figures, name) for s in each] for name in RunFigures.__struct_fields__
    }
    return PolicyReport(
        policy,
        mean=RunFigures(**{name: _mean(values) for name, values in columns.items()}),
        stdev=RunFigures(**{name: _stdev(values) for name, values in columns.items()}),
        seeds=each,
    )


def _paired(a: PolicyReport, b: PolicyReport, figure: str) -> Paired | None:
    differences: list[float] = []
    for mine, other in zip(a.seeds, b.seeds, strict=True):
        x: float | None = getattr(mine.figures, figure)
        y: float | None = getattr(other.figures, figure)
        if x is not None and y is not None:
            differences.append(x - y)
    if not differences:
        return None
    better = sum(d > 0 for d in differences)
    mean = statistics.fmean(differences)
    return Paired(a.policy, b.policy, figure, mean, _stdev(differences), better, len(differences))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.fmean(known) if known else None


def _stdev(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.stdev(known) if len(known) > 1 else None


def without_times(report: Simulation) -> Simulation:
    """The report without speeds: all that is left follows from the seeds."""

    def bare(figures: RunFigures) -> RunFigures:
        return msgspec.structs.replace(figures, decisions_per_second=None)

    return msgspec.structs.replace(
        report,
        policies=tuple(
            PolicyReport(
                p.policy, bare(p.mean), bare(p.stdev), tuple(SeedReport(s.seed, bare(s.figures)) for s in p.seeds)
            )
            for p in report.policies
        ),
    )
